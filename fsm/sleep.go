package fsm

import (
	"strconv"
	"time"
)

func checkRecordSleep(op *RecordSleep) error {
	if op.SleptNs <= 0 {
		return invalid("slept", "must be above 0")
	}
	return first(key(op.Key), number("token", op.Token), id("instance_id", op.InstanceId))
}

// recordSleep notes the sleep beside the grant, which may have ended meanwhile.
func (s *State) recordSleep(op *RecordSleep) error {
	who := &Identity{InstanceID: op.InstanceId}
	if l, held := s.leases.Get(op.Key); held && l.Token == op.Token && l.Who.InstanceID == op.InstanceId {
		who = l.Who
	}
	slept := time.Duration(op.SleptNs)
	note := &Note{Reason: "slept " + strconv.FormatFloat(slept.Round(time.Millisecond).Seconds(), 'f', -1, 64) + " s", Number: uint64(slept)}
	s.ledger.push(LedgerEntry{
		Key:             op.Key,
		Token:           op.Token,
		Who:             who,
		GrantedAt:       s.stamp,
		GrantedRevision: s.cluster.revision,
		EndedAt:         s.stamp,
		EndedRevision:   s.cluster.revision,
		EndReason:       EndSlept,
		Note:            noteOf("", note.Reason, ""),
	})
	s.emit(Event{Type: EventLeaseSlept, Key: op.Key, Token: op.Token, Who: who, Note: note})
	return nil
}
