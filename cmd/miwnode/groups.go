package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
)

func (a *app) groupsCommand() *cobra.Command {
	var page paging
	one := false
	cmd := a.reading(readCommand{
		use: "groups [GROUP]", short: "List the groups of workloads, or the workloads of one and who runs them",
		example: `  miwnode groups
  miwnode groups shards
  miwnode groups shards -o json`,
		args:  atMostOne,
		flags: page.flags,
		find: func(_ context.Context, _ *api.Client, args []string) (string, url.Values, error) {
			if one = len(args) == 1; one {
				return "/v1/groups/" + api.PathEscape(args[0]), page.query(), nil
			}
			return "/v1/groups", page.query(), nil
		},
		show: func(raw []byte) error {
			if one {
				var g api.Group
				if err := json.Unmarshal(raw, &g); err != nil {
					return err
				}
				return a.showGroup(g, page)
			}
			var answer api.Groups
			if err := json.Unmarshal(raw, &answer); err != nil {
				return err
			}
			return a.showGroups(answer, page)
		},
	})
	cmd.ValidArgsFunction = a.completeGroupNames
	cmd.AddCommand(a.deleteGroupCommand())
	return cmd
}

func (a *app) deleteGroupCommand() *cobra.Command {
	var req api.DeleteGroupRequest
	cmd := &cobra.Command{
		Use: "delete GROUP", Short: "Forget a group that has no members",
		Long: `Forget a group, its pins and its pauses. It is refused while the group has members,
or a workload of it is still running: end the programs that are in it first. One
that joins later makes the group anew.`,
		Example: "  miwnode groups delete shards",
		Args:    nArgs(1, "GROUP"), ValidArgsFunction: a.completeGroupNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			if err := checkWords(cmd, req.By, ""); err != nil {
				return err
			}
			req.By = cmpOr(req.By, a.author())
			if _, err := a.call(cmd.Context(), c, api.Request{Method: "DELETE", Path: "/v1/groups/" + api.PathEscape(args[0]), Body: req}, nil); err != nil {
				return err
			}
			return a.empty("%s: deleted", args[0])
		},
	}
	cmd.Flags().StringVar(&req.By, "by", "", "who asks (default: user@host)")
	return cmd
}

func atMostOne(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usage(cmd, "unexpected argument %q", args[1])
	}
	if slices.Contains(args, "") {
		return usage(cmd, "the argument is empty")
	}
	return nil
}

func (a *app) showGroups(answer api.Groups, page paging) error {
	if len(answer.Groups) == 0 && page.after != "" {
		return a.nothingAfter(page)
	}
	if len(answer.Groups) == 0 {
		return a.empty("No groups: no instance has declared workloads. A file of them does it: miwnode start --group shards.yaml")
	}
	t := newTable(a.stdout, "GROUP", "ASSIGNER", "MEMBERS", "WORKLOADS", "ACTIVE", "OTHERS", "PLANNER")
	for _, g := range answer.Groups {
		total := 0
		for _, n := range g.Counts {
			total += n
		}
		t.row(g.Name, g.Assigner, len(g.Members), total, g.Counts["active"], others(g.Counts), plannerOf(g, namesOf(g)))
	}
	if err := t.flush(); err != nil {
		return err
	}
	a.more(answer.Next)
	return nil
}

// others counts what is not active, the worst first.
func others(counts map[string]int) string {
	var parts []string
	for _, status := range []string{"stuck", "failed", "inactive", "transferring", "paused"} {
		if n := counts[status]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, status))
		}
	}
	return strings.Join(parts, ", ")
}

func plannerOf(g api.Group, called names) string {
	switch {
	case g.Planner != "":
		return cmpOr(called.of[g.Planner], shortID(g.Planner))
	case len(g.Members) == 0:
		return "nobody: no members"
	}
	return "nobody yet"
}

