package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
)

func (a *app) whyCommand() *cobra.Command {
	var called names
	cmd := a.reading(readCommand{
		use: "why WORKLOAD", short: "Explain why a workload is where it is, or nowhere",
		example: `  miwnode why shards/a
  miwnode why a -o json`,
		args: nArgs(1, workloadArg),
		find: func(ctx context.Context, c *api.Client, args []string) (string, url.Values, error) {
			r, err := a.workload(ctx, c, args[0])
			if err != nil {
				return "", nil, err
			}
			called, err = a.namesIn(ctx, c, r.group)
			return r.path("why"), url.Values{"workload": {r.key}}, err
		},
		show: func(raw []byte) error {
			var why api.Why
			if err := json.Unmarshal(raw, &why); err != nil {
				return err
			}
			return a.showWhy(why, called)
		},
	})
	cmd.ValidArgsFunction = a.completeWorkloads
	return cmd
}

func (a *app) showWhy(why api.Why, called names) error {
	where := "nobody has it"
	switch {
	case why.Owner != "" && why.Successor != "":
		where = fmt.Sprintf("on %s, goes to %s", called.name(why.Owner), called.name(why.Successor))
	case why.Owner != "":
		where = "on " + called.name(why.Owner)
	}
	fmt.Fprintf(a.stdout, "%s/%s is %s: %s.\n", why.Group, why.Workload, why.Status, where)
	for _, because := range why.Because {
		fmt.Fprintf(a.stdout, "  %s\n", called.in(because))
	}
	fmt.Fprintln(a.stdout)
	if len(why.Instances) == 0 {
		return a.empty("The group has no members that could have it.")
	}
	t := newTable(a.stdout, "MEMBER", "CAN", "BECAUSE", "INSTANCE")
	for _, i := range why.Instances {
		t.row(called.name(i.InstanceID), map[bool]string{true: "yes", false: "no"}[i.Can], called.in(i.Because), shortID(i.InstanceID))
	}
	return t.flush()
}
