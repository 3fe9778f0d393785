package fsm

import "github.com/miwnode/miwnode/fsm/fsmpb"

// Version is the newest state version that this binary can apply. What may be
// proposed is gated by the replicated version, see Cluster.Version.
const Version uint32 = 1

// The log: a Batch is one entry, a Proposal is what one boot of one node sent
// together, a Command is one request of it. Field numbers only append.
type (
	Batch    = fsmpb.Batch
	Proposal = fsmpb.Proposal
	Command  = fsmpb.Command
	Result   = fsmpb.Result
)

// Op is one of the messages below: what a Command does.
type Op = fsmpb.Op

// The commands. Their fields and rules are described in fsmpb/fsm.proto.
type (
	InitCluster   = fsmpb.InitCluster
	SetVersion    = fsmpb.SetVersion
	RecordLeader  = fsmpb.RecordLeader
	RecordMember  = fsmpb.RecordMember
	OpenSession   = fsmpb.OpenSession
	CloseSession  = fsmpb.CloseSession
	ExpireSession = fsmpb.ExpireSession
	Acquire       = fsmpb.Acquire
	CancelWait    = fsmpb.CancelWait
	Release       = fsmpb.Release
	Transfer      = fsmpb.Transfer
	Revoke        = fsmpb.Revoke
	FreeRevoked   = fsmpb.FreeRevoked
	LiftBar       = fsmpb.LiftBar
	MarkInstance  = fsmpb.MarkInstance
)

// Values of the enumerations in commands.
const (
	MemberAdded    = fsmpb.MemberChange_MEMBER_CHANGE_ADDED
	MemberPromoted = fsmpb.MemberChange_MEMBER_CHANGE_PROMOTED
	MemberDemoted  = fsmpb.MemberChange_MEMBER_CHANGE_DEMOTED
	MemberRemoved  = fsmpb.MemberChange_MEMBER_CHANGE_REMOVED

	MarkDrain    = fsmpb.Mark_MARK_DRAIN
	MarkUndrain  = fsmpb.Mark_MARK_UNDRAIN
	MarkCordon   = fsmpb.Mark_MARK_CORDON
	MarkUncordon = fsmpb.Mark_MARK_UNCORDON

	CloseClosed  = fsmpb.EndReason_END_REASON_CLOSED
	CloseCrashed = fsmpb.EndReason_END_REASON_CRASHED
)

// NewCommand wraps op. The sequence number and the idempotency key are the
// caller's to fill in. A nil op gives a command that nothing accepts.
func NewCommand(op Op) *Command {
	switch op := op.(type) {
	case *InitCluster:
		return &Command{Op: &fsmpb.Command_InitCluster{InitCluster: op}}
	case *SetVersion:
		return &Command{Op: &fsmpb.Command_SetVersion{SetVersion: op}}
	case *RecordLeader:
		return &Command{Op: &fsmpb.Command_RecordLeader{RecordLeader: op}}
	case *RecordMember:
		return &Command{Op: &fsmpb.Command_RecordMember{RecordMember: op}}
	case *OpenSession:
		return &Command{Op: &fsmpb.Command_OpenSession{OpenSession: op}}
	case *CloseSession:
		return &Command{Op: &fsmpb.Command_CloseSession{CloseSession: op}}
	case *ExpireSession:
		return &Command{Op: &fsmpb.Command_ExpireSession{ExpireSession: op}}
	case *Acquire:
		return &Command{Op: &fsmpb.Command_Acquire{Acquire: op}}
	case *CancelWait:
		return &Command{Op: &fsmpb.Command_CancelWait{CancelWait: op}}
	case *Release:
		return &Command{Op: &fsmpb.Command_Release{Release: op}}
	case *Transfer:
		return &Command{Op: &fsmpb.Command_Transfer{Transfer: op}}
	case *Revoke:
		return &Command{Op: &fsmpb.Command_Revoke{Revoke: op}}
	case *FreeRevoked:
		return &Command{Op: &fsmpb.Command_FreeRevoked{FreeRevoked: op}}
	case *LiftBar:
		return &Command{Op: &fsmpb.Command_LiftBar{LiftBar: op}}
	case *MarkInstance:
		return &Command{Op: &fsmpb.Command_MarkInstance{MarkInstance: op}}
	}
	return &Command{}
}

// OpOf returns what c does, nil if it has no op.
func OpOf(c *Command) Op {
	switch op := c.GetOp().(type) {
	case *fsmpb.Command_InitCluster:
		return op.InitCluster
	case *fsmpb.Command_SetVersion:
		return op.SetVersion
	case *fsmpb.Command_RecordLeader:
		return op.RecordLeader
	case *fsmpb.Command_RecordMember:
		return op.RecordMember
	case *fsmpb.Command_OpenSession:
		return op.OpenSession
	case *fsmpb.Command_CloseSession:
		return op.CloseSession
	case *fsmpb.Command_ExpireSession:
		return op.ExpireSession
	case *fsmpb.Command_Acquire:
		return op.Acquire
	case *fsmpb.Command_CancelWait:
		return op.CancelWait
	case *fsmpb.Command_Release:
		return op.Release
	case *fsmpb.Command_Transfer:
		return op.Transfer
	case *fsmpb.Command_Revoke:
		return op.Revoke
	case *fsmpb.Command_FreeRevoked:
		return op.FreeRevoked
	case *fsmpb.Command_LiftBar:
		return op.LiftBar
	case *fsmpb.Command_MarkInstance:
		return op.MarkInstance
	}
	return nil
}

// introduced is the state version in which op came into the log.
func introduced(op Op) uint32 {
	switch op.(type) {
	case *InitCluster, *SetVersion, *RecordLeader, *RecordMember,
		*OpenSession, *CloseSession, *ExpireSession,
		*Acquire, *CancelWait, *Release, *Transfer, *Revoke, *FreeRevoked, *LiftBar,
		*MarkInstance:
		return 1
	}
	return Version + 1
}
