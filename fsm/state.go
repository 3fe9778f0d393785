package fsm

import (
	"errors"
	"time"

	"github.com/miwnode/miwnode/fsm/fsmpb"
	"github.com/tidwall/btree"
)

// Defects are planted bugs for the torture suite, which must catch each by its
// name. All are off in production.
type Defects struct {
	ReleaseByKey        bool // release doesn't look at the token
	ExpiryWithoutTerm   bool // a leader's decision of an earlier reign is applied
	TokenResetOnRestore bool // the token counter starts anew with a snapshot
	MoveAtOnce          bool // a workload that is to move is granted before its owner has stopped
	SuccessorUnseen     bool // a named successor gets what it was named for, drained or not
	FreeUnseen          bool // what becomes free wakes no planner
	ResultsForgotten    bool // a snapshot loses which commands were answered
	DeadGrant           bool // a session that ends keeps its places in queues
	StalePlan           bool // a plan is applied whatever has changed since it was made
	LateLoad            bool // the outcome of a load is taken from whichever attempt comes
	LostStart           bool // the outcome of a load doesn't look at what was asked for meanwhile
}

// tables is all that is replicated. State changes it, View is a copy of it.
type tables struct {
	cluster   cluster
	sessions  btree.Map[string, *Session]
	instances btree.Map[string, string] // instance ID → session ID
	joined    btree.Map[string, string] // order of joining → session ID, instances only
	nodes     btree.Map[string, string] // node ID and boot → session ID of a node's own sessions
	leases    btree.Map[string, *Lease]
	queues    btree.Map[string, *queue] // never an empty queue
	waiters   int                       // in all queues
	clients   btree.Map[string, *client]
	keyed     keyed
	events    ring[Event]
	ledger    ring[LedgerEntry]
	sharding
	jobTables
	workerTables
}

// cluster is the one record of the cluster as a whole.
type cluster struct {
	id         string
	generation uint64
	version    uint32
	counter    uint64 // of tokens in this generation
	revision   uint64
	maxTTL     time.Duration
	leaderID   string
	leaderTerm uint64
	lastStamp  int64
	elapsed    time.Duration // sum of the steps forward between stamps: never runs back
	dropped    EventID       // newest event that has left the ring
}

// State is the replicated state. One goroutine owns it; readers take a View.
//
// A record that a View may see is never changed. Records are replaced; sessions,
// queues and clients, which change often, are copied once per epoch, and an
// epoch ends with each View.
type State struct {
	tables
	defects Defects
	epoch   uint64

	// Of the entry being applied.
	term     uint64
	stamp    int64
	position uint32 // of the last event
	places   uint32 // of the last waiter, session or keyed command
	outcome  *Outcome
	touched  []topic  // what changed, for watchers
	got      place    // what the present command got, if it is an acquire
	ending   *Session // whose leases are being ended
}

// Option sets up a State.
type Option func(*State)

// WithDefects plants bugs.
func WithDefects(d Defects) Option { return func(s *State) { s.defects = d } }

// NewState returns the state before the first entry.
func NewState(opts ...Option) *State {
	s := &State{epoch: 1}
	s.sessions = *newMap[*Session]()
	s.leases = *newMap[*Lease]()
	s.queues = *newMap[*queue]()
	s.events = newRing[Event](EventRingSize)
	s.ledger = newRing[LedgerEntry](LedgerRingSize)
	s.cluster.maxTTL = DefaultMaxSessionTTL
	for _, o := range opts {
		o(s)
	}
	return s
}

// degree of the trees. The entry after a View copies each node on its way, so
// that nodes of half the usual size cost less than the deeper tree does.
const degree = 16

func newMap[V any]() *btree.Map[string, V] { return btree.NewMap[string, V](degree) }

// View returns the state as of now, in constant time. It stays as it is while
// the State goes on.
func (s *State) View() *View {
	s.epoch++
	v := &View{tables: s.tables}
	v.sessions = *s.sessions.IsoCopy()
	v.instances = *s.instances.IsoCopy()
	v.joined = *s.joined.IsoCopy()
	v.nodes = *s.nodes.IsoCopy()
	v.leases = *s.leases.IsoCopy()
	v.queues = *s.queues.IsoCopy()
	v.clients = *s.clients.IsoCopy()
	v.keyed.byKey = *s.keyed.byKey.IsoCopy()
	s.sharding.copyFor(&v.sharding)
	s.jobTables.copyFor(&v.jobTables)
	s.workerTables.copyFor(&v.workerTables)
	return v
}

