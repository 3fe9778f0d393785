package node_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/artifact"
	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node/nodepb"
	"github.com/miwnode/miwnode/node/nodetest"
	"github.com/miwnode/miwnode/transport"
)

// bulk is an artifact of several chunks, the last of which is not full.
func bulk() string { return strings.Repeat("0123456789abcde\n", 100_000) }

// stores gives each node a store and has it served.
func stores(t *testing.T, c *nodetest.Cluster) (all []*artifact.Store) {
	t.Helper()
	for i := range c.Len() {
		s, err := artifact.Open(filepath.Join(c.Dir(i), "artifacts"))
		if err != nil {
			t.Fatal(err)
		}
		c.Node(i).ServeArtifacts(s)
		all = append(all, s)
	}
	return all
}

func keep(t *testing.T, s *artifact.Store, content string) artifact.Digest {
	t.Helper()
	d, _, err := s.Put(strings.NewReader(content), artifact.MaxSize)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// spoil puts other content under a digest.
func spoil(t *testing.T, s *artifact.Store, d artifact.Digest, content string) {
	t.Helper()
	if err := os.WriteFile(s.Path(d), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// same fails the test unless the store has the artifact, whole.
func same(t *testing.T, s *artifact.Store, d artifact.Digest) {
	t.Helper()
	f, err := s.Open(d)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
}

// artifacts runs f on three nodes with stores, in a bubble. Node 0 fetches.
func artifacts(t *testing.T, f func(t *testing.T, c *nodetest.Cluster, all []*artifact.Store)) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, nodetest.Config{Nodes: 3, Seed: 1})
		c.WaitReady()
		c.WaitVoters(3)
		c.Until(nodetest.DefaultWait, "all know of all by gossip", func() bool {
			for i := range c.Len() {
				for _, m := range c.Node(i).Members() {
					if m.Gossip != "alive" {
						return false
					}
				}
			}
			return true
		})
		f(t, c, stores(t, c))
	})
}

// TestArtifact_Fetch: whoever has it sends it; a second call asks nobody.
func TestArtifact_Fetch(t *testing.T) {
	artifacts(t, func(t *testing.T, c *nodetest.Cluster, all []*artifact.Store) {
		d := keep(t, all[2], bulk())
		empty := keep(t, all[1], "")
		for _, d := range []artifact.Digest{d, empty} {
			if err := c.Node(0).FetchArtifact(c.Context(20*time.Second), d, all[0]); err != nil {
				t.Fatal(err)
			}
			same(t, all[0], d)
		}
		c.Isolate(0)
		if err := c.Node(0).FetchArtifact(c.Context(20*time.Second), d, all[0]); err != nil {
			t.Error(err)
		}
	})
}

// TestArtifact_NotFound: that all have been asked and have not got it is told from that one could not be asked.
func TestArtifact_NotFound(t *testing.T) {
	artifacts(t, func(t *testing.T, c *nodetest.Cluster, all []*artifact.Store) {
		d := artifact.Digest(sha256.Sum256([]byte("nobody has this")))
		fetch := func() error { return c.Node(0).FetchArtifact(c.Context(40*time.Second), d, all[0]) }
		err := fetch()
		if !errors.Is(err, artifact.ErrNotFound) || !strings.Contains(err.Error(), "on none of the other 2 nodes") {
			t.Errorf("error %v", err)
		}
		c.Node(1).ServeArtifacts(nil)
		if err := fetch(); !errors.Is(err, artifact.ErrNotFound) {
			t.Errorf("a node without a store: %v", err)
		}
		c.Crash(2)
		for range 2 { // as long as gossip believes that it is there, and after
			if err := fetch(); err == nil || errors.Is(err, artifact.ErrNotFound) {
				t.Errorf("a member is dead: %v", err)
			}
			c.Until(nodetest.DefaultWait, "node 0 knows of the death", func() bool {
				for _, m := range c.Node(0).Members() {
					if m.NodeID != c.Node(0).ID() && m.NodeID != c.Node(1).ID() && m.Gossip == "dead" {
						return true
					}
				}
				return false
			})
		}
	})
}

