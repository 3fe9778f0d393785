package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/miwnode/miwnode/artifact"
	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node/nodepb"
	"github.com/miwnode/miwnode/transport"
)

// Artifacts travel over the connection that keep-alives use. A chunk is small
// enough for a slow link to let those pass in between, and only some are on
// their way at once.
const (
	artifactChunk      = 256 << 10
	artifactChunkLimit = 10 * time.Second // for one chunk
	artifactFetches    = 4                // at once, by this node
	artifactReads      = 8                // at once, for other nodes
)

// artifacts is what this node hands to others, and gets from them.
type artifacts struct {
	n       *Node
	store   atomic.Pointer[artifact.Store] // nil: this node has none for others
	fetches chan struct{}                  // a slot per fetch
	reads   chan struct{}                  // a slot per chunk
}

func newArtifacts(n *Node) *artifacts {
	return &artifacts{n: n, fetches: make(chan struct{}, artifactFetches), reads: make(chan struct{}, artifactReads)}
}

// ServeArtifacts lets the members of the cluster fetch what is in s from this
// node. Nil ends that.
func (n *Node) ServeArtifacts(s *artifact.Store) { n.artifacts.store.Store(s) }

// handleRead serves one chunk to a member.
func (a *artifacts) handleRead(ctx context.Context, peer transport.Identity, q *nodepb.ReadArtifactRequest) (*nodepb.ReadArtifactReply, error) {
	if !a.member(peer.NodeID) {
		return nil, fsm.Errorf(fsm.CodePermissionDenied, "node %s is no member of the cluster", peer.NodeID)
	}
	var d artifact.Digest
	if len(q.Sha256) != len(d) || q.Offset < 0 {
		return nil, fsm.Errorf(fsm.CodeInvalidArgument, "want a digest of %d bytes and an offset", len(d))
	}
	copy(d[:], q.Sha256)
	s := a.store.Load()
	if s == nil {
		return nil, fsm.Errorf(fsm.CodeNotFound, "node %s has no artifacts for others", a.n.ident.id)
	}
	select {
	case a.reads <- struct{}{}:
		defer func() { <-a.reads }()
	case <-ctx.Done():
		return nil, fsm.Errorf(fsm.CodeOverloaded, "node %s is busy with other transfers", a.n.ident.id)
	}
	b := make([]byte, artifactChunk)
	n, size, err := s.ReadAt(d, b, q.Offset)
	if errors.Is(err, artifact.ErrNotFound) {
		return nil, fsm.Errorf(fsm.CodeNotFound, "%v", err)
	}
	if err != nil {
		return nil, err
	}
	return &nodepb.ReadArtifactReply{Size: size, Data: b[:n]}, nil
}

// FetchArtifact gets the artifact of a digest from any other member that has
// it into a store, unless it is there. A transfer that breaks off goes on with
// another member, and what has come is kept for the next call. What it got is
// verified as a whole; where that fails each member is asked for all of it.
//
// Its error matches artifact.ErrNotFound if all members answered that they have
// not got it, artifact.ErrMismatch if what they have is something else.
func (n *Node) FetchArtifact(ctx context.Context, d artifact.Digest, into *artifact.Store) error {
	a := n.artifacts
	if into.Has(d) {
		return nil
	}
	select {
	case a.fetches <- struct{}{}:
		defer func() { <-a.fetches }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	peers, away := a.sources()
	err := a.fetch(ctx, d, into, peers, away)
	if !errors.Is(err, artifact.ErrMismatch) {
		return err
	}
	// A part of an earlier time was no good, or the copy of one of the members is.
	var damaged, other, last error
	for _, peer := range peers {
		if last = a.fetch(ctx, d, into, []string{peer}, away); last == nil || ctx.Err() != nil {
			return last
		}
		switch {
		case errors.Is(last, artifact.ErrMismatch):
			n.log.Warn("the artifact that a member has is damaged", "member", peer, "sha256", d.String())
			damaged = last
		case !errors.Is(last, artifact.ErrNotFound):
			other = last
		}
	}
	return cmp.Or(other, damaged, last)
}

// sources are the members that may have an artifact: those that seem to be
// there first, in no order among each other. away are members that are not there.
func (a *artifacts) sources() (peers, away []string) {
	members := a.n.Members()
	rand.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	rank := func(m Member) int { return slices.Index([]string{"alive", "suspect", ""}, m.Gossip) }
	slices.SortStableFunc(members, func(x, y Member) int { return rank(x) - rank(y) })
	for _, m := range members {
		switch {
		case m.NodeID == a.n.ident.id:
		case rank(m) >= 0:
			peers = append(peers, m.NodeID)
		case a.member(m.NodeID):
			away = append(away, m.NodeID)
		}
	}
	return peers, away
}

// member tells whether a node is in the configuration of the cluster.
func (a *artifacts) member(id string) bool {
	return slices.ContainsFunc(a.n.raft.servers(), func(s raft.Server) bool { return string(s.ID) == id })
}

// fetch asks one peer after the other until one has sent the rest.
func (a *artifacts) fetch(ctx context.Context, d artifact.Digest, into *artifact.Store, peers, away []string) error {
	return into.Fill(ctx, d, artifact.MaxSize, func(p *artifact.Part) error {
		absent := len(away) == 0
		var why []string
		for _, peer := range peers {
			err := a.pull(ctx, d, p, peer)
			if err == nil {
				return nil
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			absent = absent && errors.Is(err, fsm.ErrNotFound)
			why = append(why, fmt.Sprintf("%s: %v", peer, err))
		}
		for _, id := range away {
			why = append(why, id+": not there")
		}
		if absent {
			return fmt.Errorf("%w: %s is on none of the other %d nodes", artifact.ErrNotFound, d, len(peers))
		}
		return fmt.Errorf("get artifact %s from another node: %s", d, strings.Join(why, "; "))
	})
}

// pull gets from one peer what is missing of p.
func (a *artifacts) pull(ctx context.Context, d artifact.Digest, p *artifact.Part, peer string) error {
	for anew := false; ; {
		reply, err := a.read(ctx, d, p.Offset(), peer)
		if err != nil {
			return err
		}
		switch {
		case reply.Size < 0 || reply.Size > artifact.MaxSize:
			return fmt.Errorf("it has %d bytes there, at most %d are allowed", reply.Size, int64(artifact.MaxSize))
		case p.Offset() > reply.Size && !anew:
			// Whoever sent so much sent something else.
			if err := p.Reset(); err != nil {
				return err
			}
			anew = true
			continue
		case p.Offset()+int64(len(reply.Data)) > reply.Size:
			return errors.New("it sent more than it says there is")
		}
		if _, err := p.Write(reply.Data); err != nil {
			return err
		}
		if p.Offset() == reply.Size {
			return nil
		}
		if len(reply.Data) == 0 {
			return fmt.Errorf("it sent nothing at %d of %d bytes", p.Offset(), reply.Size)
		}
	}
}

func (a *artifacts) read(ctx context.Context, d artifact.Digest, offset int64, peer string) (*nodepb.ReadArtifactReply, error) {
	ctx, cancel := context.WithTimeout(ctx, artifactChunkLimit)
	defer cancel()
	reply := &nodepb.ReadArtifactReply{}
	return reply, a.n.call(ctx, peer, methodReadArtifact, &nodepb.ReadArtifactRequest{Sha256: d[:], Offset: offset}, reply)
}
