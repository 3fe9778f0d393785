package transport

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/miwnode/miwnode/transport/transportpb"
)

const (
	greetTimeout  = 5 * time.Second // for a whole greeting, TLS included
	maxGreetings  = 256             // at once
	greetGrace    = time.Second     // after which a greeting yields its place to a newer one
	lingerTimeout = time.Second     // for a refused peer to read why
	lingerBytes   = 64 << 10
)

// greetings are the accepted connections that have not said yet who they are.
type greetings struct {
	mu     sync.Mutex
	oldest list.List // of *greeting
}

type greeting struct {
	conn  net.Conn
	began time.Time
	place *list.Element // nil: gave up its place
}

func (g *greetings) begin(c net.Conn) *greeting {
	g.mu.Lock()
	defer g.mu.Unlock()
	x := &greeting{conn: c, began: time.Now()}
	x.place = g.oldest.PushBack(x)
	return x
}

func (g *greetings) end(x *greeting) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if x.place != nil {
		g.oldest.Remove(x.place)
		x.place = nil
	}
}

// evict closes the oldest greeting if it has had its grace; else it tells how long that takes.
func (g *greetings) evict() (wait time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	front := g.oldest.Front()
	if front == nil {
		return 0
	}
	x := front.Value.(*greeting) // the list holds nothing else
	if wait = greetGrace - time.Since(x.began); wait > 0 {
		return wait
	}
	g.oldest.Remove(front)
	x.place = nil
	_ = x.conn.Close()
	return 0
}

func (g *greetings) closeAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for e := g.oldest.Front(); e != nil; e = e.Next() {
		_ = e.Value.(*greeting).conn.Close() // the list holds nothing else
	}
}

// accept takes connections until Close. Each is greeted on a goroutine of its own; when maxGreetings are under way, a new one waits until one ends or
// the oldest has had its grace, so that silent strangers never keep a node out for longer than that.
func (t *Transport) accept() {
	slots := make(chan struct{}, maxGreetings)
	var delay time.Duration
	for {
		c, err := t.listener.Accept()
		if err != nil {
			if t.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of file handles, most likely: they come back when others close theirs.
			delay = min(max(2*delay, 5*time.Millisecond), time.Second)
			if suppressed, ok := t.lines.allow("accept"); ok {
				t.log.Error("cannot accept connections", "error", err, "retry_in", delay, "suppressed", suppressed)
			}
			if !t.sleep(delay) {
				return
			}
			continue
		}
		delay = 0
		for !t.takeSlot(slots) {
			if t.ctx.Err() != nil {
				_ = c.Close()
				return
			}
		}
		g := t.greetings.begin(c)
		t.tasks.Go(func() {
			s := t.greet(c)
			t.greetings.end(g)
			<-slots
			if s != nil {
				t.hand(s)
			}
		})
		if t.ctx.Err() != nil { // Close may have looked before this one was there
			_ = c.Close()
		}
	}
}

// takeSlot waits for a free place, making one where it may.
func (t *Transport) takeSlot(slots chan struct{}) bool {
	select {
	case slots <- struct{}{}:
		return true
	default:
	}
	wait := time.NewTimer(max(t.greetings.evict(), time.Millisecond))
	defer wait.Stop()
	select {
	case slots <- struct{}{}:
		return true
	case <-wait.C:
	case <-t.ctx.Done():
	}
	return false
}

// sleep waits and tells whether the Transport is still open.
func (t *Transport) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-t.ctx.Done():
		return false
	}
}

// hand gives a greeted stream to whom it is for.
func (t *Transport) hand(s *stream) {
	if s.kind == KindRPC {
		t.serveConn(s)
		return
	}
	s.layer.offer(s, greetTimeout)
}

// greet does the listening half of a greeting. It returns nil if nothing came of it; then the connection is closed and a line logged.
func (t *Transport) greet(raw net.Conn) *stream {
	s, refused, err := t.welcome(raw)
	switch {
	case refused != nil:
		t.tellRefusal(refused, raw, false)
	case err != nil && t.ctx.Err() == nil:
		t.logBroken(err, raw)
	}
	if s == nil {
		_ = raw.Close()
	}
	return s
}

// sniffed is a connection whose first bytes were read ahead.
type sniffed struct {
	net.Conn
	head []byte
}

