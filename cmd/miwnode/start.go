package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/guard"
	"github.com/miwnode/miwnode/node"
)

func (a *app) startCommand() *cobra.Command {
	var file string
	var printConfig, checkConfig bool
	cmd := &cobra.Command{
		Use: "start", Short: "Run a node until SIGINT or SIGTERM, then leave gracefully", Args: noArgs,
		Long: `Run a node until SIGINT or SIGTERM, then leave gracefully: drain, release, hand
leadership over. A second signal, half a second later or more, ends the process at
once.

Every flag is also an environment variable (in brackets) and a key of the YAML
file that --config names; flag beats environment beats file. Repeatable flags are
lists in the file, and separated by commas in the environment (--singleton by
newlines).

--singleton runs a command on exactly one node of all that name the same key. It
is run without a shell, with MIW_KEY, MIW_TOKEN and MIW_ADDR in its environment;
words are split as a POSIX shell would. It gets TERM when it must stop and KILL
before the lease can pass on, with everything it started. A command that ends with
code 0 is run again after about 2 s under the same lease; one that fails gives the
lease up, and is tried again with a growing pause.

--group names a YAML file of workloads that are such commands. All nodes that name
the group share them out, each workload to one node:

    group: shards
    assigner: sticky       # or balanced, primary
    rebalance: graceful    # or immediate
    workloads:
      - key: a
        weight: 2          # optional
        run: ["sh", "-c", "exec ./shard a"]

sticky evens the weights out and moves as little as it can; balanced counts only the
workloads and moves about half at each change of members; primary gives everything
to the member that joined first. graceful lets a run that is to move finish what it
has begun, up to --drain-timeout; immediate tells it to stop at once.

Workers (miwnode worker) run on every node, save with --workers=false. By them
whoever can call the API runs commands as the user of the node: on a machine with
other users give an --api-token-file, or --api off.`,
		Example: `  miwnode start
  miwnode start --singleton mailer='./mailer --queue main'
  miwnode start --group shards.yaml

  # three nodes on one machine
  miwnode start --data-dir n1 --bind 127.0.0.1:7401 --api off --bootstrap-expect 3 --join 127.0.0.1:7402
  miwnode start --data-dir n2 --bind 127.0.0.1:7402 --api off --bootstrap-expect 3 --join 127.0.0.1:7401
  miwnode start --data-dir n3 --bind 127.0.0.1:7403 --api off --bootstrap-expect 3 --join 127.0.0.1:7401

  miwnode start --config miw.yaml --check-config`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, fileErr := a.resolve(cmd, file)
			if printConfig {
				if fileErr != nil {
					return &exitError{exitUsage, fileErr}
				}
				return s.print(a.stdout)
			}
			cfg, err := s.build(a.stderr)
			if checkConfig {
				err = errors.Join(err, cfg.commandless())
			}
			if err := errors.Join(fileErr, err); err != nil {
				return &exitError{exitUsage, err}
			}
			if checkConfig {
				for _, remark := range cfg.remarks() {
					if err := a.empty("note: %s", remark); err != nil {
						return err
					}
				}
				return a.empty("the configuration is good")
			}
			return runNode(cmd.Context(), cfg)
		},
	}
	settingFlags(cmd)
	cmd.Flags().StringVar(&file, "config", "", "YAML file with settings [$MIW_CONFIG]")
	cmd.Flags().BoolVar(&printConfig, "print-config", false, "print the settings and where each comes from, and end")
	cmd.Flags().BoolVar(&checkConfig, "check-config", false, "report every fault of the settings, and end")
	return cmd
}

// runNode runs a node, its API, singletons, groups and workers until a signal ends
// it or the node can't go on. It returns at the end of the process.
func runNode(ctx context.Context, cfg startConfig) error {
	q := listen(os.Interrupt, syscall.SIGTERM) // from here on no signal ends the process by default
	defer q.stop()
	if err := guard.Available(); err != nil && len(cfg.singletons)+len(cfg.groups) > 0 {
		return fmt.Errorf("--singleton and --group: %w: %w", node.ErrNoGuard, err)
	}
	n, err := node.New(cfg.node)
	if err != nil {
		return err
	}
	log := cfg.log.With("node", n.ID())
	shares, err := newSharing(n, cfg)
	if err != nil {
		return err
	}
	crew, err := newWorkforce(n, cfg)
	if err != nil {
		return err
	}
	defer crew.close()
	server, err := api.NewServer(n, cfg.server, crew.options()...)
	if err != nil {
		return err
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	leaving := make(chan struct{})
	go awaitSignals(ctx, q, cancel, log, leaving)

	apiCtx, stopAPI := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAPI()
	var wg, served sync.WaitGroup
	served.Go(func() {
		if err := server.Run(apiCtx); err != nil {
			log.Error("API ended", "error", err)
			cancel(err)
		}
	})
	for _, s := range cfg.singletons {
		r := newSingleton(n, s, cfg)
		wg.Go(func() {
			if err := r.Run(ctx); err != nil {
				log.Error("singleton ended", "key", s.key, "error", err)
			}
		})
	}
	wg.Go(func() { shares.run(ctx) })
	wg.Go(func() { crew.run(ctx) })
	err = n.Run(ctx)
	cancel(err)
	wg.Wait()
	close(leaving)
	stopAPI()
	served.Wait()
	if _, signalled := errors.AsType[*signalError](context.Cause(ctx)); err == nil && !signalled && context.Cause(ctx) != nil {
		err = context.Cause(ctx)
	}
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// awaitSignals begins the graceful leave with the first signal and ends the
// process with the second: the guard then stops its commands.
func awaitSignals(ctx context.Context, q *signalQueue, cancel context.CancelCauseFunc, log *slog.Logger, left <-chan struct{}) {
	var first time.Time
	select {
	case s := <-q.ch:
		first = time.Now()
		log.Info("leaving: work is drained and handed over; a second signal ends the process at once", "signal", s.String())
		cancel(&signalError{s.(syscall.Signal)})
	case <-left:
		return
	case <-ctx.Done():
	}
	for {
		select {
		case s := <-q.ch:
			if time.Since(first) < sameSignal {
				continue
			}
			log.Warn("ended by a second signal")
			os.Exit(exitSignal + int(s.(syscall.Signal)))
		case <-left:
			return
		}
	}
}

// sameSignal is how soon a repeat of a signal is the same one: timeout(1) and
// others signal a process and then its group.
const sameSignal = time.Second
