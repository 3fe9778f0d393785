package transport_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/transport"
	"github.com/miwnode/miwnode/transport/memnet"
)

// coded is an error of a handler with a code of its own, as package fsm has them.
type coded struct{}

func (coded) Error() string     { return "the lease is held" }
func (coded) RPCCode() uint32   { return 42 }
func (coded) RPCDetail() []byte { return []byte("by n7") }

const (
	echoMethod transport.Method = iota + 1
	codedMethod
	plainMethod
	panicMethod
	waitMethod // until its context ends
	hugeMethod
	sleepMethod // ten seconds, whatever its context says
)

// servant serves the methods above and tells how its waiting handlers ended.
type servant struct {
	started chan struct{}
	ended   chan error
	runs    atomic.Int64
}

func newServant(m *member) *servant {
	s := &servant{started: make(chan struct{}, 5000), ended: make(chan error, 5000)}
	m.Serve(s.serve)
	return s
}

func (s *servant) serve(ctx context.Context, peer transport.Identity, m transport.Method, body []byte) ([]byte, error) {
	s.runs.Add(1)
	switch m {
	case echoMethod:
		return append([]byte(peer.NodeID+":"), body...), nil
	case codedMethod:
		return nil, fmt.Errorf("acquire: %w", coded{})
	case plainMethod:
		return nil, errors.New("something broke")
	case panicMethod:
		panic("handler bug")
	case waitMethod:
		s.started <- struct{}{}
		<-ctx.Done()
		s.ended <- ctx.Err()
		return nil, ctx.Err()
	case hugeMethod:
		return make([]byte, transport.MaxBody+1), nil
	case sleepMethod:
		s.started <- struct{}{}
		time.Sleep(10 * time.Second)
	}
	return nil, nil
}

// bubble runs a test with two members, the second serving.
func bubble(t *testing.T, run func(t *testing.T, n *memnet.Net, a, b *member, s *servant)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New(1)
		defer n.Close()
		a, b := listen(t, n, "a"), listen(t, n, "b")
		run(t, n, a, b, newServant(b))
	})
}

func TestCall_Answers(t *testing.T) {
	bubble(t, func(t *testing.T, _ *memnet.Net, a, b *member, _ *servant) {
		call := func(m transport.Method, body string) ([]byte, error) {
			answer, peer, err := a.Call(t.Context(), b.Addr(), "b", m, []byte(body))
			if peer.NodeID != "b" || peer.ClusterID != "blue" || peer.Addr != "10.0.0.2:7400" {
				t.Errorf("who answered: got %+v", peer)
			}
			return answer, err
		}
		if got, err := call(echoMethod, "hello"); string(got) != "a:hello" || err != nil {
			t.Errorf("echo: got %q, %v", got, err)
		}
		big := strings.Repeat("x", transport.MaxBody-2)
		if got, err := call(echoMethod, big); string(got) != "a:"+big || err != nil {
			t.Errorf("the largest body: got %d bytes, %v", len(got), err)
		}
		for _, tt := range []struct {
			name   string
			method transport.Method
			code   uint32
			text   string
			detail string
		}{
			{"an error with a code", codedMethod, 42, "acquire: the lease is held", "by n7"},
			{"an error without", plainMethod, transport.CodeUnknown, "something broke", ""},
			{"a panic", panicMethod, transport.CodePanic, "handler of method 4 panicked: handler bug", ""},
			{"too large an answer", hugeMethod, transport.CodeTooLarge, "the answer has 8388609 bytes, at most 8388608 fit", ""},
		} {
			_, err := call(tt.method, "")
			failure, ok := errors.AsType[*transport.RPCError](err)
			if !ok {
				t.Errorf("%s: got %v, want an RPCError", tt.name, err)
				continue
			}
			if failure.Code != tt.code || failure.Message != tt.text || string(failure.Detail) != tt.detail {
				t.Errorf("%s: got %d %q %q, want %d %q %q", tt.name, failure.Code, failure.Message, failure.Detail, tt.code, tt.text, tt.detail)
			}
			if errors.Is(err, transport.ErrNotSent) {
				t.Errorf("%s: matches ErrNotSent", tt.name)
			}
		}
		wantLine(t, "b", b.log, "handler panicked", "method=4", "peer=a", "panic=handler bug", "rpc_test.go")
		if got, err := call(echoMethod, "still"); string(got) != "a:still" || err != nil {
			t.Errorf("after the panic: got %q, %v", got, err)
		}
	})
}

