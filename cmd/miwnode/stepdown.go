package main

import (
	"context"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/fsm"
)

func (a *app) stepDownCommand() *cobra.Command {
	var req api.StepDownRequest
	cmd := &cobra.Command{
		Use: "step-down", Short: "Hand raft's leadership to another voter", Args: noArgs,
		Long: `Hand raft's leadership to another voter. Leases stay where they are: leadership
has nothing to do with who owns what.`,
		Example: `  miwnode step-down
  miwnode step-down --to node-2`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			if req.To != "" {
				leads, err := a.leads(cmd.Context(), c, req.To)
				if err != nil {
					return err
				}
				if leads {
					return a.empty("%s leads already; nothing to do", req.To)
				}
			}
			if _, err := a.call(cmd.Context(), c, api.Request{Method: "POST", Path: "/v1/raft/step-down", Body: req}, nil); err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.stdout, "the leader steps down; miwnode status shows who leads")
			return err
		},
	}
	cmd.Flags().StringVar(&req.To, "to", "", "the node that shall lead (default: whoever is furthest)")
	a.completeFlag(cmd, "to", a.completeNodes)
	return cmd
}

// leads tells whether a member leads; one that is none is an error.
func (a *app) leads(ctx context.Context, c *api.Client, node string) (bool, error) {
	for after := ""; ; {
		var page api.Members
		q := url.Values{}
		if after != "" {
			q.Set("after", after)
		}
		if _, err := a.call(ctx, c, api.Request{Method: "GET", Path: "/v1/members", Query: q}, &page); err != nil {
			return false, err
		}
		for _, m := range page.Members {
			if m.NodeID == node {
				return m.Leader, nil
			}
		}
		if after = page.Next; after == "" {
			return false, fsm.Errorf(fsm.CodeNotFound, "there is no node %q; miwnode members lists them", node)
		}
	}
}
