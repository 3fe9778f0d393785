package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node/nodepb"
	"github.com/miwnode/miwnode/transport"
)

// attemptPatience is how long a founder waits for the promises of its set.
const attemptPatience = 3 * time.Second

// promise binds a stateless node to one founding set. It is given once: only
// proof that the one who asked has given up for good frees it.
type promise struct {
	Format    int      `json:"format"`
	ClusterID string   `json:"cluster_id,omitempty"` // "" = none
	Asker     string   `json:"asker,omitempty"`      // the only node that may found it
	Members   []string `json:"members,omitempty"`
	// Version is the newest state version that all of them know.
	Version uint32 `json:"version,omitempty"`
	// Abandoned lists this node's own attempts that failed; they never come to life.
	Abandoned []string `json:"abandoned,omitempty"`
}

// promises is the promise in the data folder. The identity says that there is
// one, so that a folder that has lost it is not taken for free.
type promises struct {
	folder *folder
	ident  *identity

	mu  sync.Mutex
	now promise
}

func openPromises(f *folder, ident *identity) (*promises, error) {
	p := &promises{folder: f, ident: ident}
	found, err := f.read(promiseFile, &p.now)
	switch {
	case err != nil:
	case found: // the note may be what a crash left out
		err = ident.notePromise()
	case ident.promised():
		err = &folderError{dir: f.dir, kind: ErrFolderDamaged, text: promiseFile + " is missing, and this node has promised itself to a founding set: " +
			"with a second promise two clusters could be founded; restore the file, or, if no cluster was founded, remove the folder and start an empty one"}
	}
	return p, err
}

func (p *promises) get() promise {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// give records a promise, on disk before it is told. The same may be given
// again; another one to the same asker replaces the former, which that asker
// has abandoned by asking.
func (p *promises) give(want promise) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.now.ClusterID == want.ClusterID:
		return nil
	case p.now.ClusterID != "" && p.now.Asker != want.Asker:
		return fmt.Errorf("promised to the cluster that node %s founds", p.now.Asker)
	}
	want.Abandoned = p.now.Abandoned
	return p.set(want)
}

// abandon gives up an attempt of this node's own, for good.
func (p *promises) abandon(clusterID string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now.ClusterID != clusterID {
		return nil
	}
	return p.set(promise{Abandoned: append(slices.Clone(p.now.Abandoned), clusterID)})
}

// release drops a promise to an asker that has abandoned it.
func (p *promises) release(asker string, abandoned []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now.Asker != asker || p.now.ClusterID == "" || !slices.Contains(abandoned, p.now.ClusterID) {
		return nil
	}
	return p.set(promise{Abandoned: p.now.Abandoned})
}

func (p *promises) set(now promise) error {
	now.Format = folderFormat
	if err := p.folder.write(promiseFile, now); err != nil {
		return err
	}
	if err := p.ident.notePromise(); err != nil {
		return err
	}
	p.now = now
	return nil
}

// foundingSet decides who founds a cluster: of the nodes that see each other
// and expect n, the n with the smallest IDs. nil while there are too few, or
// one of them is not free.
func foundingSet(self *nodepb.Peer, peers []*nodepb.Peer, n int) []*nodepb.Peer {
	if n < 1 {
		return nil
	}
	set := []*nodepb.Peer{self}
	for _, p := range peers {
		if p.ClusterId != "" {
			return nil // there is a cluster: join it
		}
		if int(p.Expect) == n && p.NodeId != self.NodeId {
			set = append(set, p)
		}
	}
	if len(set) < n {
		return nil
	}
	slices.SortFunc(set, func(a, b *nodepb.Peer) int { return strings.Compare(a.NodeId, b.NodeId) })
	set = set[:n]
	for _, p := range set {
		if p.PromisedTo != "" && p.PromisedTo != self.PromisedTo {
			return nil
		}
	}
	return set
}

// knownToAll is the newest state version that all peers know: a cluster begins
// with one that each of its founders can apply.
func knownToAll(peers []*nodepb.Peer) uint32 {
	version := fsm.Version
	for _, p := range peers {
		version = min(version, max(1, p.MaxVersion))
	}
	return version
}

// founders is the set that this node should found a cluster with now, nil for
// none. An attempt of its own goes on with the same set; if that does not come
// together soon, it is given up so that those who promised are free for others.
func (m *membership) founders(peers []*nodepb.Peer) ([]*nodepb.Peer, error) {
	self, had := m.self(), m.promises.get()
	if had.ClusterID == "" {
		m.asked = time.Time{}
		if set := foundingSet(self, peers, m.n.cfg.BootstrapExpect); set != nil && set[0].NodeId == self.NodeId {
			return set, nil
		}
		return nil, nil
	}
	if had.Asker != self.NodeId {
		m.say("bound", "bound to a founding set; waiting for its founder", "founder", had.Asker, "members", had.Members)
		return nil, nil
	}
	if m.asked.IsZero() {
		m.asked = time.Now()
	}
	if time.Since(m.asked) > attemptPatience {
		m.n.log.Info("founding given up: its members did not come together", "members", had.Members)
		return nil, m.promises.abandon(had.ClusterID)
	}
	var set []*nodepb.Peer
	for _, id := range had.Members {
		i := slices.IndexFunc(peers, func(p *nodepb.Peer) bool { return p.NodeId == id })
		switch {
		case id == self.NodeId:
			set = append(set, self)
		case i < 0:
			return nil, nil
		default:
			set = append(set, peers[i])
		}
	}
	return set, nil
}

