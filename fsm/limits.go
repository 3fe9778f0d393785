package fsm

import (
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/miwnode/miwnode/fsm/fsmpb"
)

// Limits, checked before a command is proposed and again when it is applied.
// The limits of its fields keep every command far below MaxCommandBytes.
const (
	MaxKeyBytes            = 512
	MaxHolderBytes         = 512
	MaxNameBytes           = 256
	MaxIDBytes             = 256 // of sessions, instances, nodes, clusters; nonces and zones too
	MaxByBytes             = 128
	MaxReasonBytes         = 512
	MaxLabels              = 64
	MaxLabelKeyBytes       = 128
	MaxLabelValueBytes     = 1024
	MaxIdempotencyKeyBytes = 256

	MaxCommandBytes = 1 << 20
	MaxBatchBytes   = 4 << 20

	MaxLeases          = 1_000_000 // barred keys included
	MaxWaiters         = 1_000_000 // in all queues
	MaxWaitersPerKey   = 10_000    // a queue is looked through from its front
	MaxSessions        = 100_000
	MaxIdempotencyKeys = 10_000
	MaxResults         = 65_536 // remembered for one boot, above its low-water mark
	maxRetiredClients  = 1_024  // whose node has left the cluster

	MinSessionTTL        = 2 * time.Second
	DefaultMaxSessionTTL = 60 * time.Second
	maxMaxSessionTTL     = time.Hour
	MaxLockDelay         = time.Hour
	MaxMarkExpiry        = 366 * 24 * time.Hour

	// IdempotencyWindow is how long the first answer to an Idempotency-Key is kept.
	IdempotencyWindow = 10 * time.Minute

	EventRingSize  = 65_536
	LedgerRingSize = 65_536
)

// Check says whether op may be proposed in a cluster of that state version: its
// shape, the limits of its fields and the version that it needs. Apply does the
// same again. It returns an Error of CodeInvalidArgument that names the field,
// or of CodeWrongState if the version is too small.
func Check(op Op, version uint32) error {
	if need := Needs(op); need > version {
		return Errorf(CodeWrongState, "the cluster is at state version %d, the command needs %d", version, need)
	}
	if version >= workersVersion {
		if err := reserved(op); err != nil {
			return err
		}
	}
	return checkOp(op)
}

// CheckCommand is Check for a whole command, its idempotency key included.
func CheckCommand(c *Command, version uint32) error { return checkCommand(c, OpOf(c), version) }

func checkCommand(c *Command, op Op, version uint32) error {
	if op == nil {
		return invalid("op", "is missing")
	}
	if c.GetIdempotencyKey() != "" || len(c.GetIdempotencyHash()) != 0 {
		if err := text("idempotency_key", c.IdempotencyKey, 1, MaxIdempotencyKeyBytes); err != nil {
			return err
		}
		if len(c.IdempotencyHash) != 32 {
			return invalid("idempotency_hash", "has %d bytes, must have 32", len(c.IdempotencyHash))
		}
	}
	return Check(op, version)
}

func checkOp(op Op) error {
	switch op := op.(type) {
	case *Acquire:
		return first(key(op.Key), id("session_id", op.SessionId), holder(op.Holder),
			span("lock_delay", op.LockDelayMs, 0, MaxLockDelay))
	case *Release:
		return first(key(op.Key), id("session_id", op.SessionId), number("token", op.Token), text("failure", op.Failure, 0, MaxFailureBytes))
	case *CancelWait:
		return first(key(op.Key), id("session_id", op.SessionId), holder(op.Holder))
	case *Transfer:
		return first(key(op.Key), number("token", op.Token), id("to_instance", op.ToInstance), author(op.By, op.Reason))
	case *Revoke:
		return first(key(op.Key), number("token", op.Token), author(op.By, op.Reason))
	case *FreeRevoked:
		return first(key(op.Key), number("token", op.Token), number("term", op.Term))
	case *LiftBar:
		return first(key(op.Key), number("token", op.Token), number("term", op.Term))
	case *OpenSession:
		return checkOpenSession(op)
	case *CloseSession:
		if op.Reason != CloseClosed && op.Reason != CloseCrashed {
			return invalid("reason", "must be closed or crashed")
		}
		return id("session_id", op.SessionId)
	case *ExpireSession:
		return first(id("session_id", op.SessionId), number("term", op.Term))
	case *MarkInstance:
		return checkMarkInstance(op)
	case *InitCluster:
		if op.Version == 0 || op.Version > Version {
			return invalid("version", "is %d, must be 1 to %d", op.Version, Version)
		}
		if op.MaxSessionTtlMs != 0 {
			if err := span("max_session_ttl", op.MaxSessionTtlMs, MinSessionTTL, maxMaxSessionTTL); err != nil {
				return err
			}
		}
		return id("cluster_id", op.ClusterId)
	case *SetVersion:
		if op.Version == 0 || op.Version > Version {
			return invalid("version", "is %d, must be 1 to %d", op.Version, Version)
		}
		return nil
	case *RecordLeader:
		return first(id("node_id", op.NodeId), number("term", op.Term))
	case *RecordMember:
		if memberEvents[op.Change] == 0 {
			return invalid("change", "is unknown")
		}
		return first(id("node_id", op.NodeId), author("", op.Reason))
	}
	return checkGroupOp(op)
}

