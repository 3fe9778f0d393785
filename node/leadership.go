package node

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/transport"
)

// leadership is what the lease side needs of raft.
type leadership interface {
	// term is raft's current term; it is raised before a vote is given.
	term() uint64
	// leading tells whether this node leads, and in which term.
	leading() (term uint64, ok bool)
	// serving is leading once the term's barrier has been applied.
	serving() (term uint64, ok bool)
	// leader is the node ID of the known leader, "" for none.
	leader() (nodeID string)
	// voters are the node IDs of the voters of the newest configuration.
	voters() []string
	// apply commits one entry and returns its outcome. fsm.ErrNoQuorum: surely
	// not applied; fsm.ErrUncertain: it may be applied, now or later.
	apply(ctx context.Context, data []byte) (*fsm.Outcome, error)
	// changed is closed at the next change of leader, leading or serving.
	changed() <-chan struct{}
}

// caller calls a method of another node. Refusals come back as *fsm.Error with
// the code they left with; transport.ErrNotSent marks what surely was not handled.
type caller interface {
	call(ctx context.Context, nodeID string, m transport.Method, req, resp proto.Message) error
}

// Methods of the node's RPC. Only append.
const (
	methodPropose      transport.Method = 1
	methodKeepAlive    transport.Method = 2
	methodTerm         transport.Method = 3
	methodReadIndex    transport.Method = 4
	methodDiscover     transport.Method = 5
	methodPromise      transport.Method = 6
	methodJoin         transport.Method = 7
	methodStepDown     transport.Method = 8
	methodCloseCrashed transport.Method = 9
	methodReportRuns   transport.Method = 10
	methodReadArtifact transport.Method = 11
)
