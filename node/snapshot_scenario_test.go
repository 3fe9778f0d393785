package node_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/node/nodetest"
)

// snapshotting is a cluster that takes snapshots all the time, and whose node
// that was named is told what happens to its own.
type snapshotting struct {
	*nodetest.Cluster
	t      *testing.T
	victim atomic.Int32
	told   atomic.Pointer[func(step node.Step) error]
}

func newSnapshotting(t *testing.T, seed uint64) *snapshotting {
	s := &snapshotting{t: t}
	s.victim.Store(-1)
	s.Cluster = nodetest.New(t, nodetest.Config{Seed: seed, Seams: func(i int, seams *node.Seams) {
		seams.SnapshotEntries = 64
		seams.Step = func(step node.Step) error {
			if told := s.told.Load(); told != nil && int32(i) == s.victim.Load() {
				return (*told)(step)
			}
			return nil
		}
	}})
	s.WaitReady()
	return s
}

// fill commits entries through node i, and waits until there is a snapshot of
// them if they are many.
func (s *snapshotting) fill(i, entries int) {
	s.t.Helper()
	session, err := s.Node(i).Session(s.Context(5 * time.Second))
	if err != nil {
		s.t.Fatal(err)
	}
	for k := range entries {
		if _, err := s.Node(i).Submit(s.Context(5*time.Second), &fsm.Acquire{Key: fmt.Sprint("fill", k%20), SessionId: session}); err != nil {
			s.t.Fatal(err)
		}
	}
	time.Sleep(3 * time.Second) // it looks each second
}

// lagging cuts a node off until only a snapshot can bring it up to date.
func (s *snapshotting) lagging() (victim, leader int) {
	s.t.Helper()
	leader = s.WaitLeader()
	victim = (leader + 1) % 3
	s.fill(leader, 200) // it has a snapshot of its own, and a log behind it
	s.Converge()
	s.Isolate(victim)
	s.fill(leader, 200)
	s.victim.Store(int32(victim))
	return victim, leader
}

func (s *snapshotting) tell(f func(step node.Step) error) { s.told.Store(&f) }

// disk is what raft keeps in a folder.
func disk(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := make(map[string][]byte)
	for _, name := range []string{"raft.db", "journal", "snapshots"} {
		err := filepath.WalkDir(filepath.Join(dir, name), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := os.ReadFile(path)
			rel, _ := filepath.Rel(dir, path)
			files[rel] = b
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func putDisk(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	for _, name := range []string{"raft.db", "journal", "snapshots"} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for rel, b := range files {
		path := filepath.Join(dir, rel)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, b, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// partial lists the snapshots of a folder that are not whole.
func partial(files map[string][]byte) (dirs []string) {
	for rel := range files {
		if dir := filepath.Dir(rel); strings.HasSuffix(dir, ".tmp") && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// TestScenario_Snapshots holds faults of snapshots on their way that users of
// such systems have reported.
func TestScenario_Snapshots(t *testing.T) {
	// The disk is looked at after each step by which a snapshot is installed: so
	// it would look after a crash there.
	t.Run("B-63_a_crash_at_each_step_of_an_install", func(t *testing.T) {
		if testing.Short() {
			t.Skip("a cluster that starts twenty times")
		}
		synctest.Test(t, func(t *testing.T) {
			s := newSnapshotting(t, 63)
			victim, leader := s.lagging()
			type moment struct {
				step  node.Step
				files map[string][]byte
			}
			var moments []moment
			turn := make(chan struct{}, 1)
			turn <- struct{}{}
			s.tell(func(step node.Step) error {
				if !strings.HasPrefix(string(step), "snapshot ") && step != node.StepLogCut && step != node.StepLogWasCut {
					return nil
				}
				<-turn
				synctest.Wait() // nothing else is being written
				if n := len(moments); step != node.StepSnapshotWrote || n == 0 || moments[n-1].step != step {
					moments = append(moments, moment{step, disk(t, s.Dir(victim))})
				}
				turn <- struct{}{}
				return nil
			})
			s.Rejoin(victim)
			s.Converge()
			s.Crash(victim)
			s.told.Store(nil)
			var steps []node.Step
			halves := 0
			for _, m := range moments {
				steps = append(steps, m.step)
				halves += len(partial(m.files))
			}
			want := []node.Step{
				node.StepSnapshotCreate, node.StepSnapshotCreated, node.StepSnapshotWrote, node.StepSnapshotClose, node.StepSnapshotClosed,
				node.StepSnapshotRestore, node.StepSnapshotRestored,
			}
			if len(steps) < len(want) || !slices.Equal(steps[:len(want)], want) {
				t.Fatalf("the steps were %q, want first %q", steps, want)
			}
			if halves < 3 {
				t.Errorf("%d of the moments have half a snapshot: the test shows little", halves)
			}
			for _, m := range moments[:min(len(want)+2, len(moments))] { // and the cut of the log, if there was any to cut
				putDisk(t, s.Dir(victim), m.files)
				s.Start(victim)
				s.WaitReady()
				s.fill(leader, 200) // new entries come behind what it has
				s.Converge()
				if got, want := s.Node(victim).View().Hash(), s.Node(leader).View().Hash(); got != want {
					t.Errorf("after a crash at %q the state is another", m.step)
				}
				if left := partial(disk(t, s.Dir(victim))); len(left) > 0 {
					t.Errorf("after a crash at %q these are left: %q", m.step, left)
				}
				// And once more, from what it has now.
				s.Restart(victim)
				s.WaitReady()
				s.Converge()
				if got, want := s.Node(victim).View().Hash(), s.Node(leader).View().Hash(); got != want {
					t.Errorf("after a crash at %q and a restart the state is another", m.step)
				}
				s.Crash(victim)
			}
			s.Start(victim)
			s.WaitReady()
		})
	})
}