func (a *app) showGroup(g api.Group, page paging) error {
	called := namesOf(g)
	head := newTable(a.stdout, "group", g.Name)
	head.row("assigner", g.Assigner)
	head.row("rebalance", g.Rebalance)
	head.row("planner", plannerOf(g, called))
	planned := age(g.PlannedAt) + " ago"
	switch {
	case g.PlannedAt.IsZero():
		planned = "never"
	case g.PlannedInputs < g.Inputs:
		planned += ", a new plan is due"
	}
	head.row("planned", planned)
	if err := head.flush(); err != nil {
		return err
	}
	fmt.Fprintln(a.stdout)
	if err := a.showMembers(g, called); err != nil {
		return err
	}
	fmt.Fprintln(a.stdout)
	return a.showWorkloads(g, called, page)
}

func (a *app) showMembers(g api.Group, called names) error {
	if len(g.Members) == 0 {
		return a.empty("No members: nothing runs until an instance joins (miwnode start --group FILE, a coordinator in Go, or POST /v1/groups/%s/join).", g.Name)
	}
	t := newTable(a.stdout, "MEMBER", "WORKLOADS", "DECLARES", "CAPACITY", "STATE", "ZONE", "JOINED", "INSTANCE")
	for _, m := range g.Members {
		capacity := ""
		if m.Capacity > 0 {
			capacity = fmt.Sprint(m.Capacity)
		}
		state, _ := instanceState(api.Instance{Draining: m.Draining, Cordoned: m.Cordoned})
		t.row(called.name(m.InstanceID), m.Workloads, m.Declares, capacity, state, m.Zone, m.JoinedAt, shortID(m.InstanceID))
	}
	return t.flush()
}

func (a *app) showWorkloads(g api.Group, called names, page paging) error {
	if len(g.Workloads) == 0 && page.after != "" {
		return a.nothingAfter(page)
	}
	if len(g.Workloads) == 0 {
		return a.empty("No workloads: no member declares any, and none were put.")
	}
	t := newTable(a.stdout, "WORKLOAD", "STATUS", "OWNER", "TOKEN", "SINCE", "TO", "BECAUSE")
	for _, w := range g.Workloads {
		token := ""
		if w.Token != 0 {
			token = fmt.Sprint(w.Token)
		}
		t.row(w.Key, w.Status, called.name(w.Owner), token, age(w.Since), called.name(w.Successor), remark(w, called))
	}
	if err := t.flush(); err != nil {
		return err
	}
	a.more(g.Next)
	return nil
}

// remark is what there is to say of a workload.
func remark(w api.GroupWorkload, called names) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if w.Pause != nil {
		add("paused%s%s", expiry(w.Pause.At, w.Pause.ExpiresIn), said(w.Pause.Reason, w.Pause.By))
	}
	if w.Pin != nil {
		add("pinned to %s%s%s", called.name(w.Pin.InstanceID), expiry(w.Pin.At, w.Pin.ExpiresIn), said(w.Pin.Reason, w.Pin.By))
	}
	switch {
	case w.Stuck != nil:
		add("does not stop since %s", age(w.Stuck.At))
	case w.Preparing:
		add("the successor prepares")
	case w.Status == "transferring" && w.Pause == nil:
		add("told to stop%s", said(w.Reason, w.By))
	}
	if f := w.Failure; f != nil {
		times := "once"
		if f.Count > 1 {
			times = fmt.Sprintf("%d times, last", f.Count)
		}
		add("failed %s on %s: %s", times, called.name(f.InstanceID), f.Error)
	}
	return strings.Join(parts, "; ")
}

// said is a reason and who gave it.
func said(reason, by string) string {
	switch {
	case reason != "" && by != "":
		return fmt.Sprintf(": %s (%s)", reason, by)
	case reason != "":
		return ": " + reason
	case by != "":
		return " by " + by
	}
	return ""
}

// expiry is when a mark ends by itself, "" if it does not.
func expiry(at time.Time, d api.Duration) string {
	if d == 0 {
		return ""
	}
	return " until " + hour(at.Add(time.Duration(d)), time.Now())
}

// hour is a time of today, or of another day with its date.
func hour(t, now time.Time) string {
	t, now = t.UTC(), now.UTC()
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format("15:04:05Z")
	}
	return t.Format("2006-01-02 15:04:05Z")
}
