package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
)

func (a *app) drainCommand() *cobra.Command {
	var wait string
	m := marking{
		verb: "drain", short: "Have an instance finish what runs, take nothing new and hand everything over", expires: true,
		example: `  miwnode drain node-1 --reason deploy
  miwnode drain node-1 --wait        # until all has moved; says where to and with what gap
  miwnode drain node-1 --wait=2m`,
		watch: func() bool { return wait != "" },
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&wait, "wait", "", "wait until it holds nothing more, at most so long, and report what moved")
			cmd.Flags().Lookup("wait").NoOptDefVal = "forever"
		},
	}
	m.after = func(ctx context.Context, c *api.Client, i api.Instance, before *holdings) error {
		if before == nil {
			_, err := fmt.Fprintf(a.stdout, "%s: drains, %d leases to hand over (miwnode instances shows how far it is)\n", i.InstanceID, i.Leases)
			return err
		}
		if wait != "forever" {
			limit, err := time.ParseDuration(wait)
			if err != nil || limit <= 0 {
				return &exitError{exitUsage, fmt.Errorf("--wait is %q: it must be a duration such as 2m", wait)}
			}
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, limit, errWaitedEnough)
			defer cancel()
		}
		return a.watchDrain(ctx, c, i, before)
	}
	cmd := a.marking(m)
	check := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if wait != "" && wait != "forever" {
			if d, err := time.ParseDuration(wait); err != nil || d <= 0 {
				return usage(cmd, "--wait is %q: it must be a duration such as 2m", wait)
			}
		}
		return check(cmd, args)
	}
	return cmd
}

var errWaitedEnough = errors.New("the wait is over")

// holdings is what an instance held at a revision.
type holdings struct {
	revision uint64
	tokens   map[string]uint64 // by key
}

func (a *app) holdings(ctx context.Context, c *api.Client, instance string) (*holdings, error) {
	h := &holdings{tokens: map[string]uint64{}}
	for after := ""; ; {
		var page api.Leases
		q := url.Values{}
		if after != "" {
			q.Set("after", after)
		}
		if _, err := a.call(ctx, c, api.Request{Method: "GET", Path: "/v1/leases", Query: q}, &page); err != nil {
			return nil, err
		}
		if h.revision == 0 {
			h.revision = page.Revision
		}
		for _, l := range page.Leases {
			if l.Holder != nil && l.Holder.InstanceID == instance {
				h.tokens[l.Key] = l.Token
			}
		}
		if after = page.Next; after == "" {
			return h, nil
		}
	}
}

// move is how one key left a draining instance.
type move struct {
	ended time.Time
	to    string // instance or name of the next holder, "" if nobody waited
	token uint64 // of the next grant
	at    uint64 // revision
}

// watchDrain follows the events until the instance holds nothing, and reports.
func (a *app) watchDrain(ctx context.Context, c *api.Client, i api.Instance, h *holdings) error {
	began := time.Now()
	moves := map[string]*move{}
	gone := false
	left := maps.Clone(h.tokens)
	if len(left) > 0 {
		query := url.Values{"since": {strconv.FormatUint(h.revision, 10)}}
		err := c.Events(ctx, query, a.timeout, func(se api.StreamEvent) bool {
			var e api.Event
			if json.Unmarshal(se.Data, &e) != nil {
				return true
			}
			switch {
			case e.Type == "lease.granted" && e.InstanceID == i.InstanceID:
				left[e.Key] = e.Token // granted between the look and the mark
			case e.Type == "lease.granted" && moves[e.Key] != nil && moves[e.Key].at == e.Revision:
				moves[e.Key].to, moves[e.Key].token = cmpOr(e.Name, e.InstanceID), e.Token
			case e.Type == "lease.ended" && left[e.Key] == e.Token:
				delete(left, e.Key)
				moves[e.Key] = &move{ended: e.At, at: e.Revision}
			case e.Type == "instance.left" && e.InstanceID == i.InstanceID:
				gone = true
			}
			// The grant that follows an end comes in the same entry, right after it.
			return len(left) > 0 || a.grantMayFollow(ctx, c, e)
		})
		if err != nil {
			return a.drainUnfinished(ctx, err, left)
		}
	}
	return a.reportDrain(ctx, c, i, moves, time.Since(began), gone)
}

// grantMayFollow tells whether more events of this entry are to come: the ends
// of a session's leases and the grants of their waiters stand in one entry.
func (a *app) grantMayFollow(ctx context.Context, c *api.Client, e api.Event) bool {
	if e.Type != "lease.ended" {
		return false
	}
	var page api.Leases
	_, err := a.call(ctx, c, api.Request{Method: "GET", Path: "/v1/leases", Query: url.Values{"key": {e.Key}}}, &page)
	return err == nil && len(page.Leases) == 1 && page.Leases[0].AcquiredRevision == e.Revision
}

func (a *app) drainUnfinished(ctx context.Context, err error, left map[string]uint64) error {
	keys := slices.Sorted(maps.Keys(left))
	if len(keys) > 5 {
		keys = append(keys[:5], "…")
	}
	if errors.Is(context.Cause(ctx), errWaitedEnough) {
		return fmt.Errorf("the instance still holds %d leases (%s): it goes on draining, look at its log for what does not stop", len(left), strings.Join(keys, ", "))
	}
	if errors.Is(context.Cause(ctx), errInterrupted) {
		return &exitError{exitSignal + 2, fmt.Errorf("interrupted; the instance goes on draining and still holds %d leases", len(left))}
	}
	return err
}

// reportDrain says where each key went. The gap is what the history has
// measured: the time in which the key had no owner.
func (a *app) reportDrain(ctx context.Context, c *api.Client, i api.Instance, moves map[string]*move, took time.Duration, gone bool) error {
	if len(moves) == 0 {
		return a.empty("%s: drained, it held nothing.", i.InstanceID)
	}
	t := newTable(a.stdout, "KEY", "TO", "TOKEN", "GAP")
	moved, longest := 0, time.Duration(0)
	for _, key := range slices.Sorted(maps.Keys(moves)) {
		m := moves[key]
		if m.to == "" {
			t.row(key, "nobody waits for it", "", "")
			continue
		}
		gap, err := a.gap(ctx, c, key, m.token)
		if err != nil {
			return err
		}
		moved++
		longest = max(longest, gap)
		t.row(key, m.to, m.token, gap)
	}
	if err := t.flush(); err != nil {
		return err
	}
	end := "drained"
	if gone {
		end = "drained and gone"
	}
	return a.empty("%s: %s in %s; %d of %d leases moved, longest gap %s.", i.InstanceID, end, short(took), moved, len(moves), short(longest))
}

func (a *app) gap(ctx context.Context, c *api.Client, key string, token uint64) (time.Duration, error) {
	var history api.History
	q := url.Values{"key": {key}, "limit": {"100"}}
	if _, err := a.call(ctx, c, api.Request{Method: "GET", Path: "/v1/history", Query: q}, &history); err != nil {
		return 0, err
	}
	for _, e := range history.Entries {
		if e.Token == token {
			return time.Duration(e.Gap), nil
		}
	}
	return 0, nil
}

func cmpOr(s, or string) string {
	if s == "" {
		return or
	}
	return s
}

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