func (c *sniffed) Read(p []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(p, c.head)
		c.head = c.head[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

func (t *Transport) welcome(raw net.Conn) (*stream, *RefusedError, error) {
	if err := raw.SetDeadline(time.Now().Add(greetTimeout)); err != nil {
		return nil, nil, err
	}
	var head [prefaceSize]byte
	if _, err := io.ReadFull(raw, head[:1]); err != nil {
		return nil, nil, fmt.Errorf("wait for a greeting: %w", err)
	}
	isTLS := head[0] == tlsRecord
	switch {
	case isTLS && t.cfg.TLS == nil:
		no := &RefusedError{Refusal: RefusedPlain, Reason: "the caller speaks TLS, this node has none: set tls-ca, tls-cert and tls-key on both or on none"}
		return nil, t.sendRefusal(raw, no), nil
	case !isTLS && t.cfg.TLS != nil && head[0] == magic[0]:
		no := &RefusedError{Refusal: RefusedNeedsTLS, Reason: "the caller speaks plain, this node needs TLS: set tls-ca, tls-cert and tls-key on both or on none"}
		return nil, t.sendRefusal(raw, no), nil
	case !isTLS && head[0] != magic[0]:
		return nil, t.garbage(raw, head[:1]), nil
	}
	conn := raw
	var cert *tls.ConnectionState
	if isTLS {
		tc := tls.Server(&sniffed{Conn: raw, head: head[:1]}, t.cfg.TLS.serverConfig())
		if err := tc.HandshakeContext(t.ctx); err != nil {
			return nil, tlsRefusal(err, true), err
		}
		state := tc.ConnectionState()
		conn, cert = tc, &state
		if _, err := io.ReadFull(conn, head[:1]); err != nil {
			return nil, nil, fmt.Errorf("wait for a greeting after the TLS handshake: %w", err)
		}
	}
	if _, err := io.ReadFull(conn, head[1:]); err != nil {
		return nil, nil, fmt.Errorf("read greeting: %w", err)
	}
	kind := Kind(head[4])
	switch {
	case string(head[:3]) != magic:
		return nil, t.garbage(conn, head[:]), nil
	case head[3] != version:
		no := &RefusedError{Refusal: RefusedVersion, Reason: fmt.Sprintf("the caller greets in version %q, this node knows version %q: run releases that know a common one",
			head[3], byte(version))}
		return nil, t.sendRefusal(conn, no), nil
	case kind != KindGossip && kind != KindRaft && kind != KindRPC:
		no := &RefusedError{Refusal: RefusedVersion, Reason: fmt.Sprintf("the caller wants a stream of %s, which this node does not know", kind)}
		return nil, t.sendRefusal(conn, no), nil
	}
	var hello transportpb.Hello
	if err := readMessage(conn, &hello); err != nil {
		if isTimeout(err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, nil, fmt.Errorf("read greeting: %w", err)
		}
		return nil, t.sendRefusal(conn, &RefusedError{Refusal: RefusedBadGreeting, Reason: err.Error()}), nil
	}
	return t.answer(raw, conn, kind, greeterOf(&hello), cert)
}

// answer checks a Hello, sends the Welcome and waits for the Verdict.
func (t *Transport) answer(raw, conn net.Conn, kind Kind, peer greeter, cert *tls.ConnectionState) (*stream, *RefusedError, error) {
	self := t.self()
	refused := t.judge(kind, self, peer, cert)
	layer := t.layerOf(kind)
	if refused == nil && kind != KindRPC && layer == nil {
		refused = &RefusedError{Refusal: RefusedNotServing, Peer: peer.id, Reason: fmt.Sprintf("%s of node %s is not running", kind, self.id.NodeID)}
	}
	if refused != nil {
		return nil, t.sendRefusal(conn, refused), nil
	}
	if err := sendMessage(conn, kindWelcome, &transportpb.Welcome{Self: self.hello()}); err != nil {
		return nil, nil, err
	}
	var verdict transportpb.Verdict
	if err := readMessage(conn, &verdict); err != nil {
		return nil, nil, fmt.Errorf("wait for the verdict of node %s: %w", peer.id.NodeID, err)
	}
	if verdict.GetRefused() != 0 {
		return nil, &RefusedError{Refusal: Refusal(verdict.GetRefused()), Reason: verdict.GetReason(), Peer: peer.id, ByPeer: true, Known: identityOf(verdict.GetKnown())}, nil
	}
	if err := raw.SetDeadline(time.Time{}); err != nil {
		return nil, nil, err
	}
	s := &stream{Conn: conn, t: t, kind: kind, peer: peer.id, self: self.id, layer: layer}
	if !t.track(s) {
		return nil, nil, ErrClosed
	}
	return s, nil, nil
}

// judge makes all checks of a peer, at either end of a stream.
func (t *Transport) judge(kind Kind, self, peer greeter, cert *tls.ConnectionState) *RefusedError {
	if refused := compare(self, peer); refused != nil {
		return refused
	}
	if cert != nil {
		if err := checkNames(cert.PeerCertificates[0], peer.id.NodeID, peer.id.Addr); err != nil {
			return &RefusedError{Refusal: RefusedWrongName, Reason: err.Error(), Peer: peer.id}
		}
	}
	if err := t.cfg.Admit(kind, peer.id); err != nil {
		if refused, ok := errors.AsType[*RefusedError](err); ok {
			no := *refused
			no.Peer = peer.id
			return &no
		}
		return &RefusedError{Refusal: RefusedNotAdmitted, Reason: err.Error(), Peer: peer.id}
	}
	outdated, refused := t.peers.meet(peer.id)
	if refused != nil {
		return refused
	}
	if outdated { // what the former life had open is dead, whatever its host says
		t.closeStreams(func(s *stream) bool { return s.peer.NodeID == peer.id.NodeID && s.peer.Boot < peer.id.Boot })
	}
	return nil
}

// garbage refuses what is no greeting at all.
func (t *Transport) garbage(conn net.Conn, head []byte) *RefusedError {
	// Closing without an answer is all a stranger's protocol understands.
	return &RefusedError{Refusal: RefusedBadGreeting, Reason: fmt.Sprintf("what arrived begins with %q and is no greeting of a miwnode", head)}
}

// sendRefusal tells the peer why and gives it time to read that.
func (t *Transport) sendRefusal(conn net.Conn, refused *RefusedError) *RefusedError {
	w := &transportpb.Welcome{Refused: uint32(refused.Refusal), Reason: refused.Reason}
	switch refused.Refusal {
	case RefusedNeedsTLS, RefusedPlain, RefusedVersion, RefusedBadGreeting: // a stranger learns no names
	default:
		w.Self, w.Known = t.self().hello(), known(refused)
	}
	if sendMessage(conn, kindWelcome, w) != nil {
		return refused
	}
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // the lingering below copes with all that can go wrong here
	}
	// A close with unread bytes would be a reset, and could overtake the reason.
	if conn.SetReadDeadline(time.Now().Add(lingerTimeout)) == nil {
		_, _ = io.CopyN(io.Discard, conn, lingerBytes)
	}
	return refused
}

func sendMessage(conn net.Conn, kind byte, m *transportpb.Welcome) error {
	b, err := appendMessage(appendPreface(nil, kind), m)
	if err != nil {
		return err
	}
	_, err = conn.Write(b)
	return err
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) || (errors.As(err, &t) && t.Timeout())
}

