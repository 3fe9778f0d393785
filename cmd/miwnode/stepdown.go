package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
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
			if _, err := a.call(cmd.Context(), c, api.Request{Method: "POST", Path: "/v1/raft/step-down", Body: req}, nil); err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.stdout, "the leader steps down; miwnode status shows who leads")
			return err
		},
	}
	cmd.Flags().StringVar(&req.To, "to", "", "the node that shall lead (default: whoever is furthest)")
	return cmd
}
