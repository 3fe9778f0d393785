package fsm_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/fsm/fsmpb"
)

// generator makes random entries in a small world, so that commands meet.
type generator struct {
	r     *rand.Rand
	twin  *twin // to name tokens and revisions that exist
	boots map[string]uint64
	seq   map[string]uint64
	sent  []*fsm.Proposal // to repeat
	// groups: half of the commands are of groups and jobs, and strangers want
	// the keys of workloads.
	groups bool
	// workers: of the others half are of workers, and on the way the cluster is
	// raised to the version that knows them.
	workers bool
}

var (
	twinKeys      = []string{"k1", "k2", "k3", "k4"}
	twinGroupKeys = []string{"g/w1", "g/w2", "g/w3", "g/w4", "h/w1", "h/w3", "k1"}
)

func pick[T any](g *generator, from []T) T { return from[g.r.IntN(len(from))] }

func newGenerator(seed uint64) *generator {
	g := &generator{r: rand.New(rand.NewPCG(seed, 1)), twin: newTwin(), boots: map[string]uint64{}, seq: map[string]uint64{}}
	g.groups, g.workers = seed%2 == 1, seed%4 == 3
	g.twin.version = 1
	switch {
	case g.workers:
		g.twin.version = 2
	case g.groups:
		g.twin.version = 3
	}
	return g
}

// keys are all that anybody may wait for.
func (g *generator) keys() []string {
	switch {
	case g.workers:
		return slices.Concat(twinGroupKeys, twinWorkerKeys)
	case g.groups:
		return twinGroupKeys
	}
	return twinKeys
}

func (g *generator) session() string { return pick(g, []string{"a", "b", "c", "d", "e"}) }

func (g *generator) token(key string) uint64 {
	if l := g.twin.leases[key]; l != nil && g.r.IntN(8) != 0 {
		return l.token
	}
	return token(uint64(1 + g.r.IntN(10)))
}

func (g *generator) termOf() uint64 {
	if g.r.IntN(6) == 0 {
		return g.twin.term - 1
	}
	return g.twin.term
}

func (g *generator) op() fsm.Op {
	key, s := pick(g, g.keys()), g.session()
	if g.groups && g.r.IntN(3) != 0 {
		return g.groupOp()
	}
	holder := pick(g, []string{"", "", "h"})
	ask := uint64(g.r.IntN(4))
	switch g.r.IntN(26) {
	case 0, 1, 2:
		if g.r.IntN(3) == 0 {
			open := &fsm.OpenSession{SessionId: s, TtlMs: 10_000}
			if g.r.IntN(2) == 0 {
				open.InstanceId = "client-" + s
			}
			return open
		}
		node := pick(g, []string{"n1", "n2", "n3"})
		boot := 1 + g.boots[node]
		if g.r.IntN(3) == 0 {
			boot = max(1, g.boots[node])
		}
		g.boots[node] = max(boot, g.boots[node])
		return &fsm.OpenSession{SessionId: s, TtlMs: 10_000, NodeId: node, Boot: boot, Nonce: "x", InstanceId: fmt.Sprintf("%s-%d", node, boot), RestartProved: g.r.IntN(2) == 0}
	case 3:
		if g.groups && g.r.IntN(3) != 0 {
			return g.groupOp() // sessions live longer
		}
		return &fsm.CloseSession{SessionId: s, Reason: pick(g, closeReasons)}
	case 4:
		if g.groups && g.r.IntN(3) != 0 {
			return g.groupOp()
		}
		return &fsm.ExpireSession{SessionId: s, Term: g.termOf()}
	case 5, 6, 7, 8, 9, 10, 11, 12:
		if g.groups { // few strangers, so that groups get their keys
			key = pick(g, []string{"k1", "k1", "k1", "g/w1"})
			if g.workers && g.r.IntN(2) == 0 {
				key = fsm.LoadKey(pick(g, twinWorkerIDs))
			}
		}
		return &fsm.Acquire{Key: key, SessionId: s, Holder: holder, Wait: g.r.IntN(3) != 0, LockDelayMs: int64(g.r.IntN(2)) * 1000, Ask: ask}
	case 13, 14:
		return &fsm.CancelWait{Key: key, SessionId: s, Holder: holder, Ask: ask}
	case 15, 16, 17:
		if l := g.twin.leases[key]; l != nil && l.session != "" && g.r.IntN(4) != 0 {
			s = l.session
		}
		release := &fsm.Release{Key: key, Token: g.token(key), SessionId: s}
		if g.groups && g.r.IntN(3) == 0 {
			release.Failure = "failed"
		}
		return release
	case 18, 19:
		to := "n1-1"
		if w := g.twin.queues[key]; len(w) > 0 {
			if s := g.twin.sessions[pick(g, w).session]; s.open.InstanceId != "" {
				to = s.open.InstanceId
			}
		}
		return &fsm.Transfer{Key: key, Token: g.token(key), ToInstance: to}
	case 20:
		return &fsm.Revoke{Key: key, Token: g.token(key)}
	case 21:
		return &fsm.FreeRevoked{Key: key, Token: g.token(key), Term: g.termOf()}
	case 22:
		return &fsm.LiftBar{Key: key, Token: g.token(key), Term: g.termOf()}
	}
	m := &fsm.MarkInstance{InstanceId: "n2-1", Mark: pick(g, marks)}
	if g.groups && g.r.IntN(2) == 0 {
		m.Mark = fsm.MarkUndrain
	}
	if s := g.twin.sessions[s]; s != nil && s.open.InstanceId != "" {
		m.InstanceId = s.open.InstanceId
		if revision := s.marks["drain"]; (m.Mark == fsm.MarkUndrain || m.Mark == fsm.MarkUncordon) && revision != 0 && g.r.IntN(2) == 0 {
			m.MarkedRevision, m.Term = revision, g.termOf()
		}
	}
	return m
}

