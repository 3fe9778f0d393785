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
