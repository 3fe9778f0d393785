package fsm_test

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/miwnode/miwnode/fsm"
)

var benchSizes = []int{100, 100_000}

// filledMachine returns a machine in which three nodes hold n leases together,
// and the index of its last entry.
func filledMachine(b testing.TB, n int) (*fsm.Machine, uint64) {
	m := fsm.NewMachine(fsm.MachineOptions{})
	index := uint64(0)
	apply := func(ops ...fsm.Op) {
		index++
		p := &fsm.Proposal{}
		for _, op := range ops {
			p.Commands = append(p.Commands, fsm.NewCommand(op))
		}
		data := encode(b, p)
		out := m.Apply(&raft.Log{Index: index, Term: 1, Data: data}).(*fsm.Outcome)
		if out.Err != nil {
			b.Fatal(out.Err)
		}
		for _, r := range out.Proposals[0].Results {
			if err := fsm.ResultErr(r); err != nil {
				b.Fatal(err)
			}
		}
	}
	apply(&fsm.InitCluster{ClusterId: "c1", Version: 1})
	for i := range 3 {
		apply(openNode(sessionName(i)))
	}
	var ops []fsm.Op
	for i := range n {
		ops = append(ops, &fsm.Acquire{Key: benchKey(i), SessionId: sessionName(i % 3), Holder: "runner"})
		if len(ops) == 1000 || i == n-1 {
			apply(ops...)
			ops = nil
		}
	}
	return m, index
}

func sessionName(i int) string { return fmt.Sprintf("%032x", i+1) }

func benchKey(i int) string { return fmt.Sprintf("workloads/shard-%08d", i*7919%1_000_003) }

func encode(b testing.TB, p *fsm.Proposal) []byte {
	data, err := fsm.EncodeBatch(&fsm.Batch{Proposals: []*fsm.Proposal{p}})
	if err != nil {
		b.Fatal(err)
	}
	return fsm.AppendStamp(data, 1_700_000_000*second)
}

// BenchmarkApply measures one command of the hot path, its decoding and the View
// after its entry included: an acquire, and the release that follows it, in
// entries of one command and of 32.
func BenchmarkApply(b *testing.B) {
	for _, size := range benchSizes {
		for _, perEntry := range []int{1, 32} {
			b.Run(fmt.Sprintf("leases=%d/entry=%d", size, perEntry), func(b *testing.B) {
				m, index := filledMachine(b, size)
				// Tokens are known beforehand: one per acquire.
				counter, seq := uint64(size), uint64(0)
				const prepared = 1 << 12
				entries := make([]raft.Log, 0, prepared)
				i := 0
				prepare := func() {
					entries = entries[:0]
					for len(entries) < prepared {
						acquire := &fsm.Proposal{NodeId: "node-1", Boot: 1, LowWater: seq}
						release := &fsm.Proposal{NodeId: "node-1", Boot: 1, LowWater: seq}
						for range perEntry {
							key, session := fmt.Sprintf("workloads/bench-%08d", i*7919%1_000_003), sessionName(i%3)
							i++
							counter++
							seq++
							c := fsm.NewCommand(&fsm.Acquire{Key: key, SessionId: session, Holder: "caller-17"})
							c.Seq = seq
							acquire.Commands = append(acquire.Commands, c)
							r := fsm.NewCommand(&fsm.Release{Key: key, SessionId: session, Token: token(counter)})
							r.Seq = seq + uint64(perEntry)
							release.Commands = append(release.Commands, r)
						}
						seq += uint64(perEntry)
						for _, p := range []*fsm.Proposal{acquire, release} {
							index++
							entries = append(entries, raft.Log{Index: index, Term: 1, Data: encode(b, p)})
						}
					}
				}
				next := 0
				prepare()
				b.ResetTimer()
				b.ReportAllocs()
				for n := 0; n < b.N; n += perEntry {
					if next == len(entries) {
						b.StopTimer()
						prepare()
						next = 0
						b.StartTimer()
					}
					out := m.Apply(&entries[next]).(*fsm.Outcome)
					if r := out.Proposals[0].Results[0]; r.Code != 0 {
						b.Fatal(r.Message)
					}
					next++
				}
			})
		}
	}
}

