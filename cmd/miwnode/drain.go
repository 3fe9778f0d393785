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
		long: `Have an instance finish what runs, take nothing new and hand everything over.
What it holds by its own session is meant: runners, groups, singletons. Leases of
clients (exec, HTTP) that came in through its node are theirs and stay.`,
		example: `  miwnode drain node-1 --reason deploy
  miwnode drain node-1 --wait        # until all has moved; says where to, and how long nobody held it
  miwnode drain node-1 --wait=2m`,
		watch: func() bool { return wait != "" },
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&wait, "wait", "", "wait until it holds nothing more, at most so long, and report what moved")
			cmd.Flags().Lookup("wait").NoOptDefVal = "forever"
		},
	}
	m.after = func(ctx context.Context, c *api.Client, i api.Instance, before *holdings) error {
		if before == nil {
			h, err := a.holdings(ctx, c, i)
			if err != nil {
				return err
			}
			return a.empty("%s: drains, %s to hand over (miwnode instances shows how far it is)%s", shortID(i.InstanceID), count(uint64(i.Leases), "lease"), h.strangersStay())
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
	one := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 2 && wait == "forever" {
			if _, err := time.ParseDuration(args[1]); err == nil {
				return usage(cmd, "unexpected argument %q: write --wait=%s", args[1], args[1])
			}
		}
		return one(cmd, args)
	}
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
	granted  map[string]bool   // keys that a group granted
	strange  uint64            // leases of other sessions that came in through its node
}

// strangersStay says what a drain leaves alone.
func (h *holdings) strangersStay() string {
	switch h.strange {
	case 0:
		return ""
	case 1:
		return "; 1 lease of another session came in through this node and stays"
	}
	return fmt.Sprintf("; %d leases of other sessions came in through this node and stay", h.strange)
}

func (a *app) holdings(ctx context.Context, c *api.Client, i api.Instance) (*holdings, error) {
	h := &holdings{tokens: map[string]uint64{}, granted: map[string]bool{}}
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
			switch {
			case l.Holder == nil:
			case l.Holder.InstanceID == i.InstanceID:
				h.tokens[l.Key] = l.Token
				h.granted[l.Key] = l.Group != ""
			case l.Holder.NodeID == i.NodeID && !strings.HasPrefix(i.InstanceID, "http:"):
				h.strange++
			}
		}
		if after = page.Next; after == "" {
			return h, nil
		}
	}
}

// planGrace is how long the report waits for the planners of groups, who give
// what was freed to others, once the instance holds nothing.
const planGrace = 3 * time.Second

var errPlanGrace = errors.New("nobody was given the rest")

// departure is a drain as the events tell it.
type departure struct {
	instance string
	left     map[string]uint64 // held still: tokens by key
	ended    map[string]uint64 // revisions by key
	orphans  map[string]bool   // ended, of a group, and given to nobody yet
	granted  map[string]bool   // by a group, if it is known
	gone     bool              // the instance has left
}

// see takes an event and tells whether there is more to wait for.
func (d *departure) see(e api.Event) (more bool) {
	switch {
	case e.Type == "lease.granted" && e.InstanceID == d.instance:
		d.left[e.Key] = e.Token // between the look and the mark
	case e.Type == "lease.granted":
		delete(d.orphans, e.Key)
	case e.Type == "lease.ended" && d.left[e.Key] == e.Token:
		delete(d.left, e.Key)
		d.ended[e.Key] = e.Revision
		if d.granted[e.Key] {
			d.orphans[e.Key] = true
		}
	case e.Type == "instance.left" && e.InstanceID == d.instance:
		d.gone = true
	}
	return len(d.left) > 0 || len(d.orphans) > 0
}

// watchDrain follows the events until the instance holds nothing, and reports.
func (a *app) watchDrain(ctx context.Context, c *api.Client, i api.Instance, h *holdings) error {
	began := time.Now()
	took := time.Duration(0)
	d := &departure{instance: i.InstanceID, left: maps.Clone(h.tokens), ended: map[string]uint64{}, orphans: map[string]bool{}, granted: h.granted}
	if len(d.left) > 0 {
		follow, stop := context.WithCancelCause(ctx)
		defer stop(nil)
		var grace *time.Timer
		query := url.Values{"since": {strconv.FormatUint(h.revision, 10)}}
		err := c.Events(follow, query, a.timeout, func(se api.StreamEvent) bool {
			var e api.Event
			if json.Unmarshal(se.Data, &e) != nil {
				return true
			}
			more := d.see(e)
			if len(d.left) == 0 && took == 0 {
				took = time.Since(began)
				grace = time.AfterFunc(planGrace, func() { stop(errPlanGrace) })
			}
			return more
		})
		if grace != nil {
			grace.Stop()
		}
		if err != nil && !errors.Is(context.Cause(follow), errPlanGrace) {
			return a.drainUnfinished(ctx, err, d.left)
		}
	}
	return a.reportDrain(ctx, c, i, d, took, h.strangersStay())
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
// which nobody held the lease.
func (a *app) reportDrain(ctx context.Context, c *api.Client, i api.Instance, d *departure, took time.Duration, stays string) error {
	ended := d.ended
	if len(ended) == 0 {
		return a.empty("%s: drained, it held nothing%s.", shortID(i.InstanceID), stays)
	}
	t := newTable(a.stdout, "KEY", "TO", "TOKEN", "LEASE GAP")
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
		t.row(key, grantee(next), next.Token, time.Duration(next.Gap))
	}
	if err := t.flush(); err != nil {
		return err
	}
	end := "drained"
	if d.gone {
		end = "drained and gone"
	}
	if lost := uint64(len(ended) - moved); lost > 0 {
		verb := map[bool]string{true: "has", false: "have"}[lost == 1]
		stays = fmt.Sprintf("; WARNING: %s %s no owner now, what it covers runs nowhere (undrain it, or start another node that takes it)%s", count(lost, "lease"), verb, stays)
	}
	if moved > 0 {
		stays = ", longest gap between leases " + short(longest) + stays
	}
	return a.empty("%s: %s in %s; %d of %d leases moved%s.", shortID(i.InstanceID), end, short(took), moved, len(ended), stays)
}

// grantee is what people call who got a grant: its name, or its node.
func grantee(e *api.HistoryEntry) string {
	if strings.HasPrefix(e.InstanceID, "http:") || e.InstanceID == "" {
		return cmpOr(e.Name, e.InstanceID)
	}
	return e.NodeID
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
