package fsm

import (
	"time"

	"github.com/miwnode/miwnode/fsm/fsmpb"
)

// The records of a snapshot, and how each is made. The reverse is in load.go.

// writeRecords yields all records in their order. A record is only good until
// the next one: most of them share their memory.
func (v *View) writeRecords(put func(*fsmpb.Record)) {
	put(&fsmpb.Record{Record: &fsmpb.Record_Cluster{Cluster: v.cluster.record()}})
	v.sessions.Scan(func(_ string, s *Session) bool {
		put(&fsmpb.Record{Record: &fsmpb.Record_Session{Session: s.record()}})
		return true
	})

	lease := &fsmpb.Record_Lease{Lease: &fsmpb.LeaseRecord{}}
	rec := &fsmpb.Record{Record: lease}
	v.leases.Scan(func(_ string, l *Lease) bool {
		l.fill(lease.Lease)
		put(rec)
		return true
	})
	v.queues.Scan(func(_ string, q *queue) bool {
		for _, w := range q.waiters {
			put(&fsmpb.Record{Record: &fsmpb.Record_Waiter{Waiter: w.record()}})
		}
		return true
	})
	v.clients.Scan(func(_ string, c *client) bool {
		put(&fsmpb.Record{Record: &fsmpb.Record_Client{Client: &fsmpb.ClientRecord{
			NodeId: c.nodeID, Boot: c.boot, LowWater: c.lowWater, RemovedRevision: c.retired,
		}}})
		for _, m := range c.results {
			put(&fsmpb.Record{Record: &fsmpb.Record_Result{Result: m.record()}})
		}
		return true
	})
	for _, e := range v.keyed.order {
		put(&fsmpb.Record{Record: &fsmpb.Record_Keyed{Keyed: &fsmpb.KeyedRecord{
			Key: e.key, Hash: e.hash, ElapsedNs: int64(e.elapsed), Revision: e.revision, Position: e.position, Result: e.answer.record(),
		}}})
	}

	event := &fsmpb.Record_Event{Event: &fsmpb.EventRecord{}}
	rec = &fsmpb.Record{Record: event}
	for e := range v.events.from(0) {
		e.fill(event.Event)
		put(rec)
	}
	ledger := &fsmpb.Record_Ledger{Ledger: &fsmpb.LedgerRecord{}}
	rec = &fsmpb.Record{Record: ledger}
	for e := range v.ledger.from(0) {
		e.fill(ledger.Ledger)
		put(rec)
	}
	v.writeGroups(put)
}

func (c *cluster) record() *fsmpb.ClusterRecord {
	return &fsmpb.ClusterRecord{
		ClusterId:       c.id,
		Generation:      c.generation,
		Version:         c.version,
		TokenCounter:    c.counter,
		Revision:        c.revision,
		MaxSessionTtlMs: c.maxTTL.Milliseconds(),
		LeaderId:        c.leaderID,
		LeaderTerm:      c.leaderTerm,
		LastStamp:       c.lastStamp,
		ElapsedNs:       int64(c.elapsed),
		DroppedRevision: c.dropped.Revision,
		DroppedPosition: c.dropped.Position,
	}
}

func clusterOf(r *fsmpb.ClusterRecord) cluster {
	return cluster{
		id:         r.ClusterId,
		generation: r.Generation,
		version:    r.Version,
		counter:    r.TokenCounter,
		revision:   r.Revision,
		maxTTL:     milliseconds(r.MaxSessionTtlMs),
		leaderID:   r.LeaderId,
		leaderTerm: r.LeaderTerm,
		lastStamp:  r.LastStamp,
		elapsed:    time.Duration(r.ElapsedNs),
		dropped:    EventID{r.DroppedRevision, r.DroppedPosition},
	}
}

