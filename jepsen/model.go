package jepsen

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// The lease register, one per key: free, or held under a token by somebody.
// Tokens only grow. A grant whose answer was lost has a token nobody knows
// until somebody reads it.

// register is the state of one key. The zero value is a key never granted.
type register struct {
	held  bool
	token uint64 // 0 while held: granted by an answer that was lost
	who   string // holder, "" if only its grant was seen
	max   uint64 // largest token known to have been granted
}

// is tells whether the present grant can be that of the token that s names.
func (r register) is(token uint64, s step) bool {
	return r.held && (r.token == token || r.token == 0 && token > r.max && s.before <= r.max)
}

// freed is the register after the grant of token has ended.
func (r register) freed(token uint64) register {
	return register{max: max(r.max, token)}
}

// kinds of operation that only the judge makes, from what was seen.
const (
	kindGranted Kind = "granted" // a grant that was seen, whoever asked for it
	kindEnded   Kind = "ended"   // a grant that was seen to have ended
)

// step is one operation on a register.
type step struct {
	kind    Kind
	key     string
	who     string
	token   uint64 // of release, granted, ended
	outcome Outcome
	got     uint64
	// before is the largest token known to have been granted that is smaller
	// than the one named here. Since tokens only grow, any order of the history
	// that is legal at all has granted it before this one: requiring that loses no
	// order and keeps the search from trying all others.
	before uint64
	// open: cut off before its return, so it may not have happened.
	open bool
}

func (s step) String() string {
	switch s.kind {
	case KindAcquire:
		return fmt.Sprintf("%s acquires: %s %d", s.who, s.outcome, s.got)
	case KindRead:
		return fmt.Sprintf("read: %d", s.got)
	}
	return fmt.Sprintf("%s %s %d: %s", s.who, s.kind, s.token, s.outcome)
}

// next returns every register that can follow; none: s can't happen now.
func (r register) next(s step) []register {
	if s.open {
		s.open = false
		return append(r.next(s), r)
	}
	grant := func(token uint64) []register {
		switch {
		case !r.held && token > r.max && s.before <= r.max:
			return []register{{held: true, token: token, who: s.who, max: token}}
		case r.is(token, s) && (r.who == s.who || r.who == "" || s.who == ""):
			// The same holder asks again (its first answer was lost), or a grant is seen twice.
			return []register{{held: true, token: token, who: cmp.Or(r.who, s.who), max: max(r.max, token)}}
		}
		return nil
	}
	switch s.kind {
	case KindAcquire:
		switch s.outcome {
		case OK:
			return grant(s.got)
		case Refused: // lease_held
			if r.held && (s.got == 0 || r.is(s.got, s)) {
				if s.got != 0 {
					return []register{{held: true, token: s.got, who: r.who, max: max(r.max, s.got)}}
				}
				return []register{r}
			}
			return nil
		default:
			if r.held {
				return []register{r}
			}
			return []register{r, {held: true, who: s.who, max: r.max}}
		}
	case KindRelease:
		switch s.outcome {
		case OK:
			if r.is(s.token, s) {
				return []register{r.freed(s.token)}
			}
			return nil
		case Refused: // stale_token
			if r.held && r.token == s.token {
				return nil
			}
			return []register{r}
		default:
			if r.is(s.token, s) {
				return []register{r, r.freed(s.token)}
			}
			return []register{r}
		}
	case KindRead:
		if s.got == 0 {
			if r.held {
				return nil
			}
			return []register{r}
		}
		if r.is(s.got, s) {
			return []register{{held: true, token: s.got, who: r.who, max: max(r.max, s.got)}}
		}
		return nil
	case kindGranted:
		return grant(s.token)
	case kindEnded:
		if r.is(s.token, s) {
			return []register{r.freed(s.token)}
		}
		return nil
	}
	return nil
}

// registerModel is the register for porcupine: a set of registers, since a lost
// answer leaves more than one possible.
func registerModel() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{register{}} },
		Step: func(state, input, _ any) []any {
			var all []any
			for _, r := range state.(register).next(input.(step)) {
				all = append(all, r)
			}
			return all
		},
		DescribeOperation: func(input, _ any) string { return input.(step).String() },
	}
	return m.ToModel()
}

