package fsm_test

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/miwnode/miwnode/fsm"
)

// benchGroup is a machine with a group of n workloads that three nodes declare,
// the first of which may plan.
type benchGroup struct {
	b       testing.TB
	m       *fsm.Machine
	index   uint64
	n       int
	planner uint64
}

func newBenchGroup(b testing.TB, n int) *benchGroup {
	g := &benchGroup{b: b, m: fsm.NewMachine(fsm.MachineOptions{}), n: n}
	g.apply(&fsm.InitCluster{ClusterId: "c1", Version: 2})
	var specs []fsm.Spec
	for i := range n {
		specs = append(specs, fsm.Spec{Key: fmt.Sprintf("shard-%05d", i)})
	}
	hash, puts, err := fsm.NewCatalog(specs)
	if err != nil {
		b.Fatal(err)
	}
	for _, p := range puts {
		g.apply(p)
	}
	for i := range 3 {
		g.apply(openNode(sessionName(i)))
		g.apply(&fsm.JoinGroup{Group: "g", SessionId: sessionName(i), CatalogHash: hash, Embedded: true, Settings: &fsm.GroupSettings{}})
	}
	g.planner = g.apply(&fsm.Acquire{Key: fsm.PlannerKey("g"), SessionId: sessionName(0)}).Token
	return g
}

func (g *benchGroup) entry(op fsm.Op) *raft.Log {
	g.index++
	return &raft.Log{Index: g.index, Term: 1, Data: encode(g.b, &fsm.Proposal{Commands: []*fsm.Command{fsm.NewCommand(op)}})}
}

func (g *benchGroup) apply(op fsm.Op) *fsm.Result {
	out := g.m.Apply(g.entry(op)).(*fsm.Outcome)
	if out.Err != nil {
		g.b.Fatal(out.Err)
	}
	r := out.Proposals[0].Results[0]
	if err := fsm.ResultErr(r); err != nil {
		g.b.Fatal(err)
	}
	return r
}

// plan deals all workloads to the three nodes, shifted.
func (g *benchGroup) plan(shift int) *fsm.PlanGroup {
	head, _ := g.m.View().Group("g")
	op := &fsm.PlanGroup{Group: "g", Inputs: head.Inputs, PlannerToken: g.planner}
	for i := range 3 {
		op.Instances = append(op.Instances, "i-"+sessionName(i))
	}
	for i := range g.n {
		op.Assignments = append(op.Assignments, &fsm.Assignment{Workload: fmt.Sprintf("shard-%05d", i), Instance: uint32((i + shift) % 3)})
	}
	return op
}

// BenchmarkPlan measures a plan of 10,000 workloads in one entry, its decoding
// and its View included: to grant them, to name them successors, to change nothing.
func BenchmarkPlan(b *testing.B) {
	const n = 10_000
	run := func(name string, shift int, prepare func(*benchGroup), want uint64) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				g := newBenchGroup(b, n)
				prepare(g)
				l := g.entry(g.plan(shift))
				b.StartTimer()
				out := g.m.Apply(l).(*fsm.Outcome)
				if got := out.Proposals[0].Results[0].Total; got != want {
					b.Fatalf("%d changes, want %d", got, want)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/1000, "ms/plan")
		})
	}
	run("grant", 0, func(*benchGroup) {}, n)
	run("move", 1, func(g *benchGroup) { g.apply(g.plan(0)) }, n)
	run("nothing", 0, func(g *benchGroup) { g.apply(g.plan(0)) }, 0)
}

// BenchmarkGroup_Change measures what a change of one workload, or a member's
// mark, costs beside the size of its group.
func BenchmarkGroup_Change(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("workloads=%d/pause", n), func(b *testing.B) {
			g := newBenchGroup(b, n)
			for i := 0; b.Loop(); i++ {
				g.apply(&fsm.SetPause{Group: "g", Workload: fmt.Sprintf("shard-%05d", i/2%n), Paused: i%2 == 0})
			}
		})
		b.Run(fmt.Sprintf("workloads=%d/join", n), func(b *testing.B) {
			g := newBenchGroup(b, n)
			for i := 0; b.Loop(); i++ {
				g.apply(&fsm.JoinGroup{Group: "g", SessionId: sessionName(2), All: true, Capacity: float64(i)})
			}
		})
		b.Run(fmt.Sprintf("workloads=%d/release", n), func(b *testing.B) {
			g := newBenchGroup(b, n)
			token := uint64(1)
			for i := 0; b.Loop(); i++ {
				g.apply(&fsm.PlanGroup{Group: "g", Inputs: 3, PlannerToken: g.planner, Instances: []string{"i-" + sessionName(0)}, Assignments: []*fsm.Assignment{{Workload: "shard-00000"}}})
				token++
				g.apply(&fsm.Release{Key: "g/shard-00000", SessionId: sessionName(0), Token: 1<<40 + token})
			}
		})
	}
}

// BenchmarkGroup_Workloads measures what a planner reads: the whole group.
func BenchmarkGroup_Workloads(b *testing.B) {
	g := newBenchGroup(b, 10_000)
	g.apply(g.plan(0))
	for b.Loop() {
		group, _ := g.m.View().Group("g")
		n := 0
		for w := range group.Workloads("") {
			if w.Lease != nil {
				n++
			}
		}
		if n != 10_000 {
			b.Fatal(n)
		}
	}
}

// BenchmarkGroup_Snapshot measures writing and reading a group of 10,000.
func BenchmarkGroup_Snapshot(b *testing.B) {
	g := newBenchGroup(b, 10_000)
	g.apply(g.plan(0))
	g.apply(&fsm.ExpireSession{SessionId: sessionName(1), Term: 1})
	data := snapshotBytes(b, g.m.View())
	b.Run("write", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if err := g.m.View().Snapshot(io.Discard); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if _, err := fsm.ReadSnapshot(bytes.NewReader(data)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
