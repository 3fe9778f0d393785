package main

import (
	"encoding/json"
	"errors"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
)

// paging is the flags of a list.
type paging struct {
	limit positive
	after string
}

// positive is a flag's whole number from 1; 0 where it was not given.
type positive int

func (p *positive) Type() string { return "number" }

func (p *positive) String() string {
	if *p == 0 {
		return ""
	}
	return strconv.Itoa(int(*p))
}

func (p *positive) Set(s string) error {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 1 {
		return errors.New("must be a whole number from 1")
	}
	*p = positive(n)
	return nil
}

func (p *paging) flags(cmd *cobra.Command) {
	cmd.Flags().Var(&p.limit, "limit", "at most so many entries (default 1000)")
	cmd.Flags().StringVar(&p.after, "after", "", "go on after this entry of an earlier answer")
}

func (p *paging) query() url.Values {
	q := url.Values{}
	if p.limit != 0 {
		q.Set("limit", p.limit.String())
	}
	if p.after != "" {
		q.Set("after", p.after)
	}
	return q
}

// nothingAfter says that a list has nothing behind --after.
func (a *app) nothingAfter(p paging) error {
	return a.empty("There is nothing after %q.", p.after)
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
			if len(answer.Members) == 0 && page.after != "" {
				return a.nothingAfter(page)
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
