package fsm

import "github.com/miwnode/miwnode/fsm/fsmpb"

// Version is the newest state version that this binary can apply. What may be
// proposed is gated by the replicated version, see Cluster.Version.
const Version uint32 = 3

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

	PutCatalog    = fsmpb.PutCatalog
	PutGroup      = fsmpb.PutGroup
	JoinGroup     = fsmpb.JoinGroup
	LeaveGroup    = fsmpb.LeaveGroup
	PlanGroup     = fsmpb.PlanGroup
	MoveWorkload  = fsmpb.MoveWorkload
	SetPin        = fsmpb.SetPin
	SetPause      = fsmpb.SetPause
	Prepared      = fsmpb.Prepared
	ForgetFailure = fsmpb.ForgetFailure
	RecordJob     = fsmpb.RecordJob
	RecordOverlap = fsmpb.RecordOverlap
	RecordStuck   = fsmpb.RecordStuck
	RecordSleep   = fsmpb.RecordSleep
	DeleteGroup   = fsmpb.DeleteGroup

	CreateWorker  = fsmpb.CreateWorker
	StartWorker   = fsmpb.StartWorker
	StopWorker    = fsmpb.StopWorker
	ReloadWorker  = fsmpb.ReloadWorker
	DeleteWorker  = fsmpb.DeleteWorker
	SetWorkerTags = fsmpb.SetWorkerTags
	BeginLoad     = fsmpb.BeginLoad
	FinishLoad    = fsmpb.FinishLoad
	FinishRun     = fsmpb.FinishRun
)

// Parts of the commands of groups.
type (
	WorkloadSpec  = fsmpb.WorkloadSpec
	GroupSettings = fsmpb.GroupSettings
	Assignment    = fsmpb.Assignment
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
	return newGroupCommand(op)
}

func newGroupCommand(op Op) *Command {
	switch op := op.(type) {
	case *PutCatalog:
		return &Command{Op: &fsmpb.Command_PutCatalog{PutCatalog: op}}
	case *PutGroup:
		return &Command{Op: &fsmpb.Command_PutGroup{PutGroup: op}}
	case *JoinGroup:
		return &Command{Op: &fsmpb.Command_JoinGroup{JoinGroup: op}}
	case *LeaveGroup:
		return &Command{Op: &fsmpb.Command_LeaveGroup{LeaveGroup: op}}
	case *PlanGroup:
		return &Command{Op: &fsmpb.Command_PlanGroup{PlanGroup: op}}
	case *MoveWorkload:
		return &Command{Op: &fsmpb.Command_MoveWorkload{MoveWorkload: op}}
	case *SetPin:
		return &Command{Op: &fsmpb.Command_SetPin{SetPin: op}}
	case *SetPause:
		return &Command{Op: &fsmpb.Command_SetPause{SetPause: op}}
	case *Prepared:
		return &Command{Op: &fsmpb.Command_Prepared{Prepared: op}}
	case *ForgetFailure:
		return &Command{Op: &fsmpb.Command_ForgetFailure{ForgetFailure: op}}
	case *RecordJob:
		return &Command{Op: &fsmpb.Command_RecordJob{RecordJob: op}}
	case *RecordOverlap:
		return &Command{Op: &fsmpb.Command_RecordOverlap{RecordOverlap: op}}
	case *RecordStuck:
		return &Command{Op: &fsmpb.Command_RecordStuck{RecordStuck: op}}
	case *RecordSleep:
		return &Command{Op: &fsmpb.Command_RecordSleep{RecordSleep: op}}
	case *DeleteGroup:
		return &Command{Op: &fsmpb.Command_DeleteGroup{DeleteGroup: op}}
	}
	return newWorkerCommand(op)
}