// An error says for sure that the request was not sent, or leaves it open; never the wrong of the two.
func TestCall_NotSentOrUnknown(t *testing.T) {
	const limit = 2 * time.Second
	tests := []struct {
		name    string
		addr    string // default b's
		want    string // node looked for
		method  transport.Method
		body    int
		fault   func(n *memnet.Net, a, b *member)
		notSent bool
		is      error // what else it matches
		after   time.Duration
		runs    int64 // of handlers
	}{
		{name: "nobody listens", addr: "10.0.0.2:1", method: echoMethod, notSent: true, after: -1},
		{name: "unknown name", addr: "nowhere:7400", method: echoMethod, notSent: true},
		{name: "another node answers", want: "c", method: echoMethod, notSent: true, after: -1},
		{name: "body too large", method: echoMethod, body: transport.MaxBody + 1, notSent: true, is: transport.ErrTooLarge},
		{
			name: "cut before the first call", method: echoMethod, notSent: true, is: context.DeadlineExceeded, after: limit,
			fault: func(n *memnet.Net, _, _ *member) { n.Cut("a", "b") },
		},
		{
			name: "own transport closed", method: echoMethod, notSent: true, is: transport.ErrClosed,
			fault: func(_ *memnet.Net, a, _ *member) { _ = a.Close() },
		},
		{name: "deadline while the handler runs", method: waitMethod, is: context.DeadlineExceeded, after: limit, runs: 1},
		{
			name: "peer crashes while the handler runs", method: waitMethod, is: transport.ErrConnLost, after: -1, runs: 1,
			fault: func(n *memnet.Net, _, _ *member) { time.AfterFunc(time.Second, func() { n.Crash("b") }) },
		},
		{
			name: "own transport closes while the handler runs", method: waitMethod, is: transport.ErrClosed, after: time.Second, runs: 1,
			fault: func(_ *memnet.Net, a, _ *member) { time.AfterFunc(time.Second, func() { _ = a.Close() }) },
		},
		{
			name: "peer's transport closes while the handler runs", method: waitMethod, is: transport.ErrConnLost, after: -1, runs: 1,
			fault: func(_ *memnet.Net, _, b *member) { time.AfterFunc(time.Second, func() { _ = b.Close() }) },
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *memnet.Net, a, b *member, s *servant) {
				addr := b.Addr()
				if tt.addr != "" {
					addr = tt.addr
				}
				if tt.fault != nil {
					tt.fault(n, a, b)
				}
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				begin := time.Now()
				_, _, err := a.Call(ctx, addr, tt.want, tt.method, make([]byte, tt.body))
				if err == nil || errors.Is(err, transport.ErrNotSent) != tt.notSent || (tt.is != nil && !errors.Is(err, tt.is)) {
					t.Errorf("got %v, want not sent %t and %v", err, tt.notSent, tt.is)
				}
				if got := time.Since(begin); tt.after >= 0 && got != tt.after {
					t.Errorf("ended after %v, want %v", got, tt.after)
				}
				synctest.Wait()
				if got := s.runs.Load(); got != tt.runs {
					t.Errorf("the handler ran %d times, want %d", got, tt.runs)
				}
			})
		})
	}
}

// A caller that gives up ends the context of its handler, at once.
func TestCall_CancelTravels(t *testing.T) {
	bubble(t, func(t *testing.T, n *memnet.Net, a, b *member, s *servant) {
		n.SetDefault(10*time.Millisecond, 0, 0)
		ctx, cancel := context.WithCancelCause(t.Context())
		reason := errors.New("the user hung up")
		result := make(chan error, 1)
		go func() {
			_, _, err := a.Call(ctx, b.Addr(), "b", waitMethod, nil)
			result <- err
		}()
		<-s.started
		begin := time.Now()
		cancel(reason)
		if err := <-result; !errors.Is(err, reason) || !errors.Is(err, context.Canceled) {
			t.Errorf("caller: got %v", err)
		}
		if err := <-s.ended; !errors.Is(err, context.Canceled) {
			t.Errorf("handler: got %v", err)
		}
		if got := time.Since(begin); got != 10*time.Millisecond {
			t.Errorf("the handler heard of it after %v, want one trip of 10ms", got)
		}
	})
}

// The deadline of the caller is the deadline of the handler, also if the caller's word can't reach it.
func TestCall_DeadlineTravels(t *testing.T) {
	bubble(t, func(t *testing.T, n *memnet.Net, a, b *member, s *servant) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		go func() { _, _, _ = a.Call(ctx, b.Addr(), "b", waitMethod, nil) }()
		<-s.started
		n.Cut("a", "b")
		if err := <-s.ended; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("handler: got %v", err)
		}
		if got := time.Since(begin); got > 1100*time.Millisecond {
			t.Errorf("the handler ended after %v, want about 1s", got)
		}
	})
}