// TestArtifact_Alone: a cluster of one has nobody to ask.
func TestArtifact_Alone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, nodetest.Config{Nodes: 1})
		c.WaitReady()
		s := stores(t, c)[0]
		err := c.Node(0).FetchArtifact(c.Context(time.Second), artifact.Digest{1}, s)
		if !errors.Is(err, artifact.ErrNotFound) {
			t.Errorf("error %v, want ErrNotFound", err)
		}
	})
}

// partOf is how much of an artifact has come.
func partOf(s *artifact.Store, d artifact.Digest) int64 {
	st, err := os.Stat(s.Path(d) + ".part")
	if err != nil {
		return 0
	}
	return st.Size()
}

// TestArtifact_PeerVanishes: a transfer whose sender dies, or can't be reached any more, goes on where it was with another member.
func TestArtifact_PeerVanishes(t *testing.T) {
	for _, how := range []string{"crash", "cut"} {
		t.Run(how, func(t *testing.T) {
			artifacts(t, func(t *testing.T, c *nodetest.Cluster, all []*artifact.Store) {
				c.Net.SetDefault(20*time.Millisecond, 0, 0) // so that a transfer takes a while
				text := bulk()
				d := keep(t, all[1], text)
				done := make(chan error, 1)
				go func() {
					done <- c.Node(0).FetchArtifact(c.Context(40*time.Second), d, all[0])
				}()
				c.Until(nodetest.DefaultWait, "half of it is there", func() bool { return partOf(all[0], d) > int64(len(text)/2) })
				if how == "crash" {
					c.Crash(1)
				} else {
					c.Cut(0, 1)
				}
				if err := <-done; err == nil || errors.Is(err, artifact.ErrNotFound) {
					t.Fatalf("error %v: the member may be back", err)
				}
				if got := partOf(all[0], d); got <= int64(len(text)/2) || got%(256<<10) != 0 {
					t.Fatalf("%d bytes are kept", got)
				}
				// The first half of the other copy is rubbish: it must not be asked for.
				half := len(text) / 2
				spoil(t, all[2], d, strings.Repeat("?", half)+text[half:])
				if err := c.Node(0).FetchArtifact(c.Context(40*time.Second), d, all[0]); err != nil {
					t.Fatal(err)
				}
				same(t, all[0], d)
			})
		})
	}
}

// TestArtifact_OtherTakesOver: with two who have it, the death of one in the middle is not even noticed.
func TestArtifact_OtherTakesOver(t *testing.T) {
	artifacts(t, func(t *testing.T, c *nodetest.Cluster, all []*artifact.Store) {
		c.Net.SetDefault(20*time.Millisecond, 0, 0)
		d := keep(t, all[1], bulk())
		keep(t, all[2], bulk())
		done := make(chan error, 1)
		go func() { done <- c.Node(0).FetchArtifact(c.Context(40*time.Second), d, all[0]) }()
		c.Until(nodetest.DefaultWait, "some of it is there", func() bool { return partOf(all[0], d) > 0 })
		sender := 1
		if c.Net.LinkStats(c.Host(2), c.Host(0)).StreamBytes > c.Net.LinkStats(c.Host(1), c.Host(0)).StreamBytes {
			sender = 2
		}
		c.Crash(sender)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		same(t, all[0], d)
	})
}

// TestArtifact_Damaged: a damaged copy is found out, wherever it is, and a good one found as long as there is one.
func TestArtifact_Damaged(t *testing.T) {
	text := bulk()
	other := "X" + text[1:]
	for _, c := range []struct {
		name        string
		part        string // of an earlier time
		first, rest string // what the two others have; "" = nothing
		want        error
	}{
		{"one of two", "", other, text, nil},
		{"longer", "", other + "more", text, nil},
		{"shorter", "", text[:300_000], text, nil},
		{"an old part", other[:400_000], text, text, nil},
		{"an old part, too long", other + "more", text, "", nil},
		{"an old part of all", other, text, "", nil},
		{"both", "", other, text[:300_000], artifact.ErrMismatch},
		{"the only one", "", other, "", artifact.ErrMismatch},
		{"an old part and nobody has it", other, "", "", artifact.ErrNotFound},
	} {
		t.Run(c.name, func(t *testing.T) {
			artifacts(t, func(t *testing.T, cluster *nodetest.Cluster, all []*artifact.Store) {
				d := artifact.Digest(sha256.Sum256([]byte(text)))
				for i, content := range []string{c.first, c.rest} {
					if content != "" {
						spoil(t, all[1+i], d, content)
					}
				}
				if err := os.WriteFile(all[0].Path(d)+".part", []byte(c.part), 0o600); err != nil {
					t.Fatal(err)
				}
				err := cluster.Node(0).FetchArtifact(cluster.Context(40*time.Second), d, all[0])
				if !errors.Is(err, c.want) {
					t.Fatalf("error %v, want %v", err, c.want)
				}
				if c.want == nil {
					same(t, all[0], d)
				} else if all[0].Has(d) {
					t.Error("it is there")
				}
			})
		})
	}
}

