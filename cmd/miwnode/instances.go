package main

import (
	"encoding/json"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
)

func (a *app) instancesCommand() *cobra.Command {
	var page paging
	return a.reading(readCommand{
		use: "instances", short: "List the instances that work can be assigned to, the earliest first",
		example: `  miwnode instances
  miwnode instances --consistency linearizable`,
		path: "/v1/instances", flags: page.flags, query: func([]string) url.Values { return page.query() },
		show: func(raw []byte) error {
			var answer api.Instances
			if err := json.Unmarshal(raw, &answer); err != nil {
				return err
			}
			if len(answer.Instances) == 0 && page.after != "" {
				return a.nothingAfter(page)
			}
			if len(answer.Instances) == 0 {
				return a.empty("No instances: no node has an open session.")
			}
			t := newTable(a.stdout, "INSTANCE", "NODE", "JOINED", "LEASES", "STATE", "BECAUSE", "ZONE", "LABELS")
			for _, i := range answer.Instances {
				state, because := instanceState(i)
				t.row(shortID(i.InstanceID), i.NodeID, i.JoinedAt, i.Leases, state, because, i.Zone, i.Labels)
			}
			if err := t.flush(); err != nil {
				return err
			}
			a.more(answer.Next)
			return nil
		},
	})
}

func instanceState(i api.Instance) (state, because string) {
	mark := i.Drain
	switch {
	case i.Draining && i.Cordoned:
		state = "draining, cordoned"
	case i.Draining:
		state = "draining"
	case i.Cordoned:
		state, mark = "cordoned", i.Cordon
	default:
		return "active", ""
	}
	if mark == nil {
		return state, ""
	}
	switch {
	case mark.By == "":
		return state, mark.Reason
	case mark.Reason == "":
		return state, "by " + mark.By
	}
	return state, mark.Reason + " (" + mark.By + ")"
}
