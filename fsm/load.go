package fsm

import (
	"errors"
	"fmt"
	"time"

	"github.com/miwnode/miwnode/fsm/fsmpb"
)

// loader builds a State from records. It trusts nothing: a snapshot that breaks
// an invariant is an error, whatever its checksum says.
type loader struct {
	s      *State
	last   int // field number of the last record
	order  string
	who    map[Identity]*Identity // shared as in the original
	keys   map[string]string
	client *client

	group     *group   // of the last group record
	groupPart string   // order of what was read of it
	grouped   []*Lease // that groups have granted
}

func newLoader(opts []Option) *loader {
	return &loader{s: NewState(opts...), who: map[Identity]*Identity{}, keys: map[string]string{}}
}

// field numbers of fsmpb.Record, in the order of the snapshot
const (
	recCluster = 1
	recSession = 2
	recLease   = 3
	recWaiter  = 4
	recClient  = 5 // with its results between
	recKeyed   = 6
	recEvent   = 7
	recLedger  = 8
)

func (l *loader) add(rec *fsmpb.Record) error {
	switch r := rec.Record.(type) {
	case *fsmpb.Record_Cluster:
		return l.cluster(r.Cluster)
	case *fsmpb.Record_Session:
		return l.session(r.Session)
	case *fsmpb.Record_Lease:
		return l.lease(r.Lease)
	case *fsmpb.Record_Waiter:
		return l.waiter(r.Waiter)
	case *fsmpb.Record_Client:
		return l.clientRecord(r.Client)
	case *fsmpb.Record_Result:
		return l.result(r.Result)
	case *fsmpb.Record_Keyed:
		return l.keyed(r.Keyed)
	case *fsmpb.Record_Event:
		return l.event(r.Event)
	case *fsmpb.Record_Ledger:
		return l.ledger(r.Ledger)
	}
	return l.addGroupRecord(rec)
}

var (
	errOrder   = errors.New("records are out of order")
	errSession = errors.New("its session is not live")
)

// in checks that records come kind by kind and, within a kind, by rising keys.
func (l *loader) in(kind int, key string) error {
	switch {
	case key == "":
		return errors.New("a record without a key")
	case l.last == 0, kind < l.last:
		return errOrder
	case kind == l.last && key <= l.order:
		return errOrder
	}
	l.last, l.order = kind, key
	return nil
}

func (l *loader) cluster(r *fsmpb.ClusterRecord) error {
	if l.last != 0 {
		return errOrder
	}
	l.last = recCluster
	if r.Version > Version {
		return &VersionError{Need: r.Version, What: "snapshot of a cluster raised to it"}
	}
	l.s.cluster = clusterOf(r)
	if l.s.defects.TokenResetOnRestore {
		l.s.cluster.counter = 0
	}
	return nil
}

func (l *loader) session(r *fsmpb.SessionRecord) error {
	if err := l.in(recSession, r.GetOpen().GetSessionId()); err != nil {
		return err
	}
	sess := sessionOf(r)
	if sess.InstanceID != "" {
		if _, taken := l.s.instances.Get(sess.InstanceID); taken {
			return fmt.Errorf("instance %s is there twice", sess.InstanceID)
		}
	}
	if !sess.Client {
		if _, taken := l.s.nodes.Get(nodeBoot(sess.NodeID, sess.Boot)); taken {
			return fmt.Errorf("boot %d of node %s is there twice", sess.Boot, sess.NodeID)
		}
	}
	sess.Identity = l.identity(*sess.Identity)
	sess.epoch = l.s.epoch
	l.s.addSession(sess)
	return nil
}

func (l *loader) identity(i Identity) *Identity {
	if i == (Identity{}) {
		return nobody
	}
	if l.who[i] == nil {
		l.who[i] = &i
	}
	return l.who[i]
}

func (l *loader) key(k string) string {
	if known, ok := l.keys[k]; ok {
		return known
	}
	l.keys[k] = k
	return k
}

func (l *loader) lease(r *LeaseRecord) error {
	if err := l.in(recLease, r.Key); err != nil {
		return err
	}
	if r.State < fsmpb.LeaseState(Held) || r.State > fsmpb.LeaseState(Barred) {
		return fmt.Errorf("lease state %d is unknown", r.State)
	}
	lease := LeaseOf(r)
	lease.Key = l.key(r.Key)
	lease.Who = l.identity(*lease.Who)
	if lease.State != Barred {
		sess, ok := l.s.sessions.Get(lease.SessionID)
		if !ok {
			return errSession
		}
		lease.SessionID = sess.ID
		sess.setLease(lease)
	}
	l.s.leases.Set(lease.Key, lease)
	return l.groupLease(lease)
}