// found asks the set for its promises and founds the cluster. It returns false
// if it must be tried again, or another cluster joined.
func (m *membership) found(ctx context.Context, set []*nodepb.Peer) (bool, error) {
	want := promise{Asker: m.n.ident.id}
	for _, p := range set {
		want.Members = append(want.Members, p.NodeId)
	}
	want.Version = knownToAll(set)
	// An attempt that was interrupted is taken up again as it was.
	if had := m.promises.get(); had.Asker == want.Asker && slices.Equal(had.Members, want.Members) {
		want.ClusterID, want.Version = had.ClusterID, had.Version
	} else if had.Asker == want.Asker {
		if err := m.promises.abandon(had.ClusterID); err != nil {
			return false, err
		}
	}
	if want.ClusterID == "" {
		want.ClusterID = newClusterID()
	}
	if err := m.promises.give(want); err != nil {
		return false, nil // another one asked first
	}
	if len(set) > 1 {
		if given, err := m.collect(ctx, want, set); !given || err != nil {
			return false, err
		}
	}
	if err := m.bootstrap(ctx, want.Members); err != nil {
		return false, err
	}
	m.n.log.Info("cluster founded", "cluster", want.ClusterID, "members", want.Members)
	if err := m.adopt(want.ClusterID); err != nil {
		return false, err
	}
	m.announce(ctx, set)
	m.n.raft.campaign()
	return true, nil
}

// collect asks all others of the set. One refusal ends the attempt for good.
func (m *membership) collect(ctx context.Context, want promise, set []*nodepb.Peer) (bool, error) {
	type answer struct {
		peer  *nodepb.Peer
		reply *nodepb.PromiseReply
		err   error
	}
	answers := make(chan answer, len(set))
	asked := 0
	for _, p := range set {
		if p.NodeId == m.n.ident.id {
			continue
		}
		asked++
		go func() {
			ctx, cancel := context.WithTimeout(ctx, discoverTimeout)
			defer cancel()
			reply := &nodepb.PromiseReply{}
			err := m.n.callAddr(ctx, p.Addr, p.NodeId, methodPromise, &nodepb.PromiseRequest{ClusterId: want.ClusterID, Members: set}, reply)
			answers <- answer{p, reply, err}
		}()
	}
	given, refused := true, false
	for range asked {
		a := <-answers
		switch {
		case a.err != nil:
			given = false
			m.say("promise/"+a.peer.NodeId, "no promise yet", "from", a.peer.NodeId, "err", a.err)
		case !a.reply.Given:
			given, refused = false, true
			m.say("promise/"+a.peer.NodeId, "promise refused", "from", a.peer.NodeId, "why", a.reply.Reason)
		}
	}
	if refused {
		return false, m.promises.abandon(want.ClusterID)
	}
	return given, nil
}

// bootstrap writes the first configuration of raft, unless an interrupted
// attempt has.
func (m *membership) bootstrap(ctx context.Context, members []string) error {
	run := m.n.raft.run.Load()
	if run == nil {
		return errors.New("raft is not running")
	}
	var cfg raft.Configuration
	for i, id := range members {
		s := raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(id)}
		if i >= m.n.cfg.Voters {
			s.Suffrage = raft.Nonvoter
		}
		cfg.Servers = append(cfg.Servers, s)
	}
	if err := m.n.raft.unfound(); err != nil {
		return err
	}
	err := run.wait(ctx, run.raft.BootstrapCluster(cfg))
	if errors.Is(err, raft.ErrCantBootstrap) {
		return nil // done before
	}
	return err
}

// handlePromise answers a founder.
func (m *membership) handlePromise(_ context.Context, peer transport.Identity, q *nodepb.PromiseRequest) (*nodepb.PromiseReply, error) {
	no := func(format string, args ...any) (*nodepb.PromiseReply, error) {
		return &nodepb.PromiseReply{Reason: fmt.Sprintf(format, args...)}, nil
	}
	if mine := m.n.ident.clusterID(); mine != "" {
		if mine == q.ClusterId {
			return &nodepb.PromiseReply{Given: true}, nil
		}
		return no("belongs to cluster %s", mine)
	}
	if m.n.raft.hasState() {
		return no("has state")
	}
	want := promise{ClusterID: q.ClusterId, Asker: peer.NodeID, Version: knownToAll(q.Members)}
	inSet := false
	for _, p := range q.Members {
		want.Members = append(want.Members, p.NodeId)
		inSet = inSet || p.NodeId == m.n.ident.id
	}
	switch expect := m.n.cfg.BootstrapExpect; {
	case q.ClusterId == "" || !inSet || want.Members[0] != peer.NodeID || !slices.IsSorted(want.Members):
		return nil, fsm.Errorf(fsm.CodeInvalidArgument, "not a founding set of %s with this node in it", peer.NodeID)
	case len(want.Members) != expect:
		return no("expects %d nodes, not %d", expect, len(want.Members))
	}
	if err := m.promises.give(want); err != nil {
		return no("%v", err)
	}
	return &nodepb.PromiseReply{Given: true}, nil
}
