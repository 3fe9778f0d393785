package worker

import (
	"cmp"
	"hash/fnv"
	"slices"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// Who drives a load, and when, is decided by each instance for itself, from the
// copy and from what it has seen: the lease of the load settles what they don't
// agree on. Nothing here has a clock.

// Times of the drive of a load.
const (
	// courtesy is what others leave to the instance that was asked to create
	// or reload a worker.
	courtesy = 100 * time.Millisecond
	// step is what each instance leaves to the one before it.
	step = 500 * time.Millisecond
	// bareFor is how long no instance may have the runtime of a worker.
	bareFor = 30 * time.Second
)

// Drivers of a load that die in a row, after which it fails, and after which it is
// suspected. It is more than the tries of a load: power that fails kills, too.
const (
	maxDeaths    = 5
	suspectAfter = 3
)

// candidate is a member of the group as far as it matters for a load.
type candidate struct {
	member   *fsm.Member // nil in what decide is told
	instance string
	takes    bool // it neither drains nor is cordoned
	provides bool // it has the runtime
}

// able are the members as they matter for a load that needs that; bare says
// that none of them provides it.
func able(members []candidate, need string) (all []candidate, bare bool) {
	bare = true
	all = make([]candidate, len(members))
	for i, m := range members {
		all[i] = candidate{instance: m.instance, takes: m.takes, provides: m.member.Provides(need)}
		bare = bare && !all[i].provides
	}
	return all, bare
}

// sighting is what an instance knows of a worker that is loading.
type sighting struct {
	driven bool      // somebody holds the lease of the load
	ours   bool      // this instance was asked to create or reload it
	fresh  bool      // somebody was, just now
	free   time.Time // since when nobody drives it
	bare   time.Time // since when nobody provides its runtime; zero: somebody does
}

// move is what an instance does about a worker that is loading.
type move uint8

const (
	toWait   move = iota // for a change of the state, or until a time
	toDrive              // the load
	toGiveUp             // it: no instance has the runtime
)

// decide says what self does about the loading of a worker, now or at the time
// that comes with toWait; a zero time means: at a change of the state. members
// are in the order in which they joined.
func decide(id, self string, members []candidate, s sighting, now time.Time) (move, time.Time) {
	if s.driven {
		return toWait, time.Time{}
	}
	if !s.bare.IsZero() {
		if judge(members) != self {
			return toWait, time.Time{}
		}
		return due(toGiveUp, s.bare.Add(bareFor), now)
	}
	n := place(id, self, members)
	if n < 0 {
		return toWait, time.Time{}
	}
	if s.ours {
		return toDrive, now
	}
	at := s.free.Add(time.Duration(n) * step)
	if s.fresh {
		at = at.Add(courtesy)
	}
	return due(toDrive, at, now)
}

func due(m move, at, now time.Time) (move, time.Time) {
	if now.Before(at) {
		return toWait, at
	}
	return m, now
}

// place is where self stands among those who can drive the load, -1 if it
// can't. Each worker has an order of its own, so that loads are spread.
func place(id, self string, members []candidate) int {
	n, mine, can := 0, score(id, self), false
	for _, m := range members {
		switch {
		case !m.takes || !m.provides:
		case m.instance == self:
			can = true
		case before(score(id, m.instance), m.instance, mine, self):
			n++
		}
	}
	if !can {
		return -1
	}
	return n
}

func before(a uint64, nameA string, b uint64, nameB string) bool {
	return cmp.Or(cmp.Compare(a, b), cmp.Compare(nameA, nameB)) < 0
}

func score(id, instance string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(instance))
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(id))
	return h.Sum64()
}

// deaths counts the drivers of the load of a worker that have died, one after the
// other and the last included: what they loaded may have killed them. Who gave the
// lease back, or closed, lived; who lost it and is still here, too. own is how many
// of the attempts are the asker's.
func deaths(v *fsm.View, w *fsm.Worker, own uint64) int {
	if w.Attempt-own <= w.Loaded+1 {
		return 0 // nobody has driven it before; to look further takes long
	}
	dead := make(map[string]bool) // by instance: each dies once
	for _, g := range slices.Backward(v.History(fsm.HistoryQuery{Key: fsm.LoadKey(w.ID)})) {
		switch g.EndReason {
		case fsm.EndCrashed, fsm.EndRestarted:
			dead[g.Who.InstanceID] = true
		case fsm.EndExpired:
			if _, lives := v.Instance(g.Who.InstanceID); !lives {
				dead[g.Who.InstanceID] = true
			}
		case fsm.EndReleased, fsm.EndClosed, fsm.EndMoved, fsm.EndRevoked:
			return len(dead)
		}
	}
	return len(dead)
}

// judge is who says that no instance has a runtime: the first member that
// takes work, else the first.
func judge(members []candidate) string {
	if i := slices.IndexFunc(members, func(m candidate) bool { return m.takes }); i >= 0 {
		return members[i].instance
	}
	if len(members) == 0 {
		return ""
	}
	return members[0].instance
}
