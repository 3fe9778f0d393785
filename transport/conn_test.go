package transport_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/transport"
	"github.com/miwnode/miwnode/transport/memnet"
)

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

// Requests that were taken back before they left never reach a handler: the writer is held up by a large one, so they are still ours.
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
		call := func(size int, notSent bool) {
			calls.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, _, err := a.Call(ctx, b.Addr(), "b", echoMethod, make([]byte, size))
				if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, transport.ErrNotSent) != notSent {
					t.Errorf("a call with %d bytes: got %v, want a deadline and not sent %t", size, err, notSent)
				}
			})
		}
		call(200<<10, false)
		synctest.Wait()
		for range 8 {
			call(100, true)
		}
		calls.Wait()
		n.Resume("b")
		time.Sleep(time.Second)
		if got := s.runs.Load() - before; got != 1 {
			t.Errorf("%d handlers ran, want that of the large request only", got)
		}
		if err := ask(a, b.Addr(), "b"); err != nil {
			t.Errorf("the connection did not survive: %v", err)
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