// TestArtifact_Cancelled: the caller's end ends a transfer, and its cause comes back.
func TestArtifact_Cancelled(t *testing.T) {
	artifacts(t, func(t *testing.T, c *nodetest.Cluster, all []*artifact.Store) {
		c.Net.SetDefault(20*time.Millisecond, 0, 0)
		d := keep(t, all[1], bulk())
		keep(t, all[2], bulk())
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Node(0).FetchArtifact(ctx, d, all[0]) }()
		c.Until(nodetest.DefaultWait, "some of it is there", func() bool { return partOf(all[0], d) > 0 })
		enough := errors.New("enough")
		cancel(enough)
		if err := <-done; !errors.Is(err, enough) {
			t.Errorf("error %v, want the cause", err)
		}
	})
}

// TestArtifact_Many: more fetches at once than there are slots, of few artifacts by all nodes.
func TestArtifact_Many(t *testing.T) {
	artifacts(t, func(t *testing.T, c *nodetest.Cluster, all []*artifact.Store) {
		var digests []artifact.Digest
		for i := range 12 {
			digests = append(digests, keep(t, all[i%3], bulk()+strings.Repeat("x", i)))
		}
		done := make(chan error)
		for i := range 3 {
			for _, d := range append(digests, digests...) {
				go func() { done <- c.Node(i).FetchArtifact(c.Context(time.Minute), d, all[i]) }()
			}
		}
		for range 3 * 24 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		for _, s := range all {
			for _, d := range digests {
				same(t, s, d)
			}
		}
	})
}

// TestArtifact_MembersOnly: nobody but a member of the cluster is served, and nonsense is refused.
func TestArtifact_MembersOnly(t *testing.T) {
	artifacts(t, func(t *testing.T, c *nodetest.Cluster, all []*artifact.Store) {
		n := c.Node(0)
		d := keep(t, all[0], bulk())
		member := transport.Identity{ClusterID: n.ClusterID(), NodeID: c.Node(1).ID()}
		for _, q := range []struct {
			name   string
			peer   transport.Identity
			sha256 []byte
			offset int64
			want   fsm.Code
		}{
			{"a member", member, d[:], 0, fsm.CodeDone},
			{"past the end", member, d[:], 1 << 40, fsm.CodeDone},
			{"of another cluster", transport.Identity{ClusterID: "other", NodeID: c.Node(1).ID()}, d[:], 0, fsm.CodeNotReady},
			{"of no cluster", transport.Identity{NodeID: c.Node(1).ID()}, d[:], 0, fsm.CodeNotReady},
			{"a stranger", transport.Identity{ClusterID: n.ClusterID(), NodeID: "stranger"}, d[:], 0, fsm.CodePermissionDenied},
			{"half a digest", member, d[:16], 0, fsm.CodeInvalidArgument},
			{"no digest", member, nil, 0, fsm.CodeInvalidArgument},
			{"before the beginning", member, d[:], -1, fsm.CodeInvalidArgument},
			{"not there", member, make([]byte, 32), 0, fsm.CodeNotFound},
		} {
			reply, err := n.ReadArtifactAs(t.Context(), q.peer, &nodepb.ReadArtifactRequest{Sha256: q.sha256, Offset: q.offset})
			if got := fsm.CodeOf(err); got != q.want {
				t.Errorf("%s: %v (%v), want %v", q.name, got, err, q.want)
			}
			if err == nil && reply.Size != 1_600_000 {
				t.Errorf("%s: size %d", q.name, reply.Size)
			}
		}
	})
}
