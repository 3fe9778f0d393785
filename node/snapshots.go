package node

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/raft"
)

// Where raft's snapshots are, and how those end that are not whole.
const (
	snapshotsDir    = "snapshots"
	partialSnapshot = ".tmp"
)

// openSnapshots opens or makes the store of snapshots, and removes what a start
// before this one left half-written: raft passes it over, and keeps it for ever.
func openSnapshots(f *folder, seams *Seams, l *slog.Logger) (raft.SnapshotStore, error) {
	if err := removePartial(f.path(snapshotsDir)); err != nil {
		return nil, &folderError{dir: f.dir, kind: ErrFolderDamaged, text: err.Error()}
	}
	s, err := raft.NewFileSnapshotStoreWithLogger(f.dir, raftSnapshotsKept, newRaftLogger(l))
	if err != nil {
		return nil, &folderError{dir: f.dir, kind: ErrFolderDamaged, text: err.Error()}
	}
	if seams.Step == nil {
		return s, nil
	}
	return watchedSnapshots{s, seams}, nil
}

func removePartial(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s can't be read: %w", snapshotsDir, err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), partialSnapshot) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("the unfinished snapshot %s can't be removed: %w", e.Name(), err)
		}
	}
	return nil
}

// watchedSnapshots tells the seam of what is written.
type watchedSnapshots struct {
	raft.SnapshotStore
	seams *Seams
}

// Create implements raft.SnapshotStore.
func (w watchedSnapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, at uint64, t raft.Transport) (raft.SnapshotSink, error) {
	var sink raft.SnapshotSink
	err := w.seams.around(StepSnapshotCreate, StepSnapshotCreated, func() (err error) {
		sink, err = w.SnapshotStore.Create(version, index, term, c, at, t)
		return err
	})
	if err != nil {
		return nil, err
	}
	return watchedSink{sink, w.seams}, nil
}

type watchedSink struct {
	raft.SnapshotSink
	seams *Seams
}

// Write implements io.Writer.
func (w watchedSink) Write(b []byte) (int, error) {
	n, err := w.SnapshotSink.Write(b)
	if err == nil {
		err = w.seams.step(StepSnapshotWrote)
	}
	return n, err
}

// Close implements io.Closer.
func (w watchedSink) Close() error {
	return w.seams.around(StepSnapshotClose, StepSnapshotClosed, w.SnapshotSink.Close)
}
