package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
)

// app is the command line: the process and the flags that all commands share.
type app struct {
	process

	addr      string
	dataDir   string
	timeout   time.Duration
	tokenFile string
	tlsCA     string
	output    string
}

const (
	defaultDataDir = "miw-data"
	defaultTimeout = 5 * time.Second
)

// root is the command tree. What is not here does not exist: each command has a
// file of its own.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "miwnode",
		Short: "Exactly one owner per key: leases by a consensus that lives in your process",
		Long: `miwnode gives every key exactly one owner, through crashes, partitions, pauses
and deploys. Nodes find each other, agree through a raft log, and hand leases
over; no database or other service is needed.`,
		Example: `  miwnode demo                                 # three nodes in one process, nothing to set up
  miwnode start                                # a node of your own
  miwnode exec --key nightly -- ./report.sh    # run a command while holding a lease`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
	root.SuggestionsMinimumDistance = 2
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usage(cmd, "%v", err) })
	flags := root.PersistentFlags()
	flags.StringVar(&a.addr, "addr", "", "the node to talk to: unix socket or http(s) URL (default: miw.sock in --data-dir) [$MIW_ADDR]")
	flags.StringVar(&a.dataDir, "data-dir", defaultDataDir, "data folder of the node [$MIW_DATA_DIR]")
	flags.DurationVar(&a.timeout, "timeout", defaultTimeout, "deadline of each call [$MIW_TIMEOUT]")
	flags.StringVar(&a.tokenFile, "api-token-file", "", "file with the token of a node that is called over TCP [$MIW_API_TOKEN_FILE]")
	flags.StringVar(&a.tlsCA, "tls-ca", "", "PEM file of the authority of an https node [$MIW_TLS_CA]")

	root.AddGroup(
		&cobra.Group{ID: "run", Title: "Run:"},
		&cobra.Group{ID: "read", Title: "Look:"},
		&cobra.Group{ID: "operate", Title: "Operate:"},
		&cobra.Group{ID: "prove", Title: "Prove:"},
		&cobra.Group{ID: "prepare", Title: "Prepare:"},
	)
	group := func(id string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = id
			root.AddCommand(c)
		}
	}
	group("run", a.startCommand(), a.demoCommand(), a.execCommand())
	group("read", a.statusCommand(), a.membersCommand(), a.instancesCommand(), a.leasesCommand(), a.groupsCommand(), a.jobsCommand(), a.historyCommand(), a.eventsCommand(), a.whyCommand(), a.planCommand())
	group("operate", a.drainCommand(), a.undrainCommand(), a.cordonCommand(), a.uncordonCommand(), a.moveCommand(), a.pinCommand(), a.unpinCommand(), a.pauseCommand(), a.resumeCommand(), a.revokeCommand(), a.stepDownCommand())
	group("prove", a.benchCommand())
	group("prepare", a.keygenCommand(), a.certCommand(), a.versionCommand(), a.completionCommand())
	root.SetHelpCommandGroupID("prepare")
	root.CompletionOptions.DisableDefaultCmd = true
	return root
}

// noArgs and nArgs refuse arguments in the words of a usage error.
func noArgs(cmd *cobra.Command, args []string) error { return nArgs(0, "")(cmd, args) }

func nArgs(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > n && !cmd.HasParent():
			return unknownCommand(cmd, args[0])
		case len(args) > n:
			return usage(cmd, "unexpected argument %q", args[n])
		case len(args) < n:
			return usage(cmd, "%s is missing", what)
		}
		return nil
	}
}

func unknownCommand(cmd *cobra.Command, name string) error {
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		return usage(cmd, "unknown command %q, did you mean %s?", name, strings.Join(near, " or "))
	}
	return usage(cmd, "unknown command %q", name)
}

// shared fills the shared flags that were not given from the environment.
func (a *app) shared(cmd *cobra.Command) error {
	for name, env := range map[string]string{
		"addr": "MIW_ADDR", "data-dir": "MIW_DATA_DIR", "timeout": "MIW_TIMEOUT",
		"api-token-file": "MIW_API_TOKEN_FILE", "tls-ca": "MIW_TLS_CA",
	} {
		flag := cmd.Flag(name)
		if value, ok := a.lookupEnv(env); ok && flag != nil && !flag.Changed {
			if err := flag.Value.Set(value); err != nil {
				return usage(cmd, "%s is %q: %v", env, value, err)
			}
		}
	}
	if a.timeout <= 0 {
		return usage(cmd, "--timeout is %v: it must be positive", a.timeout)
	}
	return nil
}

// client is a client of the node that the flags name.
func (a *app) client(cmd *cobra.Command) (*api.Client, error) {
	if err := a.shared(cmd); err != nil {
		return nil, err
	}
	cfg := api.ClientConfig{Addr: a.addr, TLSCA: a.tlsCA}
	if cfg.Addr == "" {
		cfg.Addr = filepath.Join(a.dataDir, api.SocketName)
	}
	if a.tokenFile != "" {
		token, err := api.ReadToken(a.tokenFile)
		if err != nil {
			return nil, usage(cmd, "--api-token-file: %v", err)
		}
		cfg.Token = token
	}
	c, err := api.NewClient(cfg)
	if err != nil {
		return nil, usage(cmd, "--addr: %v", err)
	}
	return c, nil
}

// call makes one call within --timeout; the node is told the deadline, and has
// a second more to answer that it could not keep it.
func (a *app) call(ctx context.Context, c *api.Client, req api.Request, out any) ([]byte, error) {
	timeout := a.timeout
	if end, ok := ctx.Deadline(); ok {
		// The node may say what is wrong before ctx cuts the call short.
		timeout = max(100*time.Millisecond, min(timeout, time.Until(end)-300*time.Millisecond))
	}
	ctx, cancel := context.WithTimeout(ctx, timeout+time.Second)
	defer cancel()
	if req.Query == nil {
		req.Query = map[string][]string{}
	}
	req.Query.Set("timeout", timeout.String())
	return c.Do(ctx, req, out)
}

// author is who operates: shown beside drains, cordons and revokes.
func (a *app) author() string {
	user, ok := a.lookupEnv("USER")
	if !ok || user == "" {
		user = fmt.Sprintf("uid-%d", os.Getuid())
	}
	host, err := os.Hostname()
	if err != nil {
		return user
	}
	return user + "@" + host
}