func newWorkerCommand(op Op) *Command {
	switch op := op.(type) {
	case *CreateWorker:
		return &Command{Op: &fsmpb.Command_CreateWorker{CreateWorker: op}}
	case *StartWorker:
		return &Command{Op: &fsmpb.Command_StartWorker{StartWorker: op}}
	case *StopWorker:
		return &Command{Op: &fsmpb.Command_StopWorker{StopWorker: op}}
	case *ReloadWorker:
		return &Command{Op: &fsmpb.Command_ReloadWorker{ReloadWorker: op}}
	case *DeleteWorker:
		return &Command{Op: &fsmpb.Command_DeleteWorker{DeleteWorker: op}}
	case *SetWorkerTags:
		return &Command{Op: &fsmpb.Command_SetWorkerTags{SetWorkerTags: op}}
	case *BeginLoad:
		return &Command{Op: &fsmpb.Command_BeginLoad{BeginLoad: op}}
	case *FinishLoad:
		return &Command{Op: &fsmpb.Command_FinishLoad{FinishLoad: op}}
	case *FinishRun:
		return &Command{Op: &fsmpb.Command_FinishRun{FinishRun: op}}
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
	case *fsmpb.Command_PutCatalog:
		return op.PutCatalog
	case *fsmpb.Command_PutGroup:
		return op.PutGroup
	case *fsmpb.Command_JoinGroup:
		return op.JoinGroup
	case *fsmpb.Command_LeaveGroup:
		return op.LeaveGroup
	case *fsmpb.Command_PlanGroup:
		return op.PlanGroup
	case *fsmpb.Command_MoveWorkload:
		return op.MoveWorkload
	case *fsmpb.Command_SetPin:
		return op.SetPin
	case *fsmpb.Command_SetPause:
		return op.SetPause
	case *fsmpb.Command_Prepared:
		return op.Prepared
	case *fsmpb.Command_ForgetFailure:
		return op.ForgetFailure
	case *fsmpb.Command_RecordJob:
		return op.RecordJob
	case *fsmpb.Command_RecordOverlap:
		return op.RecordOverlap
	case *fsmpb.Command_RecordStuck:
		return op.RecordStuck
	case *fsmpb.Command_RecordSleep:
		return op.RecordSleep
	case *fsmpb.Command_DeleteGroup:
		return op.DeleteGroup
	case *fsmpb.Command_CreateWorker:
		return op.CreateWorker
	case *fsmpb.Command_StartWorker:
		return op.StartWorker
	case *fsmpb.Command_StopWorker:
		return op.StopWorker
	case *fsmpb.Command_ReloadWorker:
		return op.ReloadWorker
	case *fsmpb.Command_DeleteWorker:
		return op.DeleteWorker
	case *fsmpb.Command_SetWorkerTags:
		return op.SetWorkerTags
	case *fsmpb.Command_BeginLoad:
		return op.BeginLoad
	case *fsmpb.Command_FinishLoad:
		return op.FinishLoad
	case *fsmpb.Command_FinishRun:
		return op.FinishRun
	}
	return nil
}

// Needs is the smallest state version in which op may be proposed: that in which
// it, with what it says, came into the log.
func Needs(op Op) uint32 {
	switch op := op.(type) {
	case *Release:
		if op.Failure != "" {
			return 2
		}
		return 1
	case *JoinGroup:
		if len(op.Runtimes) > 0 {
			return 3
		}
		return 2
	case *InitCluster, *SetVersion, *RecordLeader, *RecordMember,
		*OpenSession, *CloseSession, *ExpireSession,
		*Acquire, *CancelWait, *Transfer, *Revoke, *FreeRevoked, *LiftBar,
		*MarkInstance:
		return 1
	case *PutCatalog, *PutGroup, *LeaveGroup, *PlanGroup, *MoveWorkload, *SetPin, *SetPause, *Prepared, *ForgetFailure, *RecordJob, *RecordOverlap, *RecordStuck:
		return 2
	case *DeleteGroup, *RecordSleep,
		*CreateWorker, *StartWorker, *StopWorker, *ReloadWorker, *DeleteWorker, *SetWorkerTags, *BeginLoad, *FinishLoad, *FinishRun:
		return 3
	}
	return Version + 1
}
