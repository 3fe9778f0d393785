package api

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/miwnode/miwnode/artifact"
	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/fsm"
)

const (
	// maxUploads is how many artifacts are uploaded at a time.
	maxUploads = 4
	// uploadTimeout bounds an upload that names no timeout of its own.
	uploadTimeout = 5 * time.Minute
)

// WithArtifacts has the code of workers that is uploaded, or lies on this node,
// kept in a store, from which the node should serve it to others. Without it
// uploads are refused.
func WithArtifacts(s *artifact.Store) Option {
	return func(h *handler) { h.artifacts = s }
}

// putArtifact stores the body, which is read as it comes.
func (c *call) putArtifact() (any, int, error) {
	store := c.h.artifacts
	if store == nil {
		return nil, 0, fsm.Errorf(fsm.CodeWrongState, "this node runs no workers and keeps no artifacts; ask one that does")
	}
	if c.r.ContentLength > artifact.MaxUpload {
		return nil, 0, invalid("the body has %d bytes, more than the %d that are taken", c.r.ContentLength, artifact.MaxUpload)
	}
	select {
	case c.h.uploads <- struct{}{}:
		defer func() { <-c.h.uploads }()
	case <-c.ctx.Done():
		return nil, 0, fsm.Errorf(fsm.CodeOverloaded, "%d artifacts are being uploaded to this node; try again", maxUploads)
	}
	body := bufio.NewReader(c.paced())
	if _, err := body.Peek(1); errors.Is(err, io.EOF) {
		return nil, 0, invalid("the body is empty: it must be the code of a worker")
	}
	digest, size, err := store.Put(body, artifact.MaxUpload)
	switch {
	case errors.Is(err, artifact.ErrTooLarge):
		return nil, 0, invalid("the body has more than the %d bytes that are taken", artifact.MaxUpload)
	case errors.Is(err, errBody):
		return nil, 0, invalid("%v", err)
	case err != nil:
		return nil, 0, notStored(err)
	}
	c.w.Header().Del("Connection")
	return Artifact{Revision: c.node.View().Revision(), SHA256: digest.String(), Size: size}, http.StatusOK, nil
}

// errBody is matched where the sender of a body is to blame.
var errBody = errors.New("the body could not be read")

// paced is the body of the call, from a sender that must go on sending.
func (c *call) paced() io.Reader {
	return &pacedBody{body: c.r.Body, rc: http.NewResponseController(c.w), until: time.Now().Add(c.within(uploadTimeout))}
}

type pacedBody struct {
	body  io.Reader
	rc    *http.ResponseController
	until time.Time
}

func (b *pacedBody) Read(p []byte) (int, error) {
	deadline := time.Now().Add(bodyTimeout)
	if deadline.After(b.until) {
		deadline = b.until
	}
	_ = b.rc.SetReadDeadline(deadline) // not every server has one
	n, err := b.body.Read(p)
	if errors.Is(err, io.EOF) {
		_ = b.rc.SetReadDeadline(time.Time{})
		return n, err
	}
	if err != nil {
		return n, fmt.Errorf("%w: %w", errBody, err)
	}
	return n, nil
}

// takeIn makes of a path on this node what other nodes can load, too: its
// content goes into the store, and its digest beside it. Whether it is what
// sha256 says, and what it is good for, loading will tell. So it will where there
// is no such file, and missing says so.
func (c *call) takeIn(runtime string, s worker.Source) (taken worker.Source, missing bool, err error) {
	switch {
	case c.h.artifacts == nil, runtime == worker.RuntimeFunc, s.Text == "", strings.HasPrefix(s.Text, artifact.Scheme):
		return s, false, nil
	case artifact.IsURL(s.Text):
		if _, err := artifact.CheckURL(s.Text); err != nil {
			return s, false, invalid("source: %v", err)
		}
		if s.SHA256 == "" {
			return s, false, invalid("sha256 is missing: code from a URL is taken by its digest only")
		}
		return s, false, nil
	}
	if s.Text, err = filepath.Abs(s.Text); err != nil {
		return s, false, fsm.Errorf(fsm.CodeInternal, "source: %v", err)
	}
	digest, _, err := c.h.artifacts.Import(s.Text)
	switch {
	case errors.Is(err, artifact.ErrNotFound):
		// Of another runtime only the catalog knows whether there is one.
		return s, runtime == worker.RuntimeExec || runtime == worker.RuntimeWasm, nil
	case errors.Is(err, artifact.ErrRefused), errors.Is(err, artifact.ErrTooLarge), unreadable(s.Text, err):
		return s, false, invalid("source: %v", err)
	case err != nil:
		return s, false, notStored(err)
	}
	if s.SHA256 == "" {
		s.SHA256 = digest.String()
	}
	return s, false, nil
}

// unreadable tells whether an error is one of the file at path itself.
func unreadable(path string, err error) bool {
	of, ok := errors.AsType[*fs.PathError](err)
	return ok && of.Path == path
}

// notStored is the error of a store that could not take what it was given, for
// which the caller is not to blame.
func notStored(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fsm.Errorf(fsm.CodeInternal, "the disk of this node is full, so it can't keep the code: %v; make room in its data folder, or ask another node", err)
	}
	return fsm.Errorf(fsm.CodeInternal, "this node can't keep the code: %v; look at its data folder, or ask another node", err)
}
