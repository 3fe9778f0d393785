package transport_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
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
		{name: "cut before the first call", method: echoMethod, notSent: true, is: context.DeadlineExceeded, after: limit,
			fault: func(n *memnet.Net, _, _ *member) { n.Cut("a", "b") }},
		{name: "own transport closed", method: echoMethod, notSent: true, is: transport.ErrClosed,
			fault: func(_ *memnet.Net, a, _ *member) { _ = a.Close() }},
		{name: "deadline while the handler runs", method: waitMethod, is: context.DeadlineExceeded, after: limit, runs: 1},
		{name: "peer crashes while the handler runs", method: waitMethod, is: transport.ErrConnLost, after: -1, runs: 1,
			fault: func(n *memnet.Net, _, _ *member) { time.AfterFunc(time.Second, func() { n.Crash("b") }) }},
		{name: "own transport closes while the handler runs", method: waitMethod, is: transport.ErrClosed, after: time.Second, runs: 1,
			fault: func(_ *memnet.Net, a, _ *member) { time.AfterFunc(time.Second, func() { _ = a.Close() }) }},
		{name: "peer's transport closes while the handler runs", method: waitMethod, is: transport.ErrConnLost, after: -1, runs: 1,
			fault: func(_ *memnet.Net, _, b *member) { time.AfterFunc(time.Second, func() { _ = b.Close() }) }},
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

// A peer that restarts, here or at another address, is reached by the next call.
func TestCall_PeerRestarts(t *testing.T) {
	bubble(t, func(t *testing.T, n *memnet.Net, a, b *member, _ *servant) {
		for boot := uint64(2); boot < 5; boot++ {
			if err := ask(a, b.Addr(), "b"); err != nil {
				t.Fatal(err)
			}
			n.Crash("b")
			_ = b.Close()
			n.SetAddr("b", fmt.Sprintf("10.0.1.%d", boot))
			b = listen(t, n, "b", change{id: transport.Identity{Boot: boot}})
			if err := ask(a, b.Addr(), "b"); err != nil {
				t.Fatalf("boot %d: %v", boot, err)
			}
		}
		n.Crash("b")
		same := listen(t, n, "b", change{id: transport.Identity{Boot: 9}})
		synctest.Wait() // the old connection's reset has not come yet: the call must cope
		if err := ask(a, same.Addr(), "b"); err != nil && !errors.Is(err, transport.ErrConnLost) {
			t.Fatal(err)
		}
		if err := ask(a, same.Addr(), "b"); err != nil {
			t.Fatal(err)
		}
	})
}

// A slow handler holds up nobody, and a dead peer costs its own calls only.
func TestCall_NoHeadOfLine(t *testing.T) {
	bubble(t, func(t *testing.T, n *memnet.Net, a, b *member, s *servant) {
		c := listen(t, n, "c")
		if err := ask(a, c.Addr(), "c"); err != nil {
			t.Fatal(err)
		}
		n.Isolate("c")
		var calls sync.WaitGroup
		for range 20 {
			calls.Go(func() { _, _, _ = a.Call(t.Context(), b.Addr(), "b", sleepMethod, nil) })
			calls.Go(func() {
				if err := ask(a, c.Addr(), "c"); err == nil {
					t.Error("a call to a host that is cut off was answered")
				}
			})
			calls.Go(func() {
				if err := ask(a, "10.0.0.77:7400", "d"); err == nil {
					t.Error("a call to an address without a host was answered")
				}
			})
		}
		for range 20 {
			<-s.started
		}
		begin := time.Now()
		if err := ask(a, b.Addr(), "b"); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > 10*time.Millisecond {
			t.Errorf("a call beside slow and dead ones took %v", took)
		}
		calls.Wait()
		time.Sleep(10 * time.Second)
	})
}

