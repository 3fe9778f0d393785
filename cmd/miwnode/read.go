package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/fsm"
)

// readCommand is a command that shows one answer as a table or as it came.
type readCommand struct {
	use, short, long, example string
	args                      cobra.PositionalArgs
	flags                     func(cmd *cobra.Command)
	path                      string
	// find, if set, tells path and parameters by the arguments.
	find func(ctx context.Context, c *api.Client, args []string) (path string, query url.Values, err error)
	// query fills the parameters; nil asks for none.
	query func(args []string) url.Values
	// show writes the answer for a person.
	show func(raw []byte) error
}

// reading builds the command. A node without a quorum shows what it has, and
// the command then says so and ends with the code for it.
func (a *app) reading(r readCommand) *cobra.Command {
	var consistency string
	cmd := &cobra.Command{
		Use: r.use, Short: r.short, Long: r.long, Example: r.example, Args: r.args,
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.output != "" && a.output != "json" {
				return usage(cmd, "-o is %q: it must be json", a.output)
			}
			c, err := a.client(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			path, query := r.path, url.Values{}
			switch {
			case r.find != nil:
				if path, query, err = r.find(cmd.Context(), c, args); err != nil {
					return err
				}
			case r.query != nil:
				query = r.query(args)
			}
			if consistency != "" {
				query.Set("consistency", consistency)
			}
			raw, err := a.call(cmd.Context(), c, api.Request{Method: "GET", Path: path, Query: query}, nil)
			if err != nil {
				return a.unknown(cmd.Context(), c, err)
			}
			if a.output == "json" {
				_, err = a.stdout.Write(raw)
			} else {
				err = r.show(raw)
			}
			if err != nil {
				return err
			}
			return a.quorum(cmd.Context(), c)
		},
	}
	if cmd.Args == nil {
		cmd.Args = noArgs
	}
	cmd.Flags().StringVarP(&a.output, "output", "o", "", "json prints the answer exactly as it came")
	cmd.Flags().StringVar(&consistency, "consistency", "", "local (default), bounded:200ms or linearizable")
	completeWords(cmd, "consistency", "local", "bounded:200ms", "linearizable")
	completeWords(cmd, "output", "json")
	if r.flags != nil {
		r.flags(cmd)
	}
	return cmd
}

// quorum is an error when the node that was asked sees no quorum.
func (a *app) quorum(ctx context.Context, c *api.Client) error {
	_, err := a.revision(ctx, c)
	return err
}

// revision is the revision of the node that is asked; an error when it sees no quorum.
func (a *app) revision(ctx context.Context, c *api.Client) (uint64, error) {
	var s api.Status
	if _, err := a.call(ctx, c, api.Request{Method: "GET", Path: "/v1/status"}, &s); err != nil {
		return 0, err
	}
	if s.Quorum.OK {
		return s.Revision, nil
	}
	if s.ClusterID == "" {
		return s.Revision, fsm.Errorf(fsm.CodeNotReady, "%s", strings.TrimPrefix(s.ReadyReason, "not_ready: "))
	}
	return s.Revision, fsm.Errorf(fsm.CodeNoQuorum, "%d of %d voters are alive, this is the copy of node %s at revision %d", s.Quorum.Alive, s.Quorum.Voters, s.NodeID, s.Revision)
}

// unknown is the error for what the asked node does not know of. Without a quorum
// that says little: its copy may be old.
func (a *app) unknown(ctx context.Context, c *api.Client, err error) error {
	refusal, is := errors.AsType[*fsm.Error](err)
	if !is || refusal.Code != fsm.CodeNotFound {
		return err
	}
	without := a.quorum(ctx, c)
	if code := fsm.CodeOf(without); code != fsm.CodeNoQuorum && code != fsm.CodeNotReady {
		return err
	}
	return fmt.Errorf("%w, which may be old: %s", without, cmpOr(refusal.Message, refusal.Error()))
}

// empty says in words that a list is empty.
func (a *app) empty(format string, args ...any) error {
	_, err := fmt.Fprintf(a.stdout, format+"\n", args...)
	return err
}

// more says that a list goes on.
func (a *app) more(next string) {
	if next != "" {
		fmt.Fprintf(a.stdout, "more: --after %s\n", next)
	}
}

func age(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return short(time.Since(at).Round(time.Second))
}