var closeReasons = []fsmpb.EndReason{fsm.CloseClosed, fsm.CloseCrashed}

var marks = []fsmpb.Mark{fsm.MarkDrain, fsm.MarkUndrain, fsm.MarkUndrain, fsm.MarkCordon, fsm.MarkUncordon, fsm.MarkUncordon}

func (g *generator) proposal() *fsm.Proposal {
	if len(g.sent) > 0 && g.r.IntN(6) == 0 && (!g.groups || g.r.IntN(5) == 0) {
		return pick(g, g.sent) // a retry, maybe a very late one
	}
	node := pick(g, []string{"p1", "p2"})
	p := &fsm.Proposal{NodeId: node, Boot: 1 + g.twin.index/100}
	for range 1 + g.r.IntN(3) {
		c := fsm.NewCommand(g.op())
		if g.r.IntN(3) != 0 {
			g.seq[node]++
			c.Seq = g.seq[node]
			if g.r.IntN(10) == 0 {
				c.Seq += 3 // out of order
			}
		}
		if g.r.IntN(5) == 0 && (!g.groups || g.r.IntN(4) == 0) {
			c.IdempotencyKey = fmt.Sprintf("i%d", g.r.IntN(6))
			c.IdempotencyHash = []byte(strings.Repeat(pick(g, []string{"1", "1", "1", "2"}), 32))
		}
		p.Commands = append(p.Commands, c)
	}
	if g.seq[node] > 5 {
		p.LowWater = g.seq[node] - uint64(g.r.IntN(5))
	}
	g.sent = append(g.sent, p)
	return p
}

var histories = flag.Int("histories", 60, "how many random histories TestTwin compares")

// State and twin agree on every answer, event and record of random histories;
// going on from a snapshot at any point changes nothing; and a View that was
// taken on the way is the same at the end.
func TestTwin(t *testing.T) {
	n := *histories
	if testing.Short() {
		n = 15
	}
	for seed := range n {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { compareTwin(t, uint64(seed), 300) })
	}
}

