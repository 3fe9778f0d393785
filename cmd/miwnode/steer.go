package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
)

// steering is one of the commands by which an operator decides about a workload.
type steering struct {
	verb, short, long, example string
	target                     bool // needs --to
	expires                    bool // can end by itself
	done                       func(r workloadRef, to api.Instance) string
}

func (a *app) moveCommand() *cobra.Command {
	return a.steering(steering{
		verb: "move", short: "Have an instance take a workload over", target: true,
		long: `Have an instance take a workload over from whoever runs it. The old run is told
to stop, and the new one begins when it has. Where it stays is the planner's
business again: pin it to keep it there.`,
		example: `  miwnode move shards/a --to node-2
  miwnode move a --to node-2 --reason "disk is slow"    # where one group only has an a`,
		done: func(r workloadRef, to api.Instance) string {
			return fmt.Sprintf("%s: goes to %s (miwnode why %s tells how far it is)", r, nameOf(to), r)
		},
	})
}

func (a *app) pinCommand() *cobra.Command {
	return a.steering(steering{
		verb: "pin", short: "Tie a workload to an instance", target: true, expires: true,
		long: `Tie a workload to an instance: it runs there whenever that one is there and takes
work, and no balancing moves it. While the instance is gone, drains or is cordoned,
others have it; it comes back with the instance, or the next one of the same node.`,
		example: `  miwnode pin shards/a --to node-2 --reason "its cache is there"
  miwnode pin shards/a --to node-2 --expires-in 2h`,
		done: func(r workloadRef, to api.Instance) string {
			return fmt.Sprintf("%s: pinned to %s", r, nameOf(to))
		},
	})
}

func (a *app) unpinCommand() *cobra.Command {
	return a.steering(steering{
		verb: "unpin", short: "Untie a pinned workload",
		example: "  miwnode unpin shards/a",
		done:    func(r workloadRef, _ api.Instance) string { return r.String() + ": not pinned" },
	})
}

func (a *app) pauseCommand() *cobra.Command {
	return a.steering(steering{
		verb: "pause", short: "Stop a workload and have nobody run it", expires: true,
		long: `Stop a workload and have nobody of its group run it, until it is resumed. A pause
binds the group, not the key: exec, or another client of the API, that asks for the
lease GROUP/WORKLOAD by name is given it.`,
		example: `  miwnode pause shards/a --reason "the database is being moved"
  miwnode pause shards/a --expires-in 30m`,
		done: func(r workloadRef, _ api.Instance) string { return r.String() + ": paused; its run is told to stop" },
	})
}

func (a *app) resumeCommand() *cobra.Command {
	return a.steering(steering{
		verb: "resume", short: "Let a paused workload run again, and forget that it failed",
		example: "  miwnode resume shards/a",
		done:    func(r workloadRef, _ api.Instance) string { return r.String() + ": resumed" },
	})
}

func (a *app) steering(s steering) *cobra.Command {
	var req api.SteerRequest
	var to string
	var expires time.Duration
	cmd := &cobra.Command{
		Use: s.verb + " WORKLOAD", Short: s.short, Long: s.long, Example: s.example, Args: nArgs(1, workloadArg),
		RunE: func(cmd *cobra.Command, args []string) error {
			if s.target && to == "" {
				return usage(cmd, "--to is missing: name the instance, or its node")
			}
			if err := checkExpiry(cmd, expires); err != nil {
				return err
			}
			if err := checkWords(cmd, req.By, req.Reason); err != nil {
				return err
			}
			c, err := a.client(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			req.ExpiresIn = api.Duration(expires)
			r, target, err := a.steer(cmd.Context(), c, s.verb, args[0], to, req)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.stdout, s.done(r, target))
			return err
		},
		ValidArgsFunction: a.completeWorkloads,
	}
	cmd.Flags().StringVar(&req.Reason, "reason", "", "shown beside it")
	cmd.Flags().StringVar(&req.By, "by", "", "who asks (default: user@host)")
	if s.target {
		cmd.Flags().StringVar(&to, "to", "", "the instance: its ID, the beginning of one, or a node's ID")
		_ = cmd.RegisterFlagCompletionFunc("to", func(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
			return a.completeInstances(cmd, nil, word)
		})
	}
	if s.expires {
		cmd.Flags().DurationVar(&expires, "expires-in", 0, "ends by itself after so long (default: never)")
	}
	return cmd
}

// steer finds what the arguments mean and makes the call.
func (a *app) steer(ctx context.Context, c *api.Client, verb, name, to string, req api.SteerRequest) (r workloadRef, target api.Instance, err error) {
	if r, err = a.workload(ctx, c, name); err != nil {
		return r, target, err
	}
	if to != "" {
		if target, err = a.instance(ctx, c, to); err != nil {
			return r, target, err
		}
	}
	req.Workload, req.To = r.key, target.InstanceID
	if req.By == "" {
		req.By = a.author()
	}
	_, err = a.call(ctx, c, api.Request{Method: "POST", Path: r.path(verb), Body: req}, nil)
	return r, target, err
}