func BenchmarkView_Lease(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprintf("leases=%d", size), func(b *testing.B) {
			m, _ := filledMachine(b, size)
			keys := make([]string, 1024)
			for i := range keys {
				keys[i] = benchKey(i * 31 % size)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, ok := m.View().Lease(keys[i%len(keys)]); !ok {
					b.Fatal("no lease")
				}
			}
		})
	}
}

func BenchmarkSnapshot(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprintf("leases=%d", size), func(b *testing.B) {
			m, _ := filledMachine(b, size)
			b.SetBytes(int64(len(snapshotBytes(b, m.View()))))
			b.ReportAllocs()
			for b.Loop() {
				if err := m.View().Snapshot(io.Discard); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkRestore(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprintf("leases=%d", size), func(b *testing.B) {
			m, _ := filledMachine(b, size)
			data := snapshotBytes(b, m.View())
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := fsm.ReadSnapshot(bytes.NewReader(data)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkExpire measures the end of a session with many leases, in one entry.
func BenchmarkExpire(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		m, index := filledMachine(b, 30_000)
		data := encode(b, &fsm.Proposal{Commands: []*fsm.Command{fsm.NewCommand(&fsm.ExpireSession{SessionId: sessionName(0), Term: 1})}})
		b.StartTimer()
		m.Apply(&raft.Log{Index: index + 1, Term: 1, Data: data})
	}
	b.ReportMetric(10_000, "leases/op")
}

// BenchmarkApply_DuringSnapshot reports the longest that Machine.Snapshot, the
// part of a snapshot that raft's apply goroutine waits for, has taken, and the
// longest apply beside a snapshot that is being written and, for comparison, in the
// same time beside a goroutine that only computes: a garbage collection and
// a core that is taken away make an apply long, too.
func BenchmarkApply_DuringSnapshot(b *testing.B) {
	m, index := filledMachine(b, 100_000)
	counter := uint64(100_000)
	// longest applies until the work beside it is done.
	longest := func(work func() error) (longest time.Duration) {
		done := make(chan error, 1)
		go func() { done <- work() }()
		for {
			counter++
			for _, op := range []fsm.Op{
				&fsm.Acquire{Key: "bench", SessionId: sessionName(0)},
				&fsm.Release{Key: "bench", SessionId: sessionName(0), Token: token(counter)},
			} {
				index++
				l := &raft.Log{Index: index, Term: 1, Data: encode(b, &fsm.Proposal{Commands: []*fsm.Command{fsm.NewCommand(op)}})}
				began := time.Now()
				m.Apply(l)
				longest = max(longest, time.Since(began))
			}
			select {
			case err := <-done:
				if err != nil {
					b.Fatal(err)
				}
				return longest
			default:
			}
		}
	}
	var call, beside, alone time.Duration
	for b.Loop() {
		began := time.Now()
		snap, err := m.Snapshot()
		call = max(call, time.Since(began))
		if err != nil {
			b.Fatal(err)
		}
		writing := time.Now()
		beside = max(beside, longest(func() error { return snap.Persist(discardSink{}) }))
		took := time.Since(writing)
		alone = max(alone, longest(func() error {
			for began := time.Now(); time.Since(began) < took; {
			}
			return nil
		}))
	}
	b.ReportMetric(float64(call.Microseconds()), "µs-snapshot-call")
	b.ReportMetric(float64(beside.Microseconds()), "µs-longest-apply")
	b.ReportMetric(float64(alone.Microseconds()), "µs-longest-without")
}

type discardSink struct{ io.Writer }

func (discardSink) Write(p []byte) (int, error) { return len(p), nil }
func (discardSink) Close() error                { return nil }
func (discardSink) ID() string                  { return "discard" }
func (discardSink) Cancel() error               { return nil }
