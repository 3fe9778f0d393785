package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/miwnode/miwnode/transport/transportpb"
)

// dial opens a stream and does the dialling half of the greeting, in greetTimeout at most. want "" takes any node. The layer, if
// any, owns the stream.
func (t *Transport) dial(ctx context.Context, kind Kind, addr, want string, owner *layer) (*stream, error) {
	ctx, cancel := context.WithTimeout(ctx, greetTimeout)
	defer cancel()
	raw, err := t.cfg.Network.DialContext(ctx, addr)
	if err != nil {
		return nil, err
	}
	// Whatever the greeting waits for, it ends with ctx.
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	s, refused, err := t.introduce(ctx, raw, kind, want, owner)
	if !stop() && s != nil {
		s, err = nil, context.Cause(ctx)
	}
	if s != nil && !t.track(s) {
		s, err = nil, ErrClosed
	}
	if s == nil {
		_ = raw.Close()
	}
	if refused != nil {
		refused.PeerAddr = addr
		t.tellRefusal(refused, raw, true)
		return nil, refused
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && isTimeout(err) {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return nil, fmt.Errorf("greet %s: %w", addr, err)
	}
	return s, nil
}

func (t *Transport) introduce(ctx context.Context, raw net.Conn, kind Kind, want string, owner *layer) (*stream, *RefusedError, error) {
	conn := raw
	var cert *tls.ConnectionState
	if t.cfg.TLS != nil {
		tc := tls.Client(raw, t.cfg.TLS.clientConfig())
		if err := tc.HandshakeContext(ctx); err != nil {
			return nil, tlsRefusal(err, false), fmt.Errorf("TLS handshake: %w", err)
		}
		state := tc.ConnectionState()
		conn, cert = tc, &state
	}
	self := t.self()
	b, err := appendMessage(appendPreface(nil, byte(kind)), self.hello())
	if err != nil {
		return nil, nil, err
	}
	if _, err := conn.Write(b); err != nil {
		return nil, tlsRefusal(err, false), err
	}
	var head [prefaceSize]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("the other end closed the connection without an answer: it is no miwnode, or it is closing")
		}
		return nil, tlsRefusal(err, false), err
	}
	if string(head[:3]) != magic || head[4] != kindWelcome {
		return nil, &RefusedError{Refusal: RefusedBadGreeting, Reason: fmt.Sprintf("the answer begins with %q: what listens there is no miwnode", head[:])}, nil
	}
	var welcome transportpb.Welcome
	if err := readMessage(conn, &welcome); err != nil {
		return nil, nil, fmt.Errorf("read welcome: %w", err)
	}
	peer := greeterOf(welcome.GetSelf())
	if welcome.GetRefused() != 0 {
		return nil, &RefusedError{Refusal: Refusal(welcome.GetRefused()), Reason: welcome.GetReason(), Peer: peer.id, ByPeer: true, Known: identityOf(welcome.GetKnown())}, nil
	}
	refused := t.judge(kind, self, peer, cert)
	if refused == nil && want != "" && peer.id.NodeID != want {
		refused = &RefusedError{Refusal: RefusedWrongNode, Peer: peer.id, Reason: fmt.Sprintf("node %s looked for node %s at %s and met node %s",
			self.id.NodeID, want, raw.RemoteAddr(), peer.id.NodeID)}
	}
	if refused != nil {
		b, err = appendMessage(nil, &transportpb.Verdict{Refused: uint32(refused.Refusal), Reason: refused.Reason, Known: known(refused)})
	} else {
		b, err = appendMessage(nil, nil)
	}
	if err != nil {
		return nil, refused, err
	}
	if _, err := conn.Write(b); err != nil {
		return nil, refused, fmt.Errorf("send verdict: %w", err)
	}
	if refused != nil {
		return nil, refused, nil
	}
	if err := raw.SetDeadline(time.Time{}); err != nil {
		return nil, nil, err
	}
	return &stream{Conn: conn, t: t, kind: kind, dialled: true, peer: peer.id, self: self.id, layer: owner}, nil, nil
}
