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

// watchDrain follows the events until the instance holds nothing, and reports.
func (a *app) watchDrain(ctx context.Context, c *api.Client, i api.Instance, h *holdings) error {
	began := time.Now()
	left, ended := maps.Clone(h.tokens), map[string]uint64{} // by key: tokens, revisions
	gone := false
	if len(left) > 0 {
		query := url.Values{"since": {strconv.FormatUint(h.revision, 10)}}
		err := c.Events(ctx, query, a.timeout, func(se api.StreamEvent) bool {
			var e api.Event
			if json.Unmarshal(se.Data, &e) != nil {
				return true
			}
			switch {
			case e.Type == "lease.granted" && e.InstanceID == i.InstanceID:
				left[e.Key] = e.Token // between the look and the mark
			case e.Type == "lease.ended" && left[e.Key] == e.Token:
				delete(left, e.Key)
				ended[e.Key] = e.Revision
			case e.Type == "instance.left" && e.InstanceID == i.InstanceID:
				gone = true
			}
			return len(left) > 0
		})
		if err != nil {
			return a.drainUnfinished(ctx, err, left)
		}
	}
	return a.reportDrain(ctx, c, i, ended, time.Since(began), gone)
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

// reportDrain says where each key went, by the history: the gap is the time in
// which the key had no owner.
func (a *app) reportDrain(ctx context.Context, c *api.Client, i api.Instance, ended map[string]uint64, took time.Duration, gone bool) error {
	if len(ended) == 0 {
		return a.empty("%s: drained, it held nothing.", i.InstanceID)
	}
	t := newTable(a.stdout, "KEY", "TO", "TOKEN", "GAP")
	moved, longest := 0, time.Duration(0)
	for _, key := range slices.Sorted(maps.Keys(ended)) {
		next, err := a.grantAfter(ctx, c, key, ended[key])
		if err != nil {
			return err
		}
		if next == nil {
			t.row(key, "nobody waits for it", "", "")
			continue
		}
		moved++
		longest = max(longest, time.Duration(next.Gap))
		t.row(key, cmpOr(next.Name, next.InstanceID), next.Token, time.Duration(next.Gap))
	}
	if err := t.flush(); err != nil {
		return err
	}
	end := "drained"
	if gone {
		end = "drained and gone"
	}
	return a.empty("%s: %s in %s; %d of %d leases moved, longest gap %s.", i.InstanceID, end, short(took), moved, len(ended), short(longest))
}

// grantAfter is the grant of the key that followed the end at the revision, in
// the same entry of the log or later; nil if there is none.
func (a *app) grantAfter(ctx context.Context, c *api.Client, key string, revision uint64) (*api.HistoryEntry, error) {
	var history api.History
	q := url.Values{"key": {key}, "since": {strconv.FormatUint(revision-1, 10)}}
	if _, err := a.call(ctx, c, api.Request{Method: "GET", Path: "/v1/history", Query: q}, &history); err != nil {
		return nil, err
	}
	for _, e := range history.Entries {
		if e.GrantedRevision >= revision {
			return &e, nil
		}
	}
	return nil, nil
}

func cmpOr(s, or string) string {
	if s == "" {
		return or
	}
	return s
}

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
