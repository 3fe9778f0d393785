package execrt

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/miwnode/miwnode/coord/worker"
)

// image is an executable copy of some code, for all workers that have it.
type image struct {
	digest string
	path   string
	users  int // guarded by Runtime.mu

	turn chan struct{} // one slot, held by whoever makes it
	made bool          // of whoever has the turn
}

// take has an executable copy of the code made, unless there is one.
func (r *Runtime) take(ctx context.Context, code worker.Code) (*image, error) {
	r.mu.Lock()
	img := r.images[code.SHA256()]
	if img == nil {
		img = &image{digest: code.SHA256(), path: filepath.Join(r.cfg.Dir, code.SHA256()), turn: make(chan struct{}, 1)}
		r.images[img.digest] = img
	}
	img.users++
	r.mu.Unlock()
	if err := img.make(ctx, code); err != nil {
		return nil, errors.Join(err, r.drop(img))
	}
	return img, nil
}

// drop is the end of one use of an image.
func (r *Runtime) drop(img *image) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if img.users--; img.users > 0 {
		return nil
	}
	delete(r.images, img.digest)
	if err := os.Remove(img.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (img *image) make(ctx context.Context, code worker.Code) error {
	select {
	case img.turn <- struct{}{}:
		defer func() { <-img.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if img.made {
		return nil
	}
	f, err := code.Open()
	if err != nil {
		return err
	}
	defer f.Close()
	to, err := os.OpenFile(img.path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o700)
	if err != nil {
		return worker.Errorf(worker.TypeLoadFailed, "make an executable copy: %w", err)
	}
	defer to.Close()
	if _, err := io.Copy(to, whileLive{ctx, f}); err != nil {
		return worker.Errorf(worker.TypeLoadFailed, "make an executable copy: %w", err)
	}
	if err := runnable(to); err != nil {
		return err
	}
	// Nobody writes to it any more, the worker neither.
	if err := errors.Join(to.Chmod(0o500), to.Close()); err != nil {
		return worker.Errorf(worker.TypeLoadFailed, "make an executable copy: %w", err)
	}
	img.made = true
	return nil
}

// whileLive reads until ctx ends.
type whileLive struct {
	ctx context.Context
	r   io.Reader
}

func (r whileLive) Read(b []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(b)
}
