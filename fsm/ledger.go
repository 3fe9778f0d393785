package fsm

import (
	"cmp"
	"slices"
	"time"
)

// LedgerEntry is one grant of the ownership history, or a note about one: the word
// of the leader that its run overlapped with one of an earlier grant (EndOverlap),
// or of its holder that the machine slept (EndSlept).
type LedgerEntry struct {
	Key             string
	Token           uint64
	Who             *Identity // never nil
	GrantedAt       int64     // stamp, Unix nanoseconds
	GrantedRevision uint64
	EndedAt         int64  // stamp; 0 = still open
	EndedRevision   uint64 // 0 = still open
	EndReason       EndReason
	Note            *Note // never nil
	// Former is the token of the key's grant before this one; 0 when there was none
	// or it has left the ring. It is computed when read.
	Former uint64
	// Gap is how long the key had belonged to nobody when it was granted, by
	// stamps. It is computed when read, from the entry of the key's former grant;
	// 0 when that has left the ring, and when one entry ended the former grant
	// and made this one.
	Gap time.Duration
}

// HistoryQuery selects entries of the ledger.
type HistoryQuery struct {
	Key   string // "" = all keys
	Since uint64 // only grants that began or ended after this revision
	Limit int    // the newest so many; <= 0 = 1000
}

const defaultHistoryLimit = 1000

// History returns grants, the newest last, open ones included. It looks at the
// whole ledger and, without a key, at all leases.
func (v *View) History(q HistoryQuery) []*LedgerEntry {
	var out []*LedgerEntry
	for e := range v.ledger.from(0) {
		if (q.Key == "" || q.Key == e.Key) && e.EndedRevision > q.Since {
			out = append(out, e)
		}
	}
	open := func(l *Lease) {
		if l.State == Barred || l.AcquiredRevision <= q.Since {
			return
		}
		out = append(out, &LedgerEntry{
			Key:             l.Key,
			Token:           l.Token,
			Who:             l.Who,
			GrantedAt:       l.AcquiredAt,
			GrantedRevision: l.AcquiredRevision,
			Note:            l.Note,
		})
	}
	if q.Key == "" {
		for l := range v.Leases("", "") {
			open(l)
		}
	} else if l, ok := v.Lease(q.Key); ok {
		open(l)
	}
	slices.SortStableFunc(out, func(a, b *LedgerEntry) int { return cmp.Compare(a.Token, b.Token) })
	limit := q.Limit
	if limit <= 0 {
		limit = defaultHistoryLimit
	}
	if len(out) > limit {
		out = out[len(out)-limit:]
	}
	return v.withGaps(out)
}

// withGaps returns copies of entries with their gaps. The ledger holds the
// grants of a key in order, so going back the first older one is the former.
func (v *View) withGaps(entries []*LedgerEntry) []*LedgerEntry {
	open := make(map[string][]*LedgerEntry, len(entries)) // without a former grant as yet, newest last
	out := make([]*LedgerEntry, len(entries))
	for i, e := range entries {
		c := *e
		out[i] = &c
		if c.EndReason.ends() {
			open[c.Key] = append(open[c.Key], &c)
		}
	}
	for i := v.ledger.len() - 1; i >= 0 && len(open) > 0; i-- {
		former := v.ledger.at(i)
		waiting := open[former.Key]
		n := len(waiting)
		if !former.EndReason.ends() || n == 0 || waiting[n-1].Token <= former.Token {
			continue
		}
		e := waiting[n-1]
		e.Former = former.Token
		e.Gap = max(0, time.Duration(e.GrantedAt-former.EndedAt))
		if n == 1 {
			delete(open, former.Key)
		} else {
			open[former.Key] = waiting[:n-1]
		}
	}
	return out
}