// ProposalOutcome holds one Result per command of a Proposal, in order.
type ProposalOutcome struct {
	NodeID  string
	Boot    uint64
	Results []*Result
}

// Outcome is what applying one entry did.
type Outcome struct {
	Revision  uint64
	Proposals []ProposalOutcome // as in the Batch, in order
	Events    []*Event          // in order
	// Marked are the instances whose drain or cordon was set, also where it was
	// set before: its expiry counts anew, which no event tells.
	Marked []string
	// MarkedWorkloads are the pins and pauses that were set and run out.
	MarkedWorkloads []WorkloadMark
	// Err is set by a Machine that has halted: the entry was not applied.
	Err error
}

// Apply applies the entry of that index and term. Refusals are Results and
// change nothing. The Outcome is the caller's; b must not be changed afterwards.
func (s *State) Apply(index, term uint64, b *Batch) *Outcome {
	s.begin(index, term, b.GetStamp())
	out := s.outcome
	out.Proposals = make([]ProposalOutcome, len(b.GetProposals()))
	for i, p := range b.GetProposals() {
		out.Proposals[i] = ProposalOutcome{NodeID: p.GetNodeId(), Boot: p.GetBoot(), Results: s.applyProposal(p)}
	}
	s.outcome = nil
	return out
}

func (s *State) begin(index, term uint64, stamp int64) {
	s.cluster.revision, s.term, s.position, s.places = index, term, 0, 0
	s.outcome = &Outcome{Revision: index}
	s.touched = s.touched[:0]
	if stamp != 0 {
		if step := stamp - s.cluster.lastStamp; step > 0 && s.cluster.lastStamp != 0 {
			s.cluster.elapsed += time.Duration(step)
		}
		s.cluster.lastStamp = stamp
		s.keyed.forget(s.cluster.elapsed)
	}
	s.stamp = stamp
}

// run applies one command that is neither a repeat nor closed.
func (s *State) run(c *Command, r *Result) {
	r.Revision = s.cluster.revision
	version := s.cluster.version
	if s.cluster.id == "" {
		version = Version
	}
	op := OpOf(c)
	if err := checkCommand(c, op, version); err != nil {
		refuse(r, err)
		return
	}
	if err := s.dispatch(op, r); err != nil {
		refuse(r, err)
	}
}

func refuse(r *Result, err error) {
	r.Code = uint32(CodeOf(err))
	if e, ok := errors.AsType[*Error](err); ok {
		r.Message = e.Message
		if held, ok := e.Detail.(*LeaseRecord); ok {
			r.HeldBy = held
		}
	}
}

func (s *State) dispatch(op Op, r *Result) error {
	switch op := op.(type) {
	case *InitCluster:
		return s.initCluster(op)
	case *SetVersion:
		return s.setVersion(op)
	case *RecordLeader:
		return s.recordLeader(op)
	case *RecordMember:
		return s.recordMember(op)
	}
	if s.cluster.id == "" {
		return Errorf(CodeWrongState, "the cluster has no ID yet")
	}
	switch op := op.(type) {
	case *Acquire:
		return s.acquire(op, r)
	case *Release:
		return s.release(op)
	case *CancelWait:
		return s.cancelWait(op)
	case *Transfer:
		return s.transfer(op)
	case *Revoke:
		return s.revoke(op)
	case *FreeRevoked:
		return s.freeRevoked(op)
	case *LiftBar:
		return s.liftBar(op)
	case *OpenSession:
		return s.openSession(op, r)
	case *CloseSession:
		return s.closeSession(op)
	case *ExpireSession:
		return s.expireSession(op)
	case *MarkInstance:
		return s.markInstance(op)
	}
	return s.dispatchGroup(op, r)
}

func (s *State) dispatchGroup(op Op, r *Result) error {
	switch op := op.(type) {
	case *PutCatalog:
		return s.putCatalog(op)
	case *PutGroup:
		return s.putGroup(op)
	case *JoinGroup:
		return s.joinGroup(op)
	case *LeaveGroup:
		return s.leaveGroup(op)
	case *PlanGroup:
		return s.planGroup(op, r)
	case *MoveWorkload:
		return s.moveWorkload(op)
	case *SetPin:
		return s.setPin(op)
	case *SetPause:
		return s.setPause(op)
	case *Prepared:
		return s.prepared(op)
	case *ForgetFailure:
		return s.forgetFailure(op)
	case *RecordJob:
		return s.recordJob(op, r)
	case *RecordOverlap:
		return s.recordOverlap(op)
	case *RecordStuck:
		return s.recordStuck(op)
	case *RecordSleep:
		return s.recordSleep(op)
	case *DeleteGroup:
		return s.deleteGroup(op)
	}
	return s.dispatchWorker(op, r)
}

