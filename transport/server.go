package transport

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// maxCalls bounds the calls at once that one end makes on one connection.
	maxCalls = 1024
	// maxServed bounds the handlers at once of one connection. Some may serve calls that were given up and not have noticed yet.
	maxServed = 2 * maxCalls
	// maxCallBytes bounds the bodies of the requests being served on one connection.
	maxCallBytes = 8 * MaxBody
	// serverIdle is when a connection without calls is taken for forgotten; callers close theirs much earlier.
	serverIdle = 5 * clientIdle
)

// serverConn is the serving end of an RPC connection.
type serverConn struct {
	t    *Transport
	peer Identity
	out  *outbox

	mu      sync.Mutex
	running map[uint64]*incoming // guarded by mu, like all below
	bytes   int
	used    bool // since the idle timer looked last
	idle    *time.Timer
}

// serveConn serves one connection until it ends.
func (t *Transport) serveConn(s *stream) {
	c := &serverConn{t: t, peer: s.peer, out: newOutbox(s), running: map[uint64]*incoming{}, used: true}
	c.mu.Lock()
	c.idle = time.AfterFunc(serverIdle, c.checkIdle)
	c.mu.Unlock()
	t.tasks.Go(c.out.run)
	err := c.read(s)
	c.out.fail(err)
	c.mu.Lock()
	c.idle.Stop()
	running := c.running
	c.running = nil
	c.mu.Unlock()
	for _, in := range running {
		in.cancel(context.Canceled, true)
	}
	if errors.Is(err, errFrame) {
		t.log.Warn("rpc connection closed: the peer broke the protocol", "error", err, "peer", s.peer.NodeID, "remote", s.RemoteAddr().String())
	}
}

func (c *serverConn) checkIdle() {
	c.mu.Lock()
	idle := !c.used && len(c.running) == 0
	c.used = false
	if !idle && c.running != nil {
		c.idle.Reset(serverIdle)
	}
	c.mu.Unlock()
	if idle {
		c.out.fail(errIdle)
	}
}

func (c *serverConn) read(conn net.Conn) error {
	r := bufio.NewReaderSize(conn, readAhead)
	for {
		f, err := readFrame(r)
		if err != nil {
			return err
		}
		switch f.kind {
		case frameRequest:
			c.start(f)
		case frameCancel:
			c.mu.Lock()
			in := c.running[f.call]
			c.mu.Unlock()
			if in != nil {
				in.cancel(context.Canceled, true)
			}
		case framePing:
			c.signal(f.call, framePong)
		case frameVoid, framePong:
		default:
			return fmt.Errorf("%w: type %d at the serving end", errFrame, f.kind)
		}
	}
}

// signal sends a bodiless frame, or nothing if too much waits already: then there is life enough to see.
func (c *serverConn) signal(call uint64, kind frameType) {
	c.out.mu.Lock()
	if c.out.err == nil && len(c.out.buf) < outboxLimit {
		c.out.buf = appendSignal(c.out.buf, call, kind)
	}
	c.out.mu.Unlock()
	c.out.wakeWriter()
}

// start runs the handler of a request on a goroutine of its own.
func (c *serverConn) start(f frame) {
	in := &incoming{conn: c, call: f.call, method: f.method, body: f.body}
	if f.limit > 0 {
		in.deadline = time.Now().Add(f.limit)
	}
	h := c.t.rpc.handler.Load()
	c.mu.Lock()
	c.used = true
	refuse := c.refuse(f, h)
	if refuse == nil {
		c.running[f.call] = in
		c.out.others.Store(int32(len(c.running)))
		c.bytes += len(f.body)
		c.t.rpc.handlers.Add(1)
	}
	c.mu.Unlock()
	if refuse != nil {
		c.refusal(f.call, refuse)
		return
	}
	go in.run(*h)
}

// refuse tells why a call can't be started. Called with c.mu held.
func (c *serverConn) refuse(f frame, h *Handler) *RPCError {
	switch {
	case h == nil || c.t.ctx.Err() != nil:
		return &RPCError{Code: CodeNotServing, Message: fmt.Sprintf("node %s is not serving calls", c.t.cfg.Identity().NodeID)}
	case c.running[f.call] != nil:
		return &RPCError{Code: CodeBusy, Message: fmt.Sprintf("call %d is being served already", f.call)}
	case len(c.running) >= maxServed, c.bytes+len(f.body) > maxCallBytes && len(c.running) > 0:
		return &RPCError{Code: CodeBusy, Message: fmt.Sprintf("%d calls with %d bytes are being served on this connection: no more at once", len(c.running), c.bytes)}
	}
	return nil
}

// refusal answers a call that was not started, without waiting.
func (c *serverConn) refusal(call uint64, e *RPCError) {
	c.out.mu.Lock()
	full := len(c.out.buf) >= 2*outboxLimit
	if c.out.err == nil && !full {
		c.out.buf = appendFailure(c.out.buf, call, e)
	}
	c.out.mu.Unlock()
	if full { // it sends and does not read
		c.out.fail(fmt.Errorf("%w: more calls than answers are taken", errFrame))
		return
	}
	c.out.wakeWriter()
}

// run calls the handler and sends its answer.
func (c *incoming) run(h Handler) {
	conn := c.conn
	defer conn.t.rpc.handlers.Done()
	answer, failure := c.invoke(h)
	wanted := c.finish()
	conn.mu.Lock()
	if conn.running != nil {
		delete(conn.running, c.call)
		conn.out.others.Store(int32(len(conn.running)))
		conn.bytes -= len(c.body)
	}
	conn.mu.Unlock()
	if !wanted {
		return
	}
	if failure == nil && len(answer) > MaxBody {
		failure = &RPCError{Code: CodeTooLarge, Message: fmt.Sprintf("the answer has %d bytes, at most %d fit", len(answer), MaxBody)}
	}
	if failure != nil && len(failure.Detail) > MaxBody-maxMessage {
		failure = &RPCError{Code: failure.Code, Message: failure.Message}
	}
	out := conn.out
	if out.lock(context.Background()) != nil { // ends with the connection
		return
	}
	if failure != nil {
		out.buf = appendFailure(out.buf, c.call, failure)
	} else {
		out.buf = appendAnswer(out.buf, c.call, answer)
	}
	out.mu.Unlock()
	out.wakeWriter()
	if told := conn.t.cfg.Answered; told != nil {
		told(c.method)
	}
}

// invoke calls the handler; a panic becomes an error and a line with its stack.
func (c *incoming) invoke(h Handler) (answer []byte, failure *RPCError) {
	t := c.conn.t
	defer func() {
		if p := recover(); p != nil {
			t.log.Error("handler panicked", "method", c.method, "peer", c.conn.peer.NodeID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			answer, failure = nil, &RPCError{Code: CodePanic, Message: fmt.Sprintf("handler of method %d panicked: %v", c.method, p)}
		}
	}()
	answer, err := h(c, c.conn.peer, c.method, c.body)
	if err != nil {
		return nil, failureOf(err)
	}
	return answer, nil
}

// errIdle is the cause of a connection that was closed because nobody used it.
var errIdle = errors.New("connection was idle")

var _ io.Closer = (*Transport)(nil)
