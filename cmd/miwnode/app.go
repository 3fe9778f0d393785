package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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
over; no database or other service is needed.

Exit codes: 0 done, 1 failed, 2 a fault of the command line, 69 no node or no quorum,
75 the lease was lost, 124 a wait was over, 130 and 143 ended by INT or TERM; exec
also gives its command's own.`,
		Version: versionLine(),
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
	root.SetFlagErrorFunc(flagFault)
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
	group("read", a.statusCommand(), a.membersCommand(), a.instancesCommand(), a.leasesCommand(), a.groupsCommand(), a.workersCommand("workers", "  miwnode workers"), a.jobsCommand(), a.historyCommand(), a.eventsCommand(), a.whyCommand(), a.planCommand())
	group("operate", a.workerCommand(), a.drainCommand(), a.undrainCommand(), a.cordonCommand(), a.uncordonCommand(), a.moveCommand(), a.pinCommand(), a.unpinCommand(), a.pauseCommand(), a.resumeCommand(), a.revokeCommand(), a.stepDownCommand())
	group("prove", a.benchCommand(), a.tortureCommand())
	group("prepare", a.keygenCommand(), a.certCommand(), a.versionCommand(), a.completionCommand())
	root.SetHelpCommand(helpCommand())
	root.SetHelpCommandGroupID("prepare")
	root.SetVersionTemplate("{{.Version}}\n")
	for _, c := range root.Commands() {
		if _, calls := callers[c.GroupID]; !calls && c.Name() != "exec" {
			withoutShared(c)
		}
	}
	root.CompletionOptions.DisableDefaultCmd = true
	return root
}

// callers are the groups of commands that call a node.
var callers = map[string]struct{}{"read": {}, "operate": {}}

// withoutShared leaves the flags that name a node out of the help of a command
// that calls none.
func withoutShared(cmd *cobra.Command) {
	cmd.SetHelpFunc(func(c *cobra.Command, args []string) {
		inherited := c.InheritedFlags()
		inherited.VisitAll(func(f *pflag.Flag) { f.Hidden = true })
		defer inherited.VisitAll(func(f *pflag.Flag) { f.Hidden = false })
		c.Root().HelpFunc()(c, args)
	})
}

// helpCommand is help COMMAND, which refuses what is no command.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Show the help of a command", Example: "  miwnode help exec",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			if at, _, err := cmd.Root().Find(args); err == nil {
				for _, sub := range at.Commands() {
					if sub.IsAvailableCommand() {
						names = append(names, sub.Name())
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			at, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return unknownCommand(cmd.Root(), strings.Join(args, " "))
			}
			at.InitDefaultHelpFlag()
			at.InitDefaultVersionFlag()
			return at.Help()
		},
	}
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
		case slices.Contains(args, ""):
			return usage(cmd, "%s is empty", what)
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
				return usage(cmd, "%s is %q: it must be a duration such as 10s", env, value)
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
	if _, port, err := net.SplitHostPort(cfg.Addr); err == nil && !strings.ContainsAny(cfg.Addr, "/") {
		if _, err := strconv.ParseUint(port, 10, 16); err == nil {
			return nil, usage(cmd, "--addr is %q: did you mean http://%s or https://%s?", cfg.Addr, cfg.Addr, cfg.Addr)
		}
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

// where is how the shared flags name the node, for a line that somebody may copy.
func (a *app) where() string {
	switch {
	case a.addr != "":
		return " --addr " + a.addr
	case a.dataDir != defaultDataDir:
		return " --data-dir " + a.dataDir
	}
	return ""
}

// author is who operates: shown beside drains, cordons and revokes.
func (a *app) author() string {
	name, ok := a.lookupEnv("USER")
	if !ok || name == "" {
		name = fmt.Sprintf("uid-%d", os.Getuid())
		if me, err := user.Current(); err == nil && me.Username != "" {
			name = me.Username
		}
	}
	host, err := os.Hostname()
	if err != nil {
		return name
	}
	return name + "@" + host
}
