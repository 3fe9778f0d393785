package fsmpb

import "google.golang.org/protobuf/proto"

// Op is the sealed set of messages that a Command can carry.
type Op interface {
	proto.Message
	op()
}

func (*InitCluster) op()   {}
func (*SetVersion) op()    {}
func (*RecordLeader) op()  {}
func (*RecordMember) op()  {}
func (*OpenSession) op()   {}
func (*CloseSession) op()  {}
func (*ExpireSession) op() {}
func (*Acquire) op()       {}
func (*CancelWait) op()    {}
func (*Release) op()       {}
func (*Transfer) op()      {}
func (*Revoke) op()        {}
func (*FreeRevoked) op()   {}
func (*LiftBar) op()       {}
func (*MarkInstance) op()  {}
func (*PutCatalog) op()    {}
func (*PutGroup) op()      {}
func (*JoinGroup) op()     {}
func (*LeaveGroup) op()    {}
func (*PlanGroup) op()     {}
func (*MoveWorkload) op()  {}
func (*SetPin) op()        {}
func (*SetPause) op()      {}
func (*Prepared) op()      {}
func (*ForgetFailure) op() {}
func (*RecordJob) op()     {}
func (*RecordOverlap) op() {}
func (*RecordStuck) op()   {}
func (*DeleteGroup) op()   {}
func (*CreateWorker) op()  {}
func (*StartWorker) op()   {}
func (*StopWorker) op()    {}
func (*ReloadWorker) op()  {}
func (*DeleteWorker) op()  {}
func (*SetWorkerTags) op() {}
func (*BeginLoad) op()     {}
func (*FinishLoad) op()    {}
func (*FinishRun) op()     {}
func (*RecordSleep) op()   {}
