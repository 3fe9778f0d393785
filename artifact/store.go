package artifact

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// Limits.
const (
	// MaxUpload bounds an artifact that is uploaded, in bytes.
	MaxUpload = 16 << 20
	// MaxSize bounds an artifact that is imported, fetched or received, in bytes.
	MaxSize = 256 << 20
)

// Names in the folder, beside the artifacts themselves.
const (
	tempPattern = "put-*.tmp"
	partSuffix  = ".part"
)

// Store is a folder of artifacts, each in a file named by its digest.
type Store struct {
	dir string

	mu      sync.Mutex
	filling map[Digest]chan struct{} // guarded by mu; closed when the Fill under way has ended
}

// Open returns the store in dir, which is made (0700) if missing. What a put that was cut short has left there is removed;
// parts of artifacts are kept, for Fill to go on with.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open artifact store: %w", err)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open artifact store: %w", err)
	}
	left, err := filepath.Glob(filepath.Join(abs, tempPattern))
	if err != nil {
		return nil, fmt.Errorf("open artifact store: %w", err)
	}
	for _, path := range left {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("open artifact store: %w", err)
		}
	}
	return &Store{dir: abs, filling: map[Digest]chan struct{}{}}, nil
}

// Path is where the artifact is, or would be. What is there must not be changed.
func (s *Store) Path(d Digest) string { return filepath.Join(s.dir, d.String()) }

// Has tells whether the artifact is there.
func (s *Store) Has(d Digest) bool {
	_, err := os.Stat(s.Path(d))
	return err == nil
}

// Put stores what r yields, at most limit bytes; more is ErrTooLarge. An error of r is in its error.
func (s *Store) Put(r io.Reader, limit int64) (d Digest, size int64, err error) {
	f, err := os.CreateTemp(s.dir, tempPattern) // mode 0600
	if err != nil {
		return Digest{}, 0, fmt.Errorf("store artifact: %w", err)
	}
	defer func() {
		_ = f.Close()
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	h := sha256.New()
	if size, err = io.Copy(io.MultiWriter(f, h), io.LimitReader(r, limit+1)); err != nil {
		return Digest{}, 0, fmt.Errorf("store artifact: %w", err)
	}
	if size > limit {
		return Digest{}, 0, tooLarge("the content", limit)
	}
	h.Sum(d[:0])
	if err := s.commit(f, d); err != nil {
		return Digest{}, 0, fmt.Errorf("store artifact: %w", err)
	}
	return d, size, nil
}

func tooLarge(what string, limit int64) error {
	return fmt.Errorf("%w: %s has more than %d bytes", ErrTooLarge, what, limit)
}

// commit makes a file of the folder the artifact d, for good.
func (s *Store) commit(f *os.File, d Digest) error {
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), s.Path(d)); err != nil {
		return err
	}
	dir, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Import stores a copy of a regular file of this machine, of at most MaxSize bytes.
func (s *Store) Import(path string) (d Digest, size int64, err error) {
	// Opening a pipe that nobody writes to would block without O_NONBLOCK.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return Digest{}, 0, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if err != nil {
		return Digest{}, 0, fmt.Errorf("import artifact: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return Digest{}, 0, fmt.Errorf("import artifact: %w", err)
	}
	if !st.Mode().IsRegular() {
		return Digest{}, 0, fmt.Errorf("%w: %s is no regular file", ErrRefused, path)
	}
	if st.Size() > MaxSize {
		return Digest{}, 0, tooLarge(path, MaxSize)
	}
	return s.Put(f, MaxSize)
}

// Open opens the artifact for reading, after it was read once and compared with its digest. If it has another one by now it is
// removed, and the error is ErrNotFound as for one that never was there.
func (s *Store) Open(d Digest) (*os.File, error) {
	f, err := os.Open(s.Path(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s is not in the store", ErrNotFound, d)
	}
	if err != nil {
		return nil, fmt.Errorf("open artifact: %w", err)
	}
	got, err := digestOf(f)
	switch {
	case err != nil:
	case got != d:
		if err = os.Remove(s.Path(d)); err == nil {
			err = fmt.Errorf("%w: %s was damaged on disk and has been removed; it can be fetched again", ErrNotFound, d)
		}
	default:
		if _, err = f.Seek(0, io.SeekStart); err == nil {
			return f, nil
		}
	}
	_ = f.Close()
	return nil, fmt.Errorf("open artifact: %w", err)
}

// digestOf reads the whole of a file.
func digestOf(f *os.File) (d Digest, err error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return Digest{}, err
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return Digest{}, err
	}
	h.Sum(d[:0])
	return d, nil
}

// ReadAt reads a part of an artifact, unverified, for somebody who verifies the whole of it. It returns how much was read and
// the artifact's size. The only error beside those of the disk is ErrNotFound; an offset past the end reads nothing.
func (s *Store) ReadAt(d Digest, b []byte, offset int64) (n int, size int64, err error) {
	f, err := os.Open(s.Path(d))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, fmt.Errorf("%w: %s is not in the store", ErrNotFound, d)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read artifact: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, 0, fmt.Errorf("read artifact: %w", err)
	}
	if n, err = f.ReadAt(b, offset); err != nil && !errors.Is(err, io.EOF) {
		return 0, 0, fmt.Errorf("read artifact: %w", err)
	}
	return n, st.Size(), nil
}
