package artifact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// Fill gets the artifact d, of at most limit bytes, into the store if it is not there yet: fill has to write what is missing of
// it. When fill has returned nil the content is compared with the digest. After ErrMismatch and ErrTooLarge nothing is kept,
// after any other error the part that was written is, and the next Fill goes on there. If a Fill of d is under way this one
// waits for it, until ctx ends.
func (s *Store) Fill(ctx context.Context, d Digest, limit int64, fill func(*Part) error) error {
	for {
		s.mu.Lock()
		other := s.filling[d]
		if other == nil {
			break
		}
		s.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	done := make(chan struct{})
	s.filling[d] = done
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.filling, d)
		close(done)
	}()
	if s.Has(d) {
		return nil
	}
	p, err := s.openPart(d, limit)
	if err != nil {
		return fmt.Errorf("receive artifact: %w", err)
	}
	defer p.f.Close()
	if err = fill(p); err == nil {
		err = p.finish()
	}
	if errors.Is(err, ErrTooLarge) || errors.Is(err, ErrMismatch) {
		_ = os.Remove(p.f.Name()) // nobody can go on with it
	}
	return err
}

// Part is an artifact that is not complete yet. It belongs to the function that Fill calls.
type Part struct {
	s      *Store
	d      Digest
	f      *os.File
	offset int64
	limit  int64
}

func (s *Store) openPart(d Digest, limit int64) (*Part, error) {
	f, err := os.OpenFile(s.Path(d)+partSuffix, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	p := &Part{s: s, d: d, f: f, limit: limit}
	if p.offset, err = f.Seek(0, io.SeekEnd); err == nil && p.offset > limit {
		err = p.Reset()
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return p, nil
}

// Offset is how many bytes are there.
func (p *Part) Offset() int64 { return p.offset }

// Write implements io.Writer. ErrTooLarge is returned, and nothing written, for more than the limit.
func (p *Part) Write(b []byte) (int, error) {
	if p.offset+int64(len(b)) > p.limit {
		return 0, tooLarge("the content", p.limit)
	}
	n, err := p.f.Write(b)
	p.offset += int64(n)
	return n, err
}

// Reset drops what is there.
func (p *Part) Reset() error {
	if err := p.f.Truncate(0); err != nil {
		return err
	}
	p.offset = 0
	_, err := p.f.Seek(0, io.SeekStart)
	return err
}

// finish makes the part the artifact, if it is it.
func (p *Part) finish() error {
	got, err := digestOf(p.f)
	if err != nil {
		return fmt.Errorf("receive artifact: %w", err)
	}
	if got != p.d {
		return fmt.Errorf("%w: want %s, the content has %s", ErrMismatch, p.d, got)
	}
	if err := p.s.commit(p.f, p.d); err != nil {
		return fmt.Errorf("receive artifact: %w", err)
	}
	return nil
}