// A peer that falls silent is given up after PeerTimeout, with all calls to it, whatever their deadlines; a slow handler is not silence.
func TestCall_SilentPeer(t *testing.T) {
	tests := []struct {
		name  string
		fault func(n *memnet.Net)
		heal  func(n *memnet.Net)
	}{
		{"cut off", func(n *memnet.Net) { n.Isolate("b") }, func(n *memnet.Net) { n.Rejoin("b") }},
		{"stopped", func(n *memnet.Net) { n.Pause("b") }, func(n *memnet.Net) { n.Resume("b") }},
		{"answers lost", func(n *memnet.Net) { n.CutOneWay("b", "a") }, func(n *memnet.Net) { n.Heal("a", "b") }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *memnet.Net, a, b *member, s *servant) {
				result := make(chan error, 1)
				go func() {
					_, _, err := a.Call(t.Context(), b.Addr(), "b", waitMethod, nil)
					result <- err
				}()
				<-s.started
				time.Sleep(time.Minute) // pings are answered
				select {
				case err := <-result:
					t.Fatalf("a slow handler was taken for a dead peer: %v", err)
				default:
				}
				tt.fault(n)
				begin := time.Now()
				err := <-result
				if !errors.Is(err, transport.ErrPeerSilent) || !errors.Is(err, transport.ErrConnLost) || errors.Is(err, transport.ErrNotSent) {
					t.Errorf("got %v, want ErrConnLost for ErrPeerSilent", err)
				}
				if got := time.Since(begin); got < 2*time.Second || got > 5*time.Second {
					t.Errorf("given up after %v, want about 3s", got)
				}
				tt.heal(n)
				time.Sleep(time.Second)
				if err := ask(a, b.Addr(), "b"); err != nil {
					t.Errorf("after the heal: %v", err)
				}
				if err := <-s.ended; !errors.Is(err, context.Canceled) {
					t.Errorf("handler of the lost connection: got %v", err)
				}
			})
		})
	}
}

// Calls above the limit of one connection wait for a place; a peer that does not wait is told that it was not started.
func TestCall_Limits(t *testing.T) {
	bubble(t, func(t *testing.T, _ *memnet.Net, a, b *member, s *servant) {
		ctx, cancel := context.WithCancel(t.Context())
		var calls sync.WaitGroup
		for range 1024 {
			calls.Go(func() { _, _, _ = a.Call(ctx, b.Addr(), "b", waitMethod, nil) })
		}
		for range 1024 {
			<-s.started
		}
		if err := ask(a, b.Addr(), "b"); !errors.Is(err, transport.ErrNotSent) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("call 1025: got %v, want a deadline and not sent", err)
		}
		cancel()
		calls.Wait()
		if err := ask(a, b.Addr(), "b"); err != nil {
			t.Errorf("after the others ended: %v", err)
		}
	})
}

// Requests that were taken back before they left never reach a handler: the window is full, so they are still ours.
func TestCall_TakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New(1, memnet.Options{Window: 64 << 10})
		defer n.Close()
		a, b := listen(t, n, "a"), listen(t, n, "b")
		s := newServant(b)
		if err := ask(a, b.Addr(), "b"); err != nil {
			t.Fatal(err)
		}
		before := s.runs.Load()
		n.Pause("b")
		var calls sync.WaitGroup
		var unknown, unsent atomic.Int64
		for range 8 { // the first fill the window, the others wait behind them
			calls.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, _, err := a.Call(ctx, b.Addr(), "b", echoMethod, bytes.Repeat([]byte("x"), 60<<10))
				switch {
				case err == nil:
					t.Error("a stopped peer answered")
				case errors.Is(err, transport.ErrNotSent):
					unsent.Add(1)
				default:
					unknown.Add(1)
				}
			})
		}
		calls.Wait()
		n.Resume("b")
		time.Sleep(time.Second)
		if got := s.runs.Load() - before; got > unknown.Load() || unsent.Load() == 0 {
			t.Errorf("%d handlers ran; %d calls of unknown outcome, %d surely not sent", got, unknown.Load(), unsent.Load())
		}
	})
}