func (s *State) dispatchWorker(op Op, r *Result) error {
	switch op := op.(type) {
	case *CreateWorker:
		return s.createWorker(op, r)
	case *StartWorker:
		return s.startWorker(op, r)
	case *StopWorker:
		return s.stopWorker(op, r)
	case *ReloadWorker:
		return s.reloadWorker(op, r)
	case *DeleteWorker:
		return s.deleteWorker(op, r)
	case *SetWorkerTags:
		return s.setWorkerTags(op, r)
	case *BeginLoad:
		return s.beginLoad(op, r)
	case *FinishLoad:
		return s.finishLoad(op, r)
	case *FinishRun:
		return s.finishRun(op, r)
	}
	return Errorf(CodeInternal, "no rule for %T", op)
}

// otherTerm refuses a leader's decision under any term but its own: what was
// left over from an earlier reign must not hit what a leader in between has
// renewed.
func (s *State) otherTerm(term uint64) error {
	if term == s.term || s.defects.ExpiryWithoutTerm {
		return nil
	}
	return Errorf(CodeWrongState, "decided in term %d, but this is term %d", term, s.term)
}

func (s *State) initCluster(op *InitCluster) error {
	if s.cluster.id != "" {
		return Errorf(CodeAlreadyExists, "the cluster has the ID %s", s.cluster.id)
	}
	s.cluster.id = op.ClusterId
	s.cluster.generation = 1
	s.cluster.version = op.Version
	if op.MaxSessionTtlMs != 0 {
		s.cluster.maxTTL = time.Duration(op.MaxSessionTtlMs) * time.Millisecond
	}
	return nil
}

func (s *State) setVersion(op *SetVersion) error {
	if op.Version <= s.cluster.version {
		return Errorf(CodeWrongState, "the cluster is at state version %d already", s.cluster.version)
	}
	if s.cluster.version < workersVersion && op.Version >= workersVersion {
		s.reserveWorkers()
	}
	s.cluster.version = op.Version
	s.emit(Event{Type: EventVersionRaised, Note: &Note{Number: uint64(op.Version)}})
	return nil
}

func (s *State) recordLeader(op *RecordLeader) error {
	if err := s.otherTerm(op.Term); err != nil {
		return err
	}
	if s.cluster.leaderID == op.NodeId && s.cluster.leaderTerm == op.Term {
		return nil
	}
	s.cluster.leaderID, s.cluster.leaderTerm = op.NodeId, op.Term
	s.emit(Event{Type: EventLeaderChanged, Who: &Identity{NodeID: op.NodeId}, Note: &Note{Number: op.Term}})
	return nil
}

var memberEvents = map[fsmpb.MemberChange]EventType{
	MemberAdded:    EventMemberAdded,
	MemberPromoted: EventMemberPromoted,
	MemberDemoted:  EventMemberDemoted,
	MemberRemoved:  EventMemberRemoved,
}

func (s *State) recordMember(op *RecordMember) error {
	s.emit(Event{Type: memberEvents[op.Change], Who: &Identity{NodeID: op.NodeId}, Note: noteOf("", op.Reason, "")})
	if op.Change == MemberRemoved {
		s.retireClient(op.NodeId)
	}
	if c, ok := s.clients.Get(op.NodeId); ok && op.Change == MemberAdded {
		s.client(op.NodeId, c.boot).retired = 0
	}
	return nil
}

// nextToken returns a token above every earlier one. A counter that is used up
// carries into the generation.
func (s *State) nextToken() uint64 {
	s.cluster.counter++
	if s.cluster.counter == 1<<tokenBits {
		s.cluster.generation++
		s.cluster.counter = 1
	}
	return s.lastToken()
}

// lastToken returns the newest token.
func (s *State) lastToken() uint64 { return s.cluster.generation<<tokenBits + s.cluster.counter }

const tokenBits = 40

var (
	nobody = &Identity{}
	noNote = &Note{}
)

func noteOf(by, reason, to string) *Note {
	if by == "" && reason == "" && to == "" {
		return noNote
	}
	return &Note{By: by, Reason: reason, To: to}
}