// The context of a handler is a full one: contexts derived from it end with it.
func TestCall_DerivedContexts(t *testing.T) {
	bubble(t, func(t *testing.T, n *memnet.Net, a, b *member, _ *servant) {
		type key struct{}
		result := make(chan error, 4)
		b.Serve(func(ctx context.Context, _ transport.Identity, _ transport.Method, _ []byte) ([]byte, error) {
			child, cancel := context.WithTimeout(context.WithValue(ctx, key{}, 1), time.Hour)
			defer cancel()
			stopped := context.AfterFunc(ctx, func() { t.Error("a stopped AfterFunc ran") })
			if !stopped() {
				t.Error("AfterFunc could not be stopped")
			}
			context.AfterFunc(ctx, func() { result <- nil })
			if d, ok := ctx.Deadline(); !ok || time.Until(d) > time.Second || ctx.Err() != nil {
				t.Errorf("deadline: got %v %v, err %v", d, ok, ctx.Err())
			}
			n.Cut("a", "b") // or the caller's own word would come first
			<-child.Done()
			result <- child.Err()
			result <- ctx.Err()
			context.AfterFunc(ctx, func() { result <- nil })
			return nil, nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _, _ = a.Call(ctx, b.Addr(), "b", echoMethod, nil)
		got := map[error]int{}
		for range 4 {
			got[<-result]++
		}
		if got[context.DeadlineExceeded] != 2 || got[nil] != 2 {
			t.Errorf("got %v", got)
		}
	})
}

// A peer that breaks the protocol loses its connection; one line says so.
func TestServe_BrokenFrames(t *testing.T) {
	frames := map[string]string{
		"oversize":        "\x00\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x01\x01",
		"too short":       "\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\x01",
		"short request":   "\x00\x00\x00\x0a\x00\x00\x00\x00\x00\x00\x00\x01\x01\x01",
		"an answer":       "\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00\x01\x02",
		"type of nowhere": "\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00\x01\x77",
	}
	for name, f := range frames {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *memnet.Net, a, b *member, _ *servant) {
				c := greeted(t, n, b)
				_, _ = io.WriteString(c, f)
				if _, err := io.Copy(io.Discard, c); err != nil && !strings.Contains(err.Error(), "reset") {
					t.Error(err)
				}
				_ = c.Close()
				synctest.Wait()
				wantLine(t, "b", b.log, "the peer broke the protocol", "peer=stranger", "remote=10.0.0.3:")
				if err := ask(a, b.Addr(), "b"); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// greeted opens an RPC stream to b whose other end is the test itself.
func greeted(t *testing.T, n *memnet.Net, b *member) io.ReadWriteCloser {
	t.Helper()
	c, err := n.Host("stranger").DialContext(t.Context(), b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	id := transport.Identity{ClusterID: "blue", NodeID: "stranger", Boot: 1, Nonce: "s"}
	if err := transport.Greet(c, transport.KindRPC, id); err != nil {
		t.Fatal(err)
	}
	return c
}

// A peer that starts more calls than a connection may have is told which were not started.
func TestServe_TooManyCalls(t *testing.T) {
	bubble(t, func(t *testing.T, n *memnet.Net, _, b *member, s *servant) {
		c := greeted(t, n, b)
		defer func() { _ = c.Close() }()
		for i := range 2050 {
			if _, err := c.Write(transport.AppendFrame(nil, transport.Frame{Call: uint64(i), Kind: 1, Method: waitMethod})); err != nil {
				t.Fatal(err)
			}
		}
		r := bufio.NewReader(c)
		for i := range 2 {
			f, err := transport.ReadFrame(r)
			if err != nil || f.Kind != 3 {
				t.Fatalf("got %+v, %v, want a failure", f, err)
			}
			failure, err := transport.DecodeFailure(f.Body)
			if err != nil || failure.Code != transport.CodeBusy || !errors.Is(failure, transport.ErrNotSent) || f.Call != uint64(2048+i) {
				t.Errorf("call %d: got %v, %v, want CodeBusy for %d", f.Call, failure, err, 2048+i)
			}
		}
		synctest.Wait()
		if got := s.runs.Load(); got != 2048 {
			t.Errorf("%d handlers run, want 2048", got)
		}
	})
}
