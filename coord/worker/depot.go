package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/miwnode/miwnode/artifact"
)

// Peers are the other nodes of a cluster. *node.Node has them.
type Peers interface {
	// FetchArtifact gets an artifact from any of them into a store. Its error
	// matches artifact.ErrNotFound if all answered that they have not got it.
	FetchArtifact(ctx context.Context, d artifact.Digest, into *artifact.Store) error
}

// Depot is the Artifacts of a node: it gets code from its store, else from the
// other nodes, else from where the source says, and keeps it in the store. Its
// fields are set once, before it is used.
type Depot struct {
	Store *artifact.Store
	Peers Peers         // nil: there are none
	Web   *artifact.Web // nil: URLs are refused

	_ struct{}
}

var _ Artifacts = (*Depot)(nil)

// Fetch implements Artifacts. Code from a URL is fetched only by its digest. A
// path is one of this node: another node gets its content by the digest.
func (d *Depot) Fetch(ctx context.Context, source, sha256 string) (Code, error) {
	digest, err := d.fetch(ctx, source, sha256)
	if err == nil {
		var c Code
		if c, err = d.verified(digest); err == nil {
			return c, nil
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, errorOf(err, typeOf(err))
}

// typeOf is the type of an error of getting code.
func typeOf(err error) string {
	switch {
	case errors.Is(err, artifact.ErrNotFound):
		return TypeSourceNotFound
	case errors.Is(err, artifact.ErrMismatch):
		return TypeDigestMismatch
	case errors.Is(err, artifact.ErrTooLarge):
		return TypeTooLarge
	case errors.Is(err, artifact.ErrRefused):
		return TypeForbidden
	}
	return TypeFetchFailed
}

// fetch has the code of a source in the store when it returns nil.
func (d *Depot) fetch(ctx context.Context, source, sha256 string) (digest artifact.Digest, err error) {
	text, named := strings.CutPrefix(source, artifact.Scheme)
	switch {
	case !named && sha256 == "" && artifact.IsURL(source):
		return digest, fmt.Errorf("%w: a URL needs the digest of what is to be found there: set sha256", artifact.ErrRefused)
	case !named && sha256 == "":
		digest, _, err = d.Store.Import(source)
		return digest, err
	case !named:
		text = sha256
	}
	if digest, err = artifact.ParseDigest(text); err != nil {
		return digest, fmt.Errorf("%w: %w", artifact.ErrRefused, err)
	}
	if named && sha256 != "" && sha256 != digest.String() {
		return digest, fmt.Errorf("%w: the source is %s, and sha256 is %s", artifact.ErrMismatch, source, sha256)
	}
	if _, err := d.verified(digest); !errors.Is(err, artifact.ErrNotFound) {
		return digest, err
	}
	err = fmt.Errorf("%w: %s is not on this node", artifact.ErrNotFound, digest)
	if d.Peers != nil {
		err = d.Peers.FetchArtifact(ctx, digest, d.Store)
	}
	if err == nil || ctx.Err() != nil || named {
		return digest, err
	}
	there := d.origin(ctx, source, digest)
	if there != nil && !errors.Is(err, artifact.ErrNotFound) {
		// Not final, whatever the source says: a node that could not be asked may have it.
		there = fmt.Errorf("%w; and from its source: %v", err, there)
	}
	return digest, there
}

// origin gets code from where its source says.
func (d *Depot) origin(ctx context.Context, source string, digest artifact.Digest) error {
	if artifact.IsURL(source) {
		if d.Web == nil {
			return fmt.Errorf("%w: this node fetches no URLs", artifact.ErrRefused)
		}
		return d.Web.Fetch(ctx, d.Store, source, digest, artifact.MaxSize)
	}
	got, _, err := d.Store.Import(source)
	if err == nil && got != digest {
		return fmt.Errorf("%w: want %s, %s on this node has %s", artifact.ErrMismatch, digest, source, got)
	}
	return err
}

// verified is the code of a digest, compared with it.
func (d *Depot) verified(digest artifact.Digest) (*stored, error) {
	f, err := d.Store.Open(digest)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return &stored{d.Store, digest, st.Size()}, nil
}

// stored is code in a store.
type stored struct {
	store  *artifact.Store
	digest artifact.Digest
	size   int64
}

func (c *stored) SHA256() string { return c.digest.String() }
func (c *stored) Size() int64    { return c.size }
func (c *stored) Path() string   { return c.store.Path(c.digest) }

func (c *stored) Open() (io.ReadCloser, error) {
	f, err := c.store.Open(c.digest)
	if err != nil {
		return nil, err
	}
	return f, nil
}
