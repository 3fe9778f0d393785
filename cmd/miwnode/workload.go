package main

import (
	"context"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/fsm"
)

// workloadRef is a workload that an argument means.
type workloadRef struct {
	group string
	key   string
	state api.GroupWorkload
}

func (r workloadRef) String() string { return r.group + "/" + r.key }

// path is where the group's calls are.
func (r workloadRef) path(call string) string {
	return "/v1/groups/" + api.PathEscape(r.group) + "/" + call
}

const workloadArg = "WORKLOAD (GROUP/WORKLOAD, or the workload alone where one group only has it)"

// workload finds what a person means by GROUP/WORKLOAD, or by the key alone
// where one group only has it. The full name comes first: it can't mean two.
func (a *app) workload(ctx context.Context, c *api.Client, name string) (workloadRef, error) {
	if group, key, full := strings.Cut(name, "/"); full {
		found, err := a.workloadsOf(ctx, c, key)
		if err != nil {
			return workloadRef{}, err
		}
		for _, r := range found {
			if r.group == group {
				return r, nil
			}
		}
	}
	found, err := a.workloadsOf(ctx, c, name)
	if err != nil {
		return workloadRef{}, err
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return workloadRef{}, a.unknown(ctx, c, fsm.Errorf(fsm.CodeNotFound, "no group has a workload %q; miwnode groups GROUP lists those of one", name))
	}
	var names []string
	for _, r := range found {
		names = append(names, r.String())
	}
	return workloadRef{}, fsm.Errorf(fsm.CodeInvalidArgument, "%q is in %d groups; write one of %s", name, len(names), strings.Join(names, ", "))
}

// workloadsOf is the workload of that key in each group that has it.
func (a *app) workloadsOf(ctx context.Context, c *api.Client, key string) ([]workloadRef, error) {
	if key == "" {
		return nil, nil
	}
	groups, err := a.allGroups(ctx, c, url.Values{"workload": {key}})
	if err != nil {
		return nil, err
	}
	var found []workloadRef
	for _, g := range groups {
		for _, w := range g.Workloads {
			found = append(found, workloadRef{g.Name, w.Key, w})
		}
	}
	return found, nil
}

func (a *app) allGroups(ctx context.Context, c *api.Client, query url.Values) ([]api.Group, error) {
	var all []api.Group
	for {
		var page api.Groups
		if _, err := a.call(ctx, c, api.Request{Method: "GET", Path: "/v1/groups", Query: query}, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Groups...)
		if page.Next == "" {
			return all, nil
		}
		query.Set("after", page.Next)
	}
}

// completeWorkloads completes full names.
func (a *app) completeWorkloads(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.completeGroups(cmd, args, func(g api.Group) (names []string) {
		for _, w := range g.Workloads {
			names = append(names, g.Name+"/"+w.Key)
		}
		return names
	})
}

func (a *app) completeGroupNames(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return a.completeGroups(cmd, args, func(g api.Group) []string { return []string{g.Name} })
}

func (a *app) completeGroups(cmd *cobra.Command, args []string, of func(api.Group) []string) ([]string, cobra.ShellCompDirective) {
	c, err := a.client(cmd)
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	groups, err := a.allGroups(cmd.Context(), c, url.Values{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, g := range groups {
		names = append(names, of(g)...)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
