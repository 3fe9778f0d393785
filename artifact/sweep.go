package artifact

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Sweep removes the artifacts that were stored before a moment and that keep does not want, and parts of those that nobody has
// gone on with since then. It returns how many artifacts it has removed. keep is called for each that is old enough, just before
// it is removed.
func (s *Store) Sweep(before time.Time, keep func(Digest) bool) (removed int, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return 0, fmt.Errorf("sweep artifacts: %w", err)
	}
	var errs []error
	for _, e := range entries {
		name, part := strings.CutSuffix(e.Name(), partSuffix)
		d, err := ParseDigest(name)
		if err != nil || d.String() != name { // a put under way, or nothing of ours
			continue
		}
		st, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !st.ModTime().Before(before) || keep(d) {
			continue
		}
		gone, err := s.drop(d, e.Name())
		if err != nil {
			errs = append(errs, err)
		} else if gone && !part {
			removed++
		}
	}
	if err := errors.Join(errs...); err != nil {
		return removed, fmt.Errorf("sweep artifacts: %w", err)
	}
	return removed, nil
}

// drop removes a file of an artifact, unless the artifact is being received.
func (s *Store) drop(d Digest, name string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.filling[d] != nil {
		return false, nil
	}
	err := os.Remove(filepath.Join(s.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