func compareTwin(t *testing.T, seed uint64, entries int) {
	g := newGenerator(seed)
	l := newLogbook(t)
	l.term = 2
	other := fsm.NewState() // never restored
	replay(t, other, 1, 1, l.stamp, []*fsm.Proposal{{Commands: []*fsm.Command{fsm.NewCommand(&fsm.InitCluster{ClusterId: "c1", Version: 1})}}})
	g.twin.index, g.twin.term, g.twin.lastSeen = 1, 2, l.stamp
	keys := g.keys()
	if g.groups {
		raise := &fsm.SetVersion{Version: g.twin.version}
		l.done(raise)
		replay(t, other, l.index, l.term, l.stamp, []*fsm.Proposal{{Commands: []*fsm.Command{fsm.NewCommand(raise)}}})
	}
	type kept struct {
		view *fsm.View
		hash [32]byte
	}
	var views []kept
	if g.groups {
		entries *= 2
	}
	for range entries {
		l.stamp += g.r.Int64N(int64(20 * time.Second))
		if g.r.IntN(40) == 0 {
			l.stamp -= int64(time.Minute)
		}
		if g.r.IntN(30) == 0 {
			l.term++
			g.twin.term = l.term
		}
		var proposals []*fsm.Proposal
		for range 1 + g.r.IntN(2) {
			proposals = append(proposals, g.proposal())
		}
		g.twin.events = nil
		want := g.twin.apply(l.index+1, l.term, l.stamp, proposals)
		got := l.batch(proposals...)
		compareAnswers(t, l.index, proposals, got, want)
		var events []string
		for i, e := range got.Events {
			if want := (fsm.EventID{Revision: l.index, Position: uint32(i + 1)}); e.ID != want {
				t.Errorf("event %v, want %v", e.ID, want)
			}
			events = append(events, twinEventLine(e))
		}
		equalLines(t, fmt.Sprintf("events of entry %d", l.index), events, g.twin.events)
		replay(t, other, l.index, l.term, l.stamp, proposals)
		switch g.r.IntN(12) {
		case 0:
			l.state = reload(t, l.state)
		case 1, 2, 3:
			v := l.state.View()
			views = append(views, kept{v, v.Hash()})
			checkInvariants(t, v)
			checkQueues(t, v, keys)
			equalLines(t, fmt.Sprintf("state at %d", l.index), dumpView(v, keys), g.twin.dump())
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	if got, want := l.state.View().Hash(), other.View().Hash(); got != want {
		t.Errorf("snapshots on the way changed the state: hash %x, want %x", got[:4], want[:4])
	}
	for _, k := range views {
		if k.view.Hash() != k.hash {
			t.Errorf("the view of revision %d changed later", k.view.Revision())
		}
	}
}

func replay(t *testing.T, s *fsm.State, index, term uint64, stamp int64, proposals []*fsm.Proposal) {
	data, err := fsm.EncodeBatch(&fsm.Batch{Proposals: proposals})
	if err != nil {
		t.Fatal(err)
	}
	b, err := fsm.DecodeBatch(fsm.AppendStamp(data, stamp))
	if err != nil {
		t.Fatal(err)
	}
	s.Apply(index, term, b)
}

func compareAnswers(t *testing.T, index uint64, proposals []*fsm.Proposal, got *fsm.Outcome, want [][]*twinAnswer) {
	t.Helper()
	for i, p := range proposals {
		for j, cmd := range p.Commands {
			r, w := got.Proposals[i].Results[j], want[i][j]
			g := twinAnswer{code: uint64(r.Code), token: r.Token, queued: r.Queued, total: r.Total}
			if g.code != w.code || g.token != w.token || g.queued != w.queued || g.total != w.total {
				t.Errorf("entry %d, %T{%v} seq %d key %q: got code %v token %d queued %v (%s), want code %v token %d queued %v",
					index, fsm.OpOf(cmd), fsm.OpOf(cmd), cmd.Seq, cmd.IdempotencyKey, fsm.Code(r.Code), g.token, r.Queued, r.Message, fsm.Code(w.code), w.token, w.queued)
			}
		}
	}
}

func twinEventLine(e *fsm.Event) string {
	words := []string{e.Type.String()}
	if e.Key != "" {
		words = append(words, e.Key, fmt.Sprint(e.Token))
	}
	extra := []string{e.Who.InstanceID, e.EndReason.String()}
	if w := e.Worker; w != nil {
		extra = append(extra, w.State.String())
		if w.StartRequested {
			extra = append(extra, "start")
		}
		if w.Error != nil {
			extra = append(extra, w.Error.Type)
		}
	}
	for _, w := range extra {
		if w != "" {
			words = append(words, w)
		}
	}
	return strings.Join(words, " ")
}

// The world of the generator is busy enough: every event happens in it.
func TestTwin_Coverage(t *testing.T) {
	seen := map[string]bool{}
	codes := map[fsm.Code]bool{}
	for seed := range uint64(20) {
		g := newGenerator(seed)
		g.twin.term = 2
		for i := range uint64(300 * (1 + 3*(seed%2))) {
			for _, answers := range g.twin.apply(i+2, 2, int64(i+1)*second, []*fsm.Proposal{g.proposal()}) {
				for _, a := range answers {
					codes[fsm.Code(a.code)] = true
				}
			}
		}
		for _, e := range g.twin.events {
			seen[strings.Fields(e)[0]] = true
			if f := strings.Fields(e); f[0] == "lease.ended" {
				seen["ended "+f[len(f)-1]] = true
			}
		}
	}
	want := []string{
		"ended closed", "ended crashed", "ended expired", "ended moved", "ended released", "ended restarted", "ended revoked",
		"instance.cordoned", "instance.draining", "instance.joined", "instance.left", "instance.uncordoned",
		"instance.undrained", "lease.ended", "lease.granted", "lease.revoked", "lease.transferring", "lease.unbarred",
		"session.closed", "session.expired", "session.opened",
		"group.planned", "group.updated", "job.recorded",
		"workload.assigned", "workload.failed", "workload.kept", "workload.moved", "workload.paused", "workload.pinned",
		"workload.preparing", "workload.resumed", "workload.stuck", "workload.unpinned",
		"worker.created", "worker.loaded", "worker.load_failed", "worker.reloading", "worker.start_requested", "worker.start_withdrawn",
		"worker.started", "worker.stopped", "worker.failed", "worker.deleted", "version.raised",
	}
	for _, w := range want {
		if !seen[w] {
			t.Errorf("the generator never makes %q", w)
		}
	}
	for _, c := range []fsm.Code{fsm.CodeDone, fsm.CodeInvalidArgument, fsm.CodeNotFound, fsm.CodeLeaseHeld, fsm.CodeStaleToken, fsm.CodeDraining, fsm.CodeAlreadyExists, fsm.CodeWrongState, fsm.CodeSessionExpired, fsm.CodeETagMismatch} {
		if !codes[c] {
			t.Errorf("the generator never meets %v", c)
		}
	}
}
