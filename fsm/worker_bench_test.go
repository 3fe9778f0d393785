package fsm_test

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/miwnode/miwnode/fsm"
)

// benchWorkers is a machine with n workers that are loaded, and three nodes that
// can run them.
type benchWorkers struct {
	benchGroup
	ids []string
}

func newBenchWorkers(b testing.TB, n int) *benchWorkers {
	w := &benchWorkers{benchGroup: benchGroup{b: b, m: fsm.NewMachine(fsm.MachineOptions{}), n: n}}
	w.apply(&fsm.InitCluster{ClusterId: "c1", Version: 3})
	for i := range 3 {
		w.apply(openNode(sessionName(i)))
		w.apply(&fsm.JoinGroup{Group: fsm.WorkersGroup, SessionId: sessionName(i), Runtimes: []string{"exec"}, Embedded: true})
	}
	for i := range n {
		id := workerID(fmt.Sprintf("%c%c%c%c", 'a'+i%26, 'a'+i/26%26, 'a'+i/676%26, 'a'+i/17576))
		w.ids = append(w.ids, id)
		w.apply(&fsm.CreateWorker{WorkerId: id, Name: "mailer", Runtime: "exec", Source: "./mailer", Config: []byte(`{"to":"ann"}`)})
		w.apply(&fsm.FinishLoad{WorkerId: id, Attempt: 1, Ok: true})
	}
	return w
}

// BenchmarkWorker measures what one step of one worker costs beside how many
// there are, the others running, from the bytes of its entry to the View.
func BenchmarkWorker(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		steps := map[string]func(w *benchWorkers) []fsm.Op{
			"start and stop": func(w *benchWorkers) []fsm.Op {
				id := w.ids[n/2]
				return []fsm.Op{&fsm.StartWorker{WorkerId: id}, &fsm.StopWorker{WorkerId: id}}
			},
			"delete and create": func(w *benchWorkers) []fsm.Op {
				id := w.ids[n/2]
				return []fsm.Op{&fsm.DeleteWorker{WorkerId: id}, &fsm.CreateWorker{WorkerId: id, Name: "mailer", Runtime: "exec", Source: "./mailer", Start: true}}
			},
			"reload and load": func(w *benchWorkers) []fsm.Op {
				return []fsm.Op{&fsm.ReloadWorker{WorkerId: w.ids[n/2+1]}, nil}
			},
		}
		for _, name := range []string{"start and stop", "delete and create", "reload and load"} {
			b.Run(fmt.Sprintf("workers=%d/%s", n, name), func(b *testing.B) {
				w := newBenchWorkers(b, n)
				for i, id := range w.ids {
					if i != n/2 {
						w.apply(&fsm.StartWorker{WorkerId: id})
					}
				}
				ops := steps[name](w)
				for i := 0; b.Loop(); i++ {
					op := ops[i%2]
					if op == nil {
						id := w.ids[n/2+1]
						now, _ := w.m.View().Worker(id)
						op = &fsm.FinishLoad{WorkerId: id, Attempt: now.Attempt, Ok: true}
					}
					w.apply(op)
				}
			})
		}
	}
}

// BenchmarkWorkers_StartAll measures 10,000 starts, one by one.
func BenchmarkWorkers_StartAll(b *testing.B) {
	const n = 10_000
	for b.Loop() {
		b.StopTimer()
		w := newBenchWorkers(b, n)
		var starts []*raft.Log
		for _, id := range w.ids {
			starts = append(starts, w.entry(&fsm.StartWorker{WorkerId: id}))
		}
		b.StartTimer()
		for _, l := range starts {
			if out := w.m.Apply(l).(*fsm.Outcome); out.Err != nil {
				b.Fatal(out.Err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*n), "µs/start")
}

// BenchmarkWorkers_Read measures what planners, drivers and snapshots read.
func BenchmarkWorkers_Read(b *testing.B) {
	const n = 10_000
	w := newBenchWorkers(b, n)
	for _, id := range w.ids {
		w.apply(&fsm.StartWorker{WorkerId: id})
	}
	b.Run("workloads", func(b *testing.B) {
		for b.Loop() {
			g, _ := w.m.View().Group(fsm.WorkersGroup)
			read := 0
			for range g.Workloads("") {
				read++
			}
			if read != n {
				b.Fatal(read)
			}
		}
	})
	b.Run("idle look at those that load", func(b *testing.B) {
		for b.Loop() {
			for range w.m.View().LoadingWorkers() {
				b.Fatal("one loads")
			}
		}
	})
	b.Run("snapshot", func(b *testing.B) {
		for b.Loop() {
			if err := w.m.View().Snapshot(io.Discard); err != nil {
				b.Fatal(err)
			}
		}
	})
	data := snapshotBytes(b, w.m.View())
	b.Run("restore", func(b *testing.B) {
		for b.Loop() {
			if _, err := fsm.ReadSnapshot(bytes.NewReader(data)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
