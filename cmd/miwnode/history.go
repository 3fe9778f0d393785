package main

import (
	"encoding/json"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
)

func (a *app) historyCommand() *cobra.Command {
	var page paging
	var key string
	var since uint64
	return a.reading(readCommand{
		use: "history", short: "Show who held which key when, and the gaps between, the newest last",
		example: `  miwnode history
  miwnode history --key mailer --limit 5`,
		path: "/v1/history",
		flags: func(cmd *cobra.Command) {
			page.flags(cmd)
			cmd.Flags().StringVar(&key, "key", "", "only this key")
			a.completeFlag(cmd, "key", a.completeKeys)
			cmd.Flags().Uint64Var(&since, "since", 0, "only what began or ended after this revision")
		},
		query: func([]string) url.Values {
			q := page.query()
			if key != "" {
				q.Set("key", key)
			}
			if since != 0 {
				q.Set("since", strconv.FormatUint(since, 10))
			}
			return q
		},
		show: func(raw []byte) error {
			var answer api.History
			if err := json.Unmarshal(raw, &answer); err != nil {
				return err
			}
			switch {
			case len(answer.Entries) == 0 && key != "":
				return a.empty("No history of %q: it was not granted%s.", key, map[bool]string{true: " after that revision"}[since != 0])
			case len(answer.Entries) == 0 && since != 0:
				return a.empty("No history after revision %d: nothing was granted or ended.", since)
			case len(answer.Entries) == 0:
				return a.empty("No history: nothing was granted yet.")
			}
			t := newTable(a.stdout, "KEY", "TOKEN", "HOLDER", "NODE", "FROM", "UNTIL", "ENDED", "GAP BEFORE", "BY")
			for _, e := range answer.Entries {
				ended := e.EndReason
				if e.EndedAt.IsZero() {
					ended = "holds it"
				}
				name := e.Name
				if name == "" {
					name = shortID(e.InstanceID)
				}
				t.row(e.Key, e.Token, name, e.NodeID, e.GrantedAt, e.EndedAt, ended, time.Duration(e.Gap), e.By)
			}
			if err := t.flush(); err != nil {
				return err
			}
			if answer.Next != "" {
				_ = a.empty("older: --after %s", answer.Next)
			}
			return nil
		},
	})
}
