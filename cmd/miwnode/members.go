package main

import (
	"encoding/json"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
)

// paging is the flags of a list.
type paging struct {
	limit int
	after string
}

func (p *paging) flags(cmd *cobra.Command) {
	cmd.Flags().IntVar(&p.limit, "limit", 0, "at most so many entries (default 1000)")
	cmd.Flags().StringVar(&p.after, "after", "", "go on after this entry of an earlier answer")
}

func (p *paging) query() url.Values {
	q := url.Values{}
	if p.limit != 0 {
		q.Set("limit", strconv.Itoa(p.limit))
	}
	if p.after != "" {
		q.Set("after", p.after)
	}
	return q
}

func (a *app) membersCommand() *cobra.Command {
	var page paging
	return a.reading(readCommand{
		use: "members", short: "List the nodes of the cluster, who votes and who leads",
		example: `  miwnode members
  miwnode members -o json`,
		path: "/v1/members", flags: page.flags, query: func([]string) url.Values { return page.query() },
		show: func(raw []byte) error {
			var answer api.Members
			if err := json.Unmarshal(raw, &answer); err != nil {
				return err
			}
			if len(answer.Members) == 0 {
				return a.empty("No members: this node has neither founded nor joined a cluster yet.")
			}
			t := newTable(a.stdout, "NODE", "ADDRESS", "VOTES", "LEADS", "GOSSIP", "SEEN", "VERSION", "ZONE", "LABELS")
			for _, m := range answer.Members {
				seen := ""
				if m.LastContact != nil {
					seen = short(time.Duration(*m.LastContact)) + " ago"
				}
				t.row(m.NodeID, m.Addr, m.Voter, m.Leader, m.Gossip, seen, m.Version, m.Zone, m.Labels)
			}
			if err := t.flush(); err != nil {
				return err
			}
			a.more(answer.Next)
			return nil
		},
	})
}