func milliseconds(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

func (s *Session) record() *fsmpb.SessionRecord {
	open := &OpenSession{
		SessionId:  s.ID,
		TtlMs:      s.TTL.Milliseconds(),
		Name:       s.Name,
		Boot:       s.Boot,
		Nonce:      s.Nonce,
		InstanceId: s.InstanceID,
		Zone:       s.Zone,
	}
	if s.Client {
		open.ViaNodeId = s.NodeID
	} else {
		open.NodeId = s.NodeID
	}
	for _, l := range s.Labels {
		open.Labels = append(open.Labels, &fsmpb.Label{Key: l.Key, Value: l.Value})
	}
	return &fsmpb.SessionRecord{
		Open:            open,
		OpenedRevision:  s.Revision,
		OpenedPosition:  s.Position,
		OpenedAt:        s.At,
		ChangedRevision: s.ChangedRevision,
		Drain:           s.Drain.record(),
		Cordon:          s.Cordon.record(),
	}
}

func sessionOf(r *fsmpb.SessionRecord) *Session {
	return &Session{
		Opening:         openingOf(r.Open, r.OpenedAt, r.OpenedRevision, r.OpenedPosition),
		ChangedRevision: r.ChangedRevision,
		Drain:           markOf(r.Drain),
		Cordon:          markOf(r.Cordon),
	}
}

func (m *Mark) record() *fsmpb.MarkRecord {
	if m == nil {
		return nil
	}
	return &fsmpb.MarkRecord{Revision: m.Revision, Reason: m.Reason, By: m.By, At: m.At, ExpiresInMs: m.ExpiresIn.Milliseconds()}
}

func markOf(r *fsmpb.MarkRecord) *Mark {
	if r == nil {
		return nil
	}
	return &Mark{Revision: r.Revision, Reason: r.Reason, By: r.By, At: r.At, ExpiresIn: milliseconds(r.ExpiresInMs)}
}

// Record returns l on the wire, its session and holder included.
func (l *Lease) Record() *LeaseRecord {
	r := &LeaseRecord{}
	l.fill(r)
	return r
}

func (l *Lease) fill(r *LeaseRecord) {
	r.Key = l.Key
	r.Token = l.Token
	r.SessionId = l.SessionID
	r.Holder = l.Holder
	r.AcquiredAt = l.AcquiredAt
	r.AcquiredRevision = l.AcquiredRevision
	r.State = fsmpb.LeaseState(l.State)
	r.Successor = l.Note.To
	r.LockDelayMs = l.LockDelay.Milliseconds()
	r.ChangedRevision = l.ChangedRevision
	r.By = l.Note.By
	r.Reason = l.Note.Reason
	r.InstanceId = l.Who.InstanceID
	r.NodeId = l.Who.NodeID
	r.Name = l.Who.Name
	r.Asks = l.asks
	r.Group = l.Group
	r.Stuck = l.Stuck.record()
}

// LeaseOf is the reverse of Record.
func LeaseOf(r *LeaseRecord) *Lease {
	return &Lease{
		Key:              r.GetKey(),
		Token:            r.GetToken(),
		SessionID:        r.GetSessionId(),
		Holder:           r.GetHolder(),
		Who:              &Identity{InstanceID: r.GetInstanceId(), NodeID: r.GetNodeId(), Name: r.GetName()},
		State:            LeaseState(r.GetState()),
		AcquiredAt:       r.GetAcquiredAt(),
		AcquiredRevision: r.GetAcquiredRevision(),
		ChangedRevision:  r.GetChangedRevision(),
		LockDelay:        milliseconds(r.GetLockDelayMs()),
		Note:             noteOf(r.GetBy(), r.GetReason(), r.GetSuccessor()),
		Group:            r.GetGroup(),
		Stuck:            stuckOf(r.GetStuck()),
		asks:             r.GetAsks(),
	}
}

func (w *Waiter) record() *fsmpb.WaiterRecord {
	return &fsmpb.WaiterRecord{
		Key:         w.Key,
		SessionId:   w.SessionID,
		Holder:      w.Holder,
		LockDelayMs: w.LockDelay.Milliseconds(),
		Revision:    w.Revision,
		Position:    w.Position,
		Asks:        w.asks,
	}
}

func waiterOf(r *fsmpb.WaiterRecord) *Waiter {
	return &Waiter{
		Key:       r.Key,
		SessionID: r.SessionId,
		Holder:    r.Holder,
		LockDelay: milliseconds(r.LockDelayMs),
		Revision:  r.Revision,
		Position:  r.Position,
		asks:      r.Asks,
	}
}

func (m *remembered) record() *fsmpb.SeqResult {
	return &fsmpb.SeqResult{
		Seq:            m.seq,
		Result:         m.result,
		AcquireKey:     m.got.key,
		AcquireSession: m.got.session,
		AcquireHolder:  m.got.holder,
	}
}

func rememberedOf(r *fsmpb.SeqResult) remembered {
	return remembered{
		seq:    r.GetSeq(),
		result: r.GetResult(),
		got:    place{r.GetAcquireKey(), r.GetAcquireSession(), r.GetAcquireHolder()},
	}
}

func (e *Event) fill(r *fsmpb.EventRecord) {
	r.Revision = e.ID.Revision
	r.Position = e.ID.Position
	r.Type = uint32(e.Type)
	r.Key = e.Key
	r.Token = e.Token
	r.InstanceId = e.Who.InstanceID
	r.NodeId = e.Who.NodeID
	r.Name = e.Who.Name
	r.EndReason = fsmpb.EndReason(e.EndReason)
	r.By = e.Note.By
	r.Reason = e.Note.Reason
	r.To = e.Note.To
	r.At = e.At
	r.Number = e.Note.Number
	r.Worker = e.Worker.record()
}

func eventOf(r *fsmpb.EventRecord, who *Identity) Event {
	note := noteOf(r.By, r.Reason, r.To)
	if r.Number != 0 {
		note = &Note{By: r.By, Reason: r.Reason, To: r.To, Number: r.Number}
	}
	return Event{
		ID:        EventID{r.Revision, r.Position},
		At:        r.At,
		Key:       r.Key,
		Token:     r.Token,
		Who:       who,
		Note:      note,
		Type:      EventType(r.Type),
		EndReason: EndReason(r.EndReason),
		Worker:    workerNoteOf(r.Worker),
	}
}

func (e *LedgerEntry) fill(r *fsmpb.LedgerRecord) {
	r.Key = e.Key
	r.Token = e.Token
	r.InstanceId = e.Who.InstanceID
	r.NodeId = e.Who.NodeID
	r.Name = e.Who.Name
	r.GrantedAt = e.GrantedAt
	r.GrantedRevision = e.GrantedRevision
	r.EndedAt = e.EndedAt
	r.EndedRevision = e.EndedRevision
	r.EndReason = fsmpb.EndReason(e.EndReason)
	r.By = e.Note.By
	r.Reason = e.Note.Reason
	r.To = e.Note.To
}

func ledgerOf(r *fsmpb.LedgerRecord, who *Identity) LedgerEntry {
	return LedgerEntry{
		Key:             r.Key,
		Token:           r.Token,
		Who:             who,
		GrantedAt:       r.GrantedAt,
		GrantedRevision: r.GrantedRevision,
		EndedAt:         r.EndedAt,
		EndedRevision:   r.EndedRevision,
		EndReason:       EndReason(r.EndReason),
		Note:            noteOf(r.By, r.Reason, r.To),
	}
}