// tellRefusal makes a refusal known, at whichever end this is.
func (t *Transport) tellRefusal(refused *RefusedError, conn net.Conn, dialled bool) {
	if t.cfg.Refused != nil {
		t.cfg.Refused(refused)
	}
	t.logRefusal(refused, conn, dialled)
}

// logRefusal writes the one line about a refusal, at whichever end this is.
func (t *Transport) logRefusal(refused *RefusedError, conn net.Conn, dialled bool) {
	remote := conn.RemoteAddr().String()
	host, _, err := net.SplitHostPort(remote)
	if err != nil || dialled {
		host = remote
	}
	suppressed, ok := t.lines.allow(fmt.Sprintf("refused %d %t %s %s", refused.Refusal, dialled, refused.Peer.NodeID, host))
	if !ok {
		return
	}
	by := "us"
	if refused.ByPeer {
		by = "peer"
	}
	direction := "incoming"
	if dialled {
		direction = "outgoing"
	}
	args := []any{
		"refusal", refused.Refusal.String(), "reason", refused.Reason, "by", by, "direction", direction,
		"local", conn.LocalAddr().String(), "remote", remote,
	}
	if refused.Peer.NodeID != "" {
		args = append(args, "peer", refused.Peer.NodeID, "peer_addr", refused.Peer.Addr)
	}
	if suppressed > 0 {
		args = append(args, "suppressed", suppressed)
	}
	if refused.Refusal == RefusedNotServing { // a node that starts or stops: no fault of anybody
		t.log.Debug("stream refused", args...)
		return
	}
	t.log.Warn("stream refused", args...)
}

// logBroken writes a line about a greeting that ended before its end. A probe that connects and leaves is not worth one.
func (t *Transport) logBroken(err error, conn net.Conn) {
	remote := conn.RemoteAddr().String()
	if !isTimeout(err) {
		t.log.Debug("greeting ended early", "error", err, "local", conn.LocalAddr().String(), "remote", remote)
		return
	}
	host, _, serr := net.SplitHostPort(remote)
	if serr != nil {
		host = remote
	}
	if suppressed, ok := t.lines.allow("slow " + host); ok {
		t.log.Warn("greeting not finished in time", "limit", greetTimeout, "error", err, "local", conn.LocalAddr().String(), "remote", remote, "suppressed", suppressed)
	}
}
