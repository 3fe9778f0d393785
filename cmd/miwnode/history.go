package main

import (
	"encoding/json"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/fsm"
)

func (a *app) historyCommand() *cobra.Command {
	var page paging
	var key string
	var since uint64
	return a.reading(readCommand{
		use: "history", short: "Show who held which key when, and the gaps between, the newest last",
		long: `Show who held which key when, the newest last. LEASE GAP is for how long the key
belonged to nobody before the grant, "-" where no grant before is known. It is about
leases: of a holder that expired, the work had stopped before its lease ended. For
how long nobody ran is not kept with each grant: the leader measures it where a key
passed on to who waited for it, and counts it in miw_handover_gap_seconds (/metrics).`,
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
			t := newTable(a.stdout, "KEY", "TOKEN", "HOLDER", "NODE", "FROM", "UNTIL", "ENDED", "LEASE GAP", "BY", "REASON")
			for _, e := range answer.Entries {
				ended, by, reason := ending(e)
				name := e.Name
				if name == "" {
					name = shortID(e.InstanceID)
				}
				t.row(e.Key, e.Token, name, e.NodeID, e.GrantedAt, e.EndedAt, ended, leaseGap(e), by, reason)
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

// ending is what became of a grant, who wanted it so, and why.
func ending(e api.HistoryEntry) (ended, by, reason string) {
	switch {
	case e.EndedAt.IsZero():
		return "holds it", e.By, e.Reason
	case e.EndReason == "slept": // a note beside the grant: for how long the holder's machine did
		return e.Reason, e.By, ""
	case e.EndReason == "moved" && e.By == fsm.ByPause: // it moved nowhere
		return "paused", "", e.Reason
	}
	return e.EndReason, e.By, e.Reason
}

// leaseGap is how long the key had belonged to nobody, "" where no grant before
// is known.
func leaseGap(e api.HistoryEntry) string {
	if e.FormerToken == 0 {
		return ""
	}
	return short(time.Duration(e.Gap))
}