// registerSteps turns what was seen of one key into operations of the model.
func registerSteps(h *History, key string) []porcupine.Operation {
	var ops []porcupine.Operation
	add := func(client int, s step, call, ret time.Duration) {
		s.key = key
		ops = append(ops, porcupine.Operation{ClientId: client, Input: s, Call: int64(call), Return: int64(ret)})
	}
	// Grants seen from outside: the earliest proof of each token.
	seen := map[uint64]time.Duration{}
	note := func(token uint64, at time.Duration) {
		if old, ok := seen[token]; !ok || at < old {
			seen[token] = at
		}
	}
	ended := map[uint64]time.Duration{} // first observed end
	for i := range h.Events {
		e := &h.Events[i]
		if e.Key != key {
			continue
		}
		switch e.Type {
		case eventGranted:
			note(e.Token, e.At)
		case eventEnded:
			note(e.Token, e.At)
			if old, ok := ended[e.Token]; !ok || e.At < old {
				ended[e.Token] = e.At
			}
		}
	}
	for i := range h.Runs {
		if r := &h.Runs[i]; r.Key == key && !h.unread(r) {
			note(r.Token, r.Start)
		}
	}
	called := map[uint64]time.Duration{} // call of the acquire that was answered with the token
	released := map[uint64]bool{}        // a release of it was answered ok
	for i := range h.Ops {
		o := &h.Ops[i]
		if o.Key != key {
			continue
		}
		switch {
		case o.Kind == KindAcquire && o.Outcome == OK:
			if old, ok := called[o.Got]; !ok || o.Call < old {
				called[o.Got] = o.Call
			}
			note(o.Got, o.Return)
		case o.Kind == KindRelease && o.Outcome == OK:
			released[o.Token] = true
		}
	}
	tokens := make([]uint64, 0, len(seen))
	for t := range seen {
		tokens = append(tokens, t)
	}
	slices.Sort(tokens)
	before := func(t uint64) uint64 {
		if i, _ := slices.BinarySearch(tokens, t); i > 0 {
			return tokens[i-1]
		}
		return 0
	}
	// Client operations. Those that say nothing about the register are left out.
	for i := range h.Ops {
		o := &h.Ops[i]
		if o.Key != key || o.Outcome == Failed {
			continue
		}
		if o.Outcome == Refused && !(o.Kind == KindAcquire && o.Code == "lease_held" || o.Kind == KindRelease && o.Code == "stale_token") {
			continue
		}
		switch o.Kind {
		case KindAcquire, KindRelease, KindRead:
			if o.Kind == KindRelease && o.Outcome == Uncertain {
				if _, ok := ended[o.Token]; ok {
					continue // seen to have ended: below, with a return
				}
			}
			add(o.Stream, step{kind: o.Kind, who: o.Who, token: o.Token, outcome: o.Outcome, got: o.Got, before: before(max(o.Got, o.Token))}, o.Call, o.Return)
		}
	}
	client := -1
	for _, t := range tokens {
		if _, ok := called[t]; ok {
			continue
		}
		// It can't have been granted before the clock began; nothing else is sure.
		add(client, step{kind: kindGranted, token: t, outcome: OK, before: before(t)}, 0, seen[t])
		client--
		if len(h.Events) == 0 {
			// Nobody watched: it may have ended at any time.
			add(client, step{kind: kindEnded, token: t, outcome: OK, before: before(t), open: true}, 0, Never)
			client--
		}
	}
	for t, at := range ended {
		if released[t] {
			continue
		}
		// Not before its grant was asked for.
		add(client, step{kind: kindEnded, token: t, outcome: OK, before: before(t)}, called[t], at)
		client--
	}
	// Porcupine wants small client IDs only for pictures; keep them unique and not negative.
	ids := map[int]int{}
	for i := range ops {
		id, ok := ids[ops[i].ClientId]
		if !ok {
			id = len(ids)
			ids[ops[i].ClientId] = id
		}
		ops[i].ClientId = id
	}
	return ops
}
