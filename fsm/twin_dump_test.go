package fsm_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"

	"github.com/miwnode/miwnode/fsm"
)

// dump and dumpView describe the same state in the same words.
func (t *twin) dump() (out []string) {
	for _, id := range slices.Sorted(maps.Keys(t.sessions)) {
		s := t.sessions[id]
		out = append(out, fmt.Sprintf("session %s %s changed=%d drain=%d cordon=%d", id, s.open.InstanceId, s.changed, s.marks["drain"], s.marks["cordon"]))
	}
	byOrder := slices.SortedFunc(maps.Values(t.sessions), func(a, b *twinSession) int { return cmp.Compare(a.order, b.order) })
	for _, s := range byOrder {
		if s.open.InstanceId != "" {
			out = append(out, "instance "+s.open.InstanceId)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(t.leases)) {
		l := t.leases[key]
		out = append(out, fmt.Sprintf("lease %s %d %s session=%s holder=%s to=%s by=%s group=%s granted=%d changed=%d asks=%v", key, l.token, l.state, l.session, l.holder, l.to, l.by, l.group, l.granted, l.changed, l.asks))
	}
	for _, key := range slices.Sorted(maps.Keys(t.queues)) {
		for _, w := range t.queues[key] {
			out = append(out, fmt.Sprintf("waiter %s %s %s", key, w.session, w.holder))
		}
	}
	out = append(out, t.dumpGroups()...)
	out = append(out, t.dumpWorkers()...)
	return append(out, slices.Sorted(slices.Values(t.ledger))...)
}

func dumpView(v *fsm.View, keys []string) (out []string) {
	revision := func(m *fsm.Mark) uint64 {
		if m == nil {
			return 0
		}
		return m.Revision
	}
	for s := range v.Sessions() {
		out = append(out, fmt.Sprintf("session %s %s changed=%d drain=%d cordon=%d", s.ID, s.InstanceID, s.ChangedRevision, revision(s.Drain), revision(s.Cordon)))
	}
	for s := range v.Instances() {
		out = append(out, "instance "+s.InstanceID)
	}
	for l := range v.Leases("", "") {
		out = append(out, fmt.Sprintf("lease %s %d %v session=%s holder=%s to=%s by=%s group=%s granted=%d changed=%d asks=%v", l.Key, l.Token, l.State, l.SessionID, l.Holder, l.Note.To, l.Note.By, l.Group, l.AcquiredRevision, l.ChangedRevision, l.Record().Asks))
	}
	sort.Strings(keys)
	for _, key := range keys {
		for w := range v.Waiters(key) {
			out = append(out, fmt.Sprintf("waiter %s %s %s", w.Key, w.SessionID, w.Holder))
		}
	}
	out = append(out, dumpGroups(v)...)
	out = append(out, dumpWorkers(v)...)
	entries := v.History(fsm.HistoryQuery{Limit: 1 << 30})
	var ledger []string
	for _, e := range entries {
		if e.EndedRevision != 0 {
			ledger = append(ledger, fmt.Sprintf("%s %d %s %d-%d %v", e.Key, e.Token, e.Who.InstanceID, e.GrantedRevision, e.EndedRevision, e.EndReason))
		}
	}
	sort.Strings(ledger)
	return append(out, ledger...)
}
