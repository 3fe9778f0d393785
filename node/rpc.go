package node

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node/nodepb"
	"github.com/miwnode/miwnode/transport"
)

// handler answers one method.
type handler func(ctx context.Context, peer transport.Identity, body []byte) (proto.Message, error)

// handle wraps a typed function as a handler.
func handle[Q any, PQ interface {
	*Q
	proto.Message
}, R proto.Message](f func(context.Context, transport.Identity, PQ) (R, error)) handler {
	return func(ctx context.Context, peer transport.Identity, body []byte) (proto.Message, error) {
		q := PQ(new(Q))
		if err := proto.Unmarshal(body, q); err != nil {
			return nil, fsm.Errorf(fsm.CodeInvalidArgument, "malformed request: %v", err)
		}
		return f(ctx, peer, q)
	}
}

// anybody drops the caller's identity for methods that do not look at it.
func anybody[Q, R proto.Message](f func(context.Context, Q) (R, error)) func(context.Context, transport.Identity, Q) (R, error) {
	return func(ctx context.Context, _ transport.Identity, q Q) (R, error) { return f(ctx, q) }
}

// methods is the table of what this node answers.
func (n *Node) methods() map[transport.Method]handler {
	return map[transport.Method]handler{
		methodPropose:      handle(n.lease.handlePropose),
		methodKeepAlive:    handle(n.lease.handleKeepAlive),
		methodTerm:         handle(anybody(n.lease.handleTerm)),
		methodReadIndex:    handle(anybody(n.lease.handleReadIndex)),
		methodDiscover:     handle(n.members.handleDiscover),
		methodPromise:      handle(n.members.handlePromise),
		methodJoin:         handle(n.members.handleJoin),
		methodStepDown:     handle(anybody(n.handleStepDown)),
		methodCloseCrashed: handle(n.handleCloseCrashed),
		methodReportRuns:   handle(n.lease.handleReportRuns),
		methodReadArtifact: handle(n.artifacts.handleRead),
	}
}

// dispatch is the transport's handler.
func (n *Node) dispatch(ctx context.Context, peer transport.Identity, m transport.Method, body []byte) ([]byte, error) {
	h := n.table[m]
	if h == nil {
		return nil, wireError(fsm.Errorf(fsm.CodeInvalidArgument, "unknown method %d: the caller is of a newer version", m))
	}
	// Who belongs to no cluster may find one and join, nothing else.
	if m != methodDiscover && m != methodPromise && m != methodJoin {
		if cluster := n.ident.clusterID(); cluster == "" || peer.ClusterID != cluster {
			return nil, wireError(fsm.Errorf(fsm.CodeNotReady, "not of one cluster yet"))
		}
	}
	reply, err := h(ctx, peer, body)
	if err == nil {
		err = n.cfg.seams.answer(m)
	}
	if err != nil {
		return nil, wireError(err)
	}
	return proto.Marshal(reply)
}

// wireError gives err the form in which its code survives the wire.
func wireError(err error) error {
	text := err.Error()
	if e, ok := errors.AsType[*fsm.Error](err); ok {
		text = e.Message
	}
	return &transport.RPCError{Code: uint32(fsm.CodeOf(err)), Message: text}
}

// fromWire is the inverse of wireError. Codes of the transport's own stay as they are.
func fromWire(err error) error {
	e, ok := errors.AsType[*transport.RPCError](err)
	if !ok || e.Code >= transport.CodeUnknown {
		return err
	}
	return &fsm.Error{Code: fsm.Code(e.Code), Message: e.Message}
}

// call implements caller.
func (n *Node) call(ctx context.Context, nodeID string, m transport.Method, req, resp proto.Message) error {
	addr := ""
	if nodeID != n.ident.id {
		var err error
		if addr, err = n.book.resolve(nodeID); err != nil {
			return notSent{err}
		}
	}
	return n.callAddr(ctx, addr, nodeID, m, req, resp)
}

// callAddr calls whoever is at addr, or only nodeID if that is not "".
func (n *Node) callAddr(ctx context.Context, addr, nodeID string, m transport.Method, req, resp proto.Message) error {
	body, err := proto.Marshal(req)
	if err != nil {
		return notSent{err}
	}
	var out []byte
	if nodeID == n.ident.id {
		out, err = n.dispatch(ctx, n.identity(), m, body)
	} else {
		t := n.trans.Load()
		if t == nil {
			return notSent{transport.ErrClosed}
		}
		out, _, err = t.Call(ctx, addr, nodeID, m, body)
	}
	if err != nil {
		return fromWire(err)
	}
	return proto.Unmarshal(out, resp)
}

// notSent marks an error of our own as transport.ErrNotSent.
type notSent struct{ error }

func (e notSent) Unwrap() error        { return e.error }
func (e notSent) Is(target error) bool { return target == transport.ErrNotSent }

// identity is how this node greets.
func (n *Node) identity() transport.Identity {
	id := transport.Identity{
		ClusterID: n.ident.clusterID(), NodeID: n.ident.id, Boot: n.ident.boot(), Nonce: n.ident.nonce,
	}
	if t := n.trans.Load(); t != nil {
		id.Addr = t.AdvertiseAddr()
	}
	return id
}

// admit decides about a peer that greets with a fitting cluster ID, or where
// one of both has none: those may only call.
func (n *Node) admit(k transport.Kind, peer transport.Identity) error {
	mine := n.ident.clusterID()
	if k != transport.KindRPC && (mine == "" || peer.ClusterID != mine) {
		if mine == "" {
			n.members.met(peer)
			return errors.New("belongs to no cluster yet")
		}
		return errors.New("the peer belongs to no cluster yet")
	}
	if peer.NodeID != n.ident.id && (mine == "" || peer.ClusterID == mine) {
		n.book.learn(peer.NodeID, peer.Addr, peer.Boot)
	}
	return nil
}

// handleCloseCrashed closes the session of one boot of the caller's own node:
// its guard has seen the process end, and all commands with it.
func (n *Node) handleCloseCrashed(ctx context.Context, peer transport.Identity, q *nodepb.CloseCrashedRequest) (*nodepb.CloseCrashedReply, error) {
	if q.NodeId != peer.NodeID {
		return nil, fsm.Errorf(fsm.CodePermissionDenied, "node %s asks to close a session of node %s", peer.NodeID, q.NodeId)
	}
	if err := n.CloseCrashed(ctx, q.SessionId, q.NodeId, q.Boot); err != nil {
		return nil, err
	}
	return &nodepb.CloseCrashedReply{Closed: true}, nil
}

// CloseCrashed closes a node's own session of one boot, which must be proved
// to be over: the process is gone and so is all that it started. A session that
// is not there (any more) is closed.
func (n *Node) CloseCrashed(ctx context.Context, sessionID, nodeID string, boot uint64) error {
	s, ok := n.View().Session(sessionID)
	if !ok {
		// The local copy may lag behind the opening.
		if err := n.Barrier(ctx); err != nil {
			return err
		}
		if s, ok = n.View().Session(sessionID); !ok {
			return nil
		}
	}
	if s.Client || s.NodeID != nodeID || s.Boot != boot {
		return fsm.Errorf(fsm.CodePermissionDenied, "the session is not of boot %d of node %s", boot, nodeID)
	}
	result, err := n.Submit(ctx, &fsm.CloseSession{SessionId: sessionID, Reason: fsm.CloseCrashed})
	if err != nil {
		return err
	}
	if err := fsm.ResultErr(result); err != nil && !errors.Is(err, fsm.ErrSessionExpired) {
		return err
	}
	return nil
}
