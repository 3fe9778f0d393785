package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
)

func (a *app) planCommand() *cobra.Command {
	var without []string
	var add int
	cmd := &cobra.Command{
		Use: "plan GROUP", Short: "Show what would move, changing nothing", Args: nArgs(1, "GROUP"),
		Long: `Show what the next plans of a group would move, and why; what if instances were
gone, or so many more joined. Nothing is changed. Moves that even out the load are
made a few at a time: those marked "later" wait for the others.`,
		Example: `  miwnode plan shards
  miwnode plan shards --without node-1    # before it is taken away
  miwnode plan shards --add 2             # before two more join`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.output != "" && a.output != "json" {
				return usage(cmd, "-o is %q: it must be json", a.output)
			}
			if add < 0 {
				return usage(cmd, "--add is %d: it must not be negative", add)
			}
			c, err := a.client(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			req := api.PlanRequest{Add: add}
			for _, name := range without {
				i, err := a.instance(cmd.Context(), c, name)
				if err != nil {
					return err
				}
				req.Without = append(req.Without, i.InstanceID)
			}
			path := "/v1/groups/" + api.PathEscape(args[0]) + "/plan"
			raw, err := a.call(cmd.Context(), c, api.Request{Method: "POST", Path: path, Body: req}, nil)
			if err != nil {
				return a.unknown(cmd.Context(), c, err)
			}
			if a.output == "json" {
				_, err = a.stdout.Write(raw)
				return err
			}
			var plan api.Plan
			if err := json.Unmarshal(raw, &plan); err != nil {
				return err
			}
			called, err := a.namesIn(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			return a.showPlan(args[0], plan, called)
		},
		ValidArgsFunction: a.completeGroupNames,
	}
	cmd.Flags().StringVarP(&a.output, "output", "o", "", "json prints the answer exactly as it came")
	cmd.Flags().StringArrayVar(&without, "without", nil, "as if this instance were gone: its ID, the beginning of one, or a node's ID (repeatable)")
	cmd.Flags().IntVar(&add, "add", 0, "as if so many more instances had joined")
	return cmd
}

func (a *app) showPlan(group string, plan api.Plan, called names) error {
	if len(plan.Moves) == 0 {
		return a.empty("%s: nothing would move.", group)
	}
	t := newTable(a.stdout, "WORKLOAD", "FROM", "TO", "WHEN", "BECAUSE")
	later := 0
	for _, m := range plan.Moves {
		when := "now"
		if m.Later {
			when = "later"
			later++
		}
		t.row(m.Workload, cmpOr(called.name(m.From), "nobody"), cmpOr(called.name(m.To), "nobody"), when, called.in(m.Because))
	}
	if err := t.flush(); err != nil {
		return err
	}
	after := ""
	if later > 0 {
		after = fmt.Sprintf(", %d of them later", later)
	}
	return a.empty("%s: %d workloads would move%s. Nothing was changed.", group, len(plan.Moves), after)
}
