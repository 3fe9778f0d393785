package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/miwnode/miwnode/api"
)

// names is what people call instances: by the name that an HTTP session gave
// itself, or the node's ID, where one member of the group only is called so. What
// is no member any more is called by its node, and told apart by its ID.
type names struct {
	of   map[string]string
	text *strings.Replacer
}

func namesOf(g api.Group) names {
	n := names{of: map[string]string{}}
	often := map[string]int{}
	for _, m := range g.Members {
		name := m.NodeID
		if strings.HasPrefix(m.InstanceID, "http:") {
			name = cmpOr(m.Name, m.InstanceID)
		}
		n.of[m.InstanceID] = name
		often[name]++
	}
	var pairs []string
	for instance, name := range n.of {
		if often[name] > 1 {
			n.of[instance] = instance
			continue
		}
		pairs = append(pairs, instance, name)
	}
	gone := func(instance, node string) {
		if n.of[instance] == "" && instance != "" && !strings.HasPrefix(instance, "http:") {
			n.of[instance] = fmt.Sprintf("%s (%s)", node, shortID(instance))
			pairs = append(pairs, instance, n.of[instance])
		}
	}
	for _, p := range g.Pins {
		gone(p.InstanceID, p.NodeID)
	}
	for _, w := range g.Workloads {
		if last := w.LastOwner; last != nil {
			gone(last.InstanceID, last.NodeID)
		}
	}
	n.text = strings.NewReplacer(pairs...)
	return n
}

// nameOf is what people call an instance that is there.
func nameOf(i api.Instance) string {
	if strings.HasPrefix(i.InstanceID, "http:") {
		return cmpOr(i.Name, i.InstanceID)
	}
	return i.NodeID
}

// name is what the instance is called, its ID where it has no name here.
func (n names) name(instance string) string { return cmpOr(n.of[instance], instance) }

// in puts names in place of IDs in a sentence.
func (n names) in(sentence string) string { return n.text.Replace(sentence) }

// namesIn asks for the names of a group's members.
func (a *app) namesIn(ctx context.Context, c *api.Client, group string) (names, error) {
	var g api.Group
	_, err := a.call(ctx, c, api.Request{Method: "GET", Path: "/v1/groups/" + api.PathEscape(group)}, &g)
	return namesOf(g), err
}