func checkOpenSession(op *OpenSession) error {
	// A client's session may come without any node, a node's own has its boot.
	if op.NodeId != "" && (op.Boot == 0 || op.Nonce == "") {
		return invalid("boot", "and nonce must be set in a node's own session")
	}
	if op.NodeId == "" && (op.Boot != 0 || op.Nonce != "" || op.RestartProved) {
		return invalid("node_id", "must be set where boot, nonce or restart_proved is")
	}
	if op.NodeId != "" && op.ViaNodeId != "" {
		return invalid("via_node_id", "is for sessions of clients only")
	}
	if err := checkLabels("", op.Labels); err != nil {
		return err
	}
	return first(
		id("session_id", op.SessionId),
		ttl(op.TtlMs),
		text("name", op.Name, 0, MaxNameBytes),
		text("node_id", op.NodeId, 0, MaxIDBytes),
		text("nonce", op.Nonce, 0, MaxIDBytes),
		text("instance_id", op.InstanceId, 0, MaxIDBytes),
		text("zone", op.Zone, 0, MaxIDBytes),
		text("via_node_id", op.ViaNodeId, 0, MaxIDBytes))
}

func checkMarkInstance(op *MarkInstance) error {
	if err := first(id("instance_id", op.InstanceId), author(op.By, op.Reason),
		span("expires_in", op.ExpiresInMs, 0, MaxMarkExpiry)); err != nil {
		return err
	}
	switch op.Mark {
	case MarkDrain, MarkCordon:
		if op.MarkedRevision != 0 || op.Term != 0 {
			return invalid("marked_revision", "and term are for clearing")
		}
	case MarkUndrain, MarkUncordon:
		if op.ExpiresInMs != 0 {
			return invalid("expires_in", "is for setting")
		}
		if (op.MarkedRevision == 0) != (op.Term == 0) {
			return invalid("marked_revision", "and term go together")
		}
	default:
		return invalid("mark", "is unknown")
	}
	return nil
}

// LabelsOf sorts labels for OpenSession.
func LabelsOf(labels map[string]string) []*fsmpb.Label {
	return labelsOf(labels)
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func invalid(field, format string, args ...any) error {
	return Errorf(CodeInvalidArgument, "%s %s", field, fmt.Sprintf(format, args...))
}

func key(s string) error    { return text("key", s, 1, MaxKeyBytes) }
func holder(s string) error { return text("holder", s, 0, MaxHolderBytes) }

func id(field, s string) error { return text(field, s, 1, MaxIDBytes) }

func author(by, reason string) error {
	return first(text("by", by, 0, MaxByBytes), text("reason", reason, 0, MaxReasonBytes))
}

func number(field string, v uint64) error {
	if v == 0 {
		return invalid(field, "must not be 0")
	}
	return nil
}

func span(field string, ms int64, low, high time.Duration) error {
	if ms < low.Milliseconds() || ms > high.Milliseconds() {
		return invalid(field, "is %s, must be %v to %v", inMillis(ms), low, high)
	}
	return nil
}

// ttl checks what no state need be known for; the cluster's own maximum is
// looked at when the command is applied.
func ttl(ms int64) error {
	if ms < MinSessionTTL.Milliseconds() || ms > maxMaxSessionTTL.Milliseconds() {
		return invalid("ttl", "is %s, must be %v to the cluster's maximum", inMillis(ms), MinSessionTTL)
	}
	return nil
}

// inMillis is a duration in words, also one that is beyond what a Duration holds.
func inMillis(ms int64) string {
	if d := time.Duration(ms) * time.Millisecond; d.Milliseconds() == ms {
		return d.String()
	}
	return fmt.Sprintf("%d ms", ms)
}

// text checks a string of low to high bytes: valid UTF-8, no control characters.
func text(field, s string, low, high int) error {
	if len(s) < low {
		return invalid(field, "must not be empty")
	}
	if len(s) > high {
		return invalid(field, "has %d bytes, at most %d are allowed", len(s), high)
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c >= 0x7f {
			return textSlow(field, s)
		}
	}
	return nil
}

func textSlow(field, s string) error {
	if !utf8.ValidString(s) {
		return invalid(field, "is not valid UTF-8")
	}
	for i, c := range s {
		if unicode.IsControl(c) {
			return invalid(field, "has the control character %U at byte %d", c, i)
		}
	}
	return nil
}