// Close ends the contexts of handlers and waits for them; it says so if one does not heed its context.
func TestClose_WithCallsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New(1)
		defer n.Close()
		a := listen(t, n, "a")
		b, err := tryListen(n, "b")
		if err != nil {
			t.Fatal(err)
		}
		s := newServant(b)
		var calls sync.WaitGroup
		for range 50 {
			calls.Go(func() {
				if _, _, err := a.Call(t.Context(), b.Addr(), "b", waitMethod, nil); !errors.Is(err, transport.ErrConnLost) {
					t.Errorf("got %v, want ErrConnLost", err)
				}
			})
		}
		for range 50 {
			<-s.started
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if got := len(s.ended); got != 50 {
			t.Errorf("%d handlers had ended when Close returned, want 50", got)
		}
		calls.Wait()
		if err := ask(b, a.Addr(), "a"); !errors.Is(err, transport.ErrClosed) || !errors.Is(err, transport.ErrNotSent) {
			t.Errorf("call after Close: got %v", err)
		}

		stubborn, err := tryListen(n, "stubborn")
		if err != nil {
			t.Fatal(err)
		}
		s = newServant(stubborn)
		calls.Go(func() { _, _, _ = a.Call(t.Context(), stubborn.Addr(), "stubborn", sleepMethod, nil) })
		<-s.started
		if err := stubborn.Close(); err == nil || !strings.Contains(err.Error(), "a handler has not returned for 5s") {
			t.Errorf("close with a handler that goes on: got %v", err)
		}
		calls.Wait()
		time.Sleep(10 * time.Second)
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

// A client transport calls and listens to nobody.
func TestNewClient(t *testing.T) {
	bubble(t, func(t *testing.T, n *memnet.Net, _, b *member, _ *servant) {
		guard, err := transport.NewClient(transport.Config{Network: n.Host("guard"), Identity: func() transport.Identity {
			return transport.Identity{ClusterID: "blue", NodeID: "g", Boot: 1, Nonce: "g", Addr: "10.0.0.3:7400"}
		}})
		if err != nil {
			t.Fatal(err)
		}
		answer, _, err := guard.Call(t.Context(), b.Addr(), "b", echoMethod, []byte("x"))
		if string(answer) != "g:x" || err != nil {
			t.Errorf("got %q, %v", answer, err)
		}
		if guard.Addr() != "" {
			t.Errorf("a client listens on %s", guard.Addr())
		}
		if err := guard.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A connection without calls is closed after a minute and made anew when it is needed.
func TestIdleConnections(t *testing.T) {
	bubble(t, func(t *testing.T, n *memnet.Net, a, b *member, _ *servant) {
		for range 3 {
			if err := ask(a, b.Addr(), "b"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * time.Minute)
		}
		if got := n.LinkStats("a", "b").Conns; got != 3 {
			t.Errorf("%d connections were made for three calls, three minutes apart, want 3", got)
		}
		for range 100 {
			if err := ask(a, b.Addr(), "b"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
		}
		if got := n.LinkStats("a", "b").Conns; got != 4 {
			t.Errorf("%d connections after steady calls, want 4", got)
		}
	})
}

// Calls from both sides, much at once, with payloads of all sizes: what comes back is what was sent.
func TestCall_Storm(t *testing.T) {
	bubble(t, func(t *testing.T, n *memnet.Net, a, b *member, _ *servant) {
		n.SetDefault(100*time.Microsecond, 300*time.Microsecond, 0.01)
		a.Serve(echo)
		b.Serve(echo)
		var calls sync.WaitGroup
		for i := range 100 {
			from, to := a, b
			if i%2 == 1 {
				from, to = b, a
			}
			calls.Go(func() {
				for k := range 20 {
					body := bytes.Repeat([]byte{byte(i), byte(k)}, (i*k*37)%5000)
					answer, _, err := from.Call(t.Context(), to.Addr(), to.id, echoMethod, body)
					if err != nil || !bytes.Equal(answer, body) {
						t.Errorf("call %d of %d: got %d bytes, %v, want %d", k, i, len(answer), err, len(body))
						return
					}
				}
			})
		}
		calls.Wait()
	})
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
