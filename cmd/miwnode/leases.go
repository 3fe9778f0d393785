package main

import (
	"encoding/json"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
)

func (a *app) leasesCommand() *cobra.Command {
	var page paging
	var key, prefix string
	return a.reading(readCommand{
		use: "leases", short: "List who holds which key",
		example: `  miwnode leases
  miwnode leases --prefix shards/
  miwnode leases --key mailer -o json`,
		path: "/v1/leases",
		flags: func(cmd *cobra.Command) {
			page.flags(cmd)
			cmd.Flags().StringVar(&key, "key", "", "only this key")
			cmd.Flags().StringVar(&prefix, "prefix", "", "only keys that begin so")
			a.completeFlag(cmd, "key", a.completeKeys)
		},
		query: func([]string) url.Values {
			q := page.query()
			if key != "" {
				q.Set("key", key)
			}
			if prefix != "" {
				q.Set("prefix", prefix)
			}
			return q
		},
		show: func(raw []byte) error {
			var answer api.Leases
			if err := json.Unmarshal(raw, &answer); err != nil {
				return err
			}
			switch {
			case len(answer.Leases) == 0 && key != "":
				return a.empty("%q is free.", key)
			case len(answer.Leases) == 0 && page.after != "":
				return a.nothingAfter(page)
			case len(answer.Leases) == 0 && prefix != "":
				return a.empty("No key that begins with %q is held.", prefix)
			case len(answer.Leases) == 0:
				return a.empty("No leases are held. Try: miwnode exec%s --key demo -- sleep 60", a.where())
			}
			t := newTable(a.stdout, "KEY", "TOKEN", "STATE", "HOLDER", "WHO", "NODE", "SINCE", "TTL", "WAITERS", "TO")
			for _, l := range answer.Leases {
				name, who, node := "", "", ""
				if l.Holder != nil {
					name, who, node = holderName(l.Holder), whoOf(l), l.Holder.NodeID
				}
				t.row(l.Key, l.Token, l.State, name, who, node, age(l.AcquiredAt), l.TTL, l.Waiters, shortID(l.Successor))
			}
			if err := t.flush(); err != nil {
				return err
			}
			a.more(answer.Next)
			return nil
		},
	})
}

// whoOf is who in the holder's session has the lease: one of its runners or
// handles, whoever else asked, or the group that granted it.
func whoOf(l api.Lease) string {
	if l.Group != "" {
		return "group " + l.Group
	}
	return l.Holder.Who
}

// holderName is what a person calls a holder: its name, else its instance.
func holderName(h *api.Holder) string {
	if h.Name != "" {
		return h.Name
	}
	return shortID(h.InstanceID)
}