func (l *loader) waiter(r *fsmpb.WaiterRecord) error {
	// Order is checked by key here, and within a queue by (revision, position).
	if l.last == recWaiter && r.Key == l.order {
		q, _ := l.s.queues.Get(r.Key)
		w := q.waiters[len(q.waiters)-1]
		if !(EventID{w.Revision, w.Position}).Less(EventID{r.Revision, r.Position}) {
			return errOrder
		}
	} else if err := l.in(recWaiter, r.Key); err != nil {
		return err
	}
	w := waiterOf(r)
	sess, ok := l.s.sessions.Get(r.SessionId)
	switch {
	case ok:
	case l.s.defects.DeadGrant:
		sess = deadSession(w)
	default:
		return errSession
	}
	w.Key, w.SessionID = l.key(r.Key), sess.ID
	q := l.s.queue(w.Key)
	q.waiters = append(q.waiters, w)
	l.s.waiters++
	sess.addWait(w.Key, 1)
	return nil
}

func (l *loader) clientRecord(r *fsmpb.ClientRecord) error {
	if err := l.in(recClient, r.NodeId); err != nil {
		return err
	}
	l.client = &client{nodeID: r.NodeId, boot: r.Boot, lowWater: r.LowWater, retired: r.RemovedRevision, epoch: l.s.epoch}
	l.s.clients.Set(r.NodeId, l.client)
	return nil
}

func (l *loader) result(r *fsmpb.SeqResult) error {
	if l.last != recClient || r.Result == nil {
		return errOrder
	}
	if n := len(l.client.results); n > 0 && l.client.results[n-1].seq >= r.Seq {
		return errOrder
	}
	if l.s.defects.ResultsForgotten {
		return nil
	}
	m := rememberedOf(r)
	l.client.results = append(l.client.results, &m)
	return nil
}

func (l *loader) keyed(r *fsmpb.KeyedRecord) error {
	k := &l.s.keyed
	if n := len(k.order); n > 0 && !(EventID{k.order[n-1].revision, k.order[n-1].position}).Less(EventID{r.Revision, r.Position}) {
		return errOrder
	}
	if l.last > recKeyed || l.last == 0 || r.Result.GetResult() == nil {
		return errOrder
	}
	l.last = recKeyed
	if _, twice := k.byKey.Get(r.Key); twice {
		return errOrder
	}
	k.add(&keyedEntry{
		key:      r.Key,
		hash:     r.Hash,
		elapsed:  time.Duration(r.ElapsedNs),
		revision: r.Revision,
		position: r.Position,
		answer:   rememberedOf(r.Result),
	})
	return nil
}

func (l *loader) event(r *fsmpb.EventRecord) error {
	if r.Type > 255 || !EventType(r.Type).known() || !knownReason(r.EndReason) {
		return &VersionError{What: fmt.Sprintf("event type %d, reason %d", r.Type, r.EndReason)}
	}
	if w := r.Worker; w != nil && !knownState(w.State) {
		return &VersionError{What: fmt.Sprintf("worker state %d", w.State)}
	}
	e := eventOf(r, l.identity(Identity{InstanceID: r.InstanceId, NodeID: r.NodeId, Name: r.Name}))
	ring := &l.s.events
	if l.last > recEvent || l.last == 0 || ring.full() || ring.len() > 0 && !ring.at(ring.len()-1).ID.Less(e.ID) {
		return errOrder
	}
	l.last = recEvent
	e.Key = l.key(e.Key)
	ring.push(e)
	return nil
}

func (l *loader) ledger(r *fsmpb.LedgerRecord) error {
	if l.last == 0 || l.s.ledger.full() {
		return errOrder
	}
	if !knownReason(r.EndReason) {
		return &VersionError{What: fmt.Sprintf("end reason %d", r.EndReason)}
	}
	l.last = recLedger
	e := ledgerOf(r, l.identity(Identity{InstanceID: r.InstanceId, NodeID: r.NodeId, Name: r.Name}))
	e.Key = l.key(e.Key)
	l.s.ledger.push(e)
	return nil
}

func (l *loader) finish() (*State, error) {
	if l.last == 0 {
		return nil, errors.New("it has no cluster record")
	}
	if err := l.finishGroups(); err != nil {
		return nil, err
	}
	return l.s, nil
}

func knownState(s fsmpb.WorkerState) bool { return s > 0 && int(s) < len(workerStates) }

func knownReason(r fsmpb.EndReason) bool { return r >= 0 && int(r) < len(endReasons) }
