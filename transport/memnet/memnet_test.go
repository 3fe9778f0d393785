package memnet_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/transport/memnet"
)

// pair is two hosts a and b with one connection from a to b, on links that take exactly 1 ms.
type pair struct {
	net  *memnet.Net
	a, b net.Conn
	l    net.Listener
}

func exact() memnet.Options { return memnet.Options{Delay: time.Millisecond, Jitter: -1} }

func connect(t *testing.T, opts memnet.Options) *pair {
	t.Helper()
	n := memnet.New(1, opts)
	t.Cleanup(n.Close)
	l, _, err := n.Host("b").Listen(":7400")
	if err != nil {
		t.Fatal(err)
	}
	a, err := n.Host("a").DialContext(t.Context(), "b:7400")
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return &pair{net: n, a: a, b: b, l: l}
}

func write(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if n, err := c.Write([]byte(s)); n != len(s) || err != nil {
		t.Fatalf("write %q: got %d, %v, want %d, nil", s, n, err, len(s))
	}
}

// reads expects s to arrive after exactly d.
func reads(t *testing.T, c net.Conn, s string, d time.Duration) {
	t.Helper()
	begin := time.Now()
	buf := make([]byte, len(s))
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != s {
		t.Fatalf("read: got %q, %v, want %q", buf, err, s)
	}
	if got := time.Since(begin); got != d {
		t.Fatalf("%q arrived after %v, want %v", s, got, d)
	}
}

// fails expects the next read to fail with want after exactly d.
func fails(t *testing.T, c net.Conn, want error, d time.Duration) {
	t.Helper()
	begin := time.Now()
	n, err := c.Read(make([]byte, 1))
	if n != 0 || !errors.Is(err, want) {
		t.Fatalf("read: got %d, %v, want %v", n, err, want)
	}
	if got := time.Since(begin); got != d {
		t.Fatalf("read failed after %v, want %v", got, d)
	}
}

func TestStream(t *testing.T) {
	const ms = time.Millisecond
	tests := []struct {
		name string
		opts memnet.Options
		run  func(t *testing.T, p *pair)
	}{
		{"delivers in order after the delay", exact(), func(t *testing.T, p *pair) {
			write(t, p.a, "one ")
			write(t, p.a, "two ")
			reads(t, p.b, "one two ", ms)
			write(t, p.b, "back")
			reads(t, p.a, "back", ms)
		}},
		{"unequal delays keep the order", memnet.Options{Delay: ms, Jitter: 50 * ms}, func(t *testing.T, p *pair) {
			for i := range 100 {
				write(t, p.a, string(rune('a'+i%26)))
			}
			buf := make([]byte, 100)
			if _, err := io.ReadFull(p.b, buf); err != nil {
				t.Fatal(err)
			}
			for i, c := range buf {
				if want := byte('a' + i%26); c != want {
					t.Fatalf("byte %d: got %c, want %c", i, c, want)
				}
			}
		}},
		{"delay of one direction", exact(), func(t *testing.T, p *pair) {
			p.net.SetDelay("a", "b", 30*ms, 0)
			write(t, p.a, "slow")
			reads(t, p.b, "slow", 30*ms)
			write(t, p.b, "fast")
			reads(t, p.a, "fast", ms)
		}},
		{"loss delays by the retransmission time", exact(), func(t *testing.T, p *pair) {
			p.net.SetLoss("a", "b", 1)
			write(t, p.a, "x")
			p.net.SetLoss("a", "b", 0)
			begin := time.Now()
			if _, err := p.b.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			if got := time.Since(begin); got < 200*ms {
				t.Fatalf("got through after %v, want at least 200ms", got)
			}
		}},
		{"cut: what is under way waits for the heal", exact(), func(t *testing.T, p *pair) {
			write(t, p.a, "x")
			p.net.Cut("a", "b")
			time.AfterFunc(time.Second, func() { p.net.Heal("a", "b") })
			// Tries at 200, 600, 1400 ms after the first.
			reads(t, p.b, "x", 1400*ms+ms)
		}},
		{"cut: times out without progress, at both ends", exact(), func(t *testing.T, p *pair) {
			write(t, p.a, "x")
			p.net.Cut("a", "b")
			go func() { time.Sleep(time.Second); write(t, p.b, "y") }()
			fails(t, p.a, syscall.ETIMEDOUT, 10*time.Second)
			fails(t, p.b, syscall.ETIMEDOUT, time.Second)
			if _, err := p.a.Write([]byte("z")); !errors.Is(err, syscall.ETIMEDOUT) {
				t.Fatalf("write after the time-out: got %v", err)
			}
		}},
		{"cut: an idle connection lives through a short one", exact(), func(t *testing.T, p *pair) {
			p.net.Cut("a", "b")
			time.Sleep(20 * time.Second)
			p.net.Heal("a", "b")
			write(t, p.a, "x")
			reads(t, p.b, "x", ms)
		}},
		{"cut: keep-alive ends an idle connection", exact(), func(t *testing.T, p *pair) {
			p.net.Cut("a", "b")
			fails(t, p.a, syscall.ETIMEDOUT, 30*time.Second)
			fails(t, p.b, syscall.ETIMEDOUT, 0)
		}},
		{"one end timed out: the other is reset at the heal", exact(), func(t *testing.T, p *pair) {
			p.net.Cut("a", "b")
			write(t, p.a, "x")
			fails(t, p.a, syscall.ETIMEDOUT, 10*time.Second)
			p.net.Heal("a", "b")
			fails(t, p.b, syscall.ECONNRESET, ms)
		}},
		{"one-way cut: the cut direction waits, the other stalls without acknowledgements", exact(), func(t *testing.T, p *pair) {
			p.net.CutOneWay("b", "a")
			write(t, p.a, "first")
			reads(t, p.b, "first", ms)
			write(t, p.b, "never")
			time.Sleep(300 * ms)
			write(t, p.a, "stalled")
			_ = p.b.SetReadDeadline(time.Now().Add(time.Second))
			fails(t, p.b, os.ErrDeadlineExceeded, time.Second)
			_ = p.b.SetReadDeadline(time.Time{})
			fails(t, p.a, syscall.ETIMEDOUT, 10*time.Second-1301*ms)
		}},
		{"one-way cut: the end that hears nothing is reset by the one that timed out", exact(), func(t *testing.T, p *pair) {
			p.net.CutOneWay("b", "a")
			write(t, p.a, "x")
			reads(t, p.b, "x", ms)
			go func() { _, _ = p.a.Read(make([]byte, 1)) }()
			fails(t, p.b, syscall.ECONNRESET, 10*time.Second)
		}},
		{"isolate and rejoin", exact(), func(t *testing.T, p *pair) {
			p.net.Isolate("b")
			write(t, p.a, "x")
			_ = p.b.SetReadDeadline(time.Now().Add(time.Second))
			fails(t, p.b, os.ErrDeadlineExceeded, time.Second)
			_ = p.b.SetReadDeadline(time.Time{})
			p.net.Rejoin("b")
			reads(t, p.b, "x", 400*ms+ms)
		}},
		{"pause: holds both directions and loses nothing, whatever the time", exact(), func(t *testing.T, p *pair) {
			p.net.Pause("b")
			write(t, p.a, "in")
			write(t, p.b, "out")
			for _, c := range []net.Conn{p.a, p.b} {
				_ = c.SetReadDeadline(time.Now().Add(time.Hour))
			}
			fails(t, p.a, os.ErrDeadlineExceeded, time.Hour)
			fails(t, p.b, os.ErrDeadlineExceeded, 0)
			for _, c := range []net.Conn{p.a, p.b} {
				_ = c.SetReadDeadline(time.Time{})
			}
			p.net.Resume("b")
			reads(t, p.a, "out", ms)
			reads(t, p.b, "in", 0)
		}},
		{"crash: peer is reset, own handles fail", exact(), func(t *testing.T, p *pair) {
			write(t, p.b, "last words")
			p.net.Crash("b")
			reads(t, p.a, "last words", ms)
			fails(t, p.a, syscall.ECONNRESET, 0)
			if _, err := p.a.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
				t.Fatalf("write: got %v, want a reset", err)
			}
			if _, err := p.b.Read(make([]byte, 1)); err == nil {
				t.Fatal("read on a dead host worked")
			}
		}},
		{"crash of an isolated host is silent", exact(), func(t *testing.T, p *pair) {
			p.net.Isolate("b")
			p.net.Crash("b")
			fails(t, p.a, syscall.ETIMEDOUT, 30*time.Second)
		}},
		{"half close", exact(), func(t *testing.T, p *pair) {
			write(t, p.a, "bye")
			if err := p.a.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			reads(t, p.b, "bye", ms)
			fails(t, p.b, io.EOF, 0)
			write(t, p.b, "still here")
			reads(t, p.a, "still here", ms)
			if _, err := p.a.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
				t.Fatalf("write after CloseWrite: got %v", err)
			}
		}},
		{"close: data, then end of file, then writes are reset", exact(), func(t *testing.T, p *pair) {
			write(t, p.a, "bye")
			_ = p.a.Close()
			reads(t, p.b, "bye", ms)
			fails(t, p.b, io.EOF, 0)
			write(t, p.b, "nobody reads this")
			time.Sleep(3 * ms)
			if _, err := p.b.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
				t.Fatalf("second write: got %v, want a reset", err)
			}
			if _, err := p.a.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				t.Fatalf("read after close: got %v", err)
			}
			if err := p.a.Close(); !errors.Is(err, net.ErrClosed) {
				t.Fatalf("second close: got %v", err)
			}
		}},
		{"close wakes a blocked reader and a blocked writer", memnet.Options{Window: 10}, func(t *testing.T, p *pair) {
			time.AfterFunc(time.Second, func() { _ = p.a.Close() })
			done := make(chan error, 1)
			go func() {
				_, err := p.a.Write(make([]byte, 20))
				done <- err
			}()
			fails(t, p.a, net.ErrClosed, time.Second)
			if err := <-done; !errors.Is(err, net.ErrClosed) {
				t.Fatalf("writer: got %v", err)
			}
		}},
		{"back-pressure: a writer waits for the reader", memnet.Options{Delay: ms, Jitter: -1, Window: 4}, func(t *testing.T, p *pair) {
			done := make(chan time.Duration, 1)
			begin := time.Now()
			go func() {
				write(t, p.a, "123456")
				done <- time.Since(begin)
			}()
			time.Sleep(time.Second)
			reads(t, p.b, "123456", ms)
			if got := <-done; got != time.Second {
				t.Fatalf("writer waited %v, want 1s", got)
			}
		}},
		{"a blocked writer is released by the peer's close", memnet.Options{Delay: ms, Jitter: -1, Window: 4}, func(t *testing.T, p *pair) {
			time.AfterFunc(time.Second, func() { _ = p.b.Close() })
			if n, err := p.a.Write([]byte("123456")); n != 4 || !errors.Is(err, syscall.ECONNRESET) {
				t.Fatalf("write: got %d, %v, want 4 and a reset", n, err)
			}
		}},
		{"deadlines", memnet.Options{Window: 1}, func(t *testing.T, p *pair) {
			_ = p.a.SetDeadline(time.Now().Add(time.Second))
			fails(t, p.a, os.ErrDeadlineExceeded, time.Second)
			if _, err := p.a.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("write after the deadline: got %v", err)
			}
			_ = p.a.SetWriteDeadline(time.Now().Add(time.Second))
			begin := time.Now()
			if n, err := p.a.Write([]byte("xy")); n != 1 || !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begin) != time.Second {
				t.Fatalf("write into a full window: got %d, %v after %v", n, err, time.Since(begin))
			}
			var timeout net.Error
			if _, err := p.a.Read(make([]byte, 1)); !errors.As(err, &timeout) || !timeout.Timeout() {
				t.Fatalf("read: got %v, want a net.Error that says Timeout", err)
			}
			// A deadline that is moved while a read waits counts at once.
			_ = p.a.SetReadDeadline(time.Time{})
			time.AfterFunc(time.Second, func() { _ = p.a.SetReadDeadline(time.Now()) })
			fails(t, p.a, os.ErrDeadlineExceeded, time.Second)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { tt.run(t, connect(t, tt.opts)) })
		})
	}
}

func TestDial(t *testing.T) {
	type outcome struct {
		err   error
		after time.Duration
	}
	dial := func(t *testing.T, h *memnet.Host, addr string, limit time.Duration) outcome {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		begin := time.Now()
		_, err := h.DialContext(ctx, addr)
		return outcome{err, time.Since(begin)}
	}
	const ms = time.Millisecond
	tests := []struct {
		name  string
		fault func(n *memnet.Net)
		addr  string
		want  outcome
	}{
		{"a round trip", func(*memnet.Net) {}, "10.0.0.2:7400", outcome{nil, 2 * ms}},
		{"by name", func(*memnet.Net) {}, "b:7400", outcome{nil, 2 * ms}},
		{"refused", func(*memnet.Net) {}, "b:7401", outcome{syscall.ECONNREFUSED, 2 * ms}},
		{"crashed host refuses", func(n *memnet.Net) { n.Crash("b") }, "b:7400", outcome{syscall.ECONNREFUSED, 2 * ms}},
		{"cut: until the caller gives up", func(n *memnet.Net) { n.Cut("a", "b") }, "b:7400", outcome{context.DeadlineExceeded, 5 * time.Second}},
		{"cut answers", func(n *memnet.Net) { n.CutOneWay("b", "a") }, "b:7400", outcome{context.DeadlineExceeded, 5 * time.Second}},
		{"healed in time: at the next try", func(n *memnet.Net) {
			n.Isolate("b")
			time.AfterFunc(1500*ms, func() { n.Rejoin("b") })
		}, "b:7400", outcome{nil, 2002 * ms}},
		{"no such address", func(*memnet.Net) {}, "10.9.9.9:7400", outcome{syscall.EHOSTUNREACH, 3 * time.Second}},
		{"paused host takes it into its backlog", func(n *memnet.Net) { n.Pause("b") }, "b:7400", outcome{nil, 2 * ms}},
		{"new address", func(n *memnet.Net) { n.SetAddr("b", "10.1.1.1") }, "10.0.0.2:7400", outcome{syscall.EHOSTUNREACH, 3 * time.Second}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := memnet.New(1, exact())
				defer n.Close()
				a := n.Host("a")
				if _, _, err := n.Host("b").Listen("10.0.0.2:7400"); err != nil {
					t.Fatal(err)
				}
				tt.fault(n)
				got := dial(t, a, tt.addr, 5*time.Second)
				if !errors.Is(got.err, tt.want.err) || got.after != tt.want.after {
					t.Fatalf("got %v after %v, want %v after %v", got.err, got.after, tt.want.err, tt.want.after)
				}
			})
		})
	}
}

func TestListen(t *testing.T) {
	n := memnet.New(1)
	defer n.Close()
	h := n.Host("a")
	l, p, err := h.Listen(":7400")
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Addr().String(); got != "10.0.0.1:7400" {
		t.Errorf("address: got %s", got)
	}
	if got := p.LocalAddr().String(); got != "10.0.0.1:7400" {
		t.Errorf("packet address: got %s", got)
	}
	for addr, want := range map[string]error{":7400": syscall.EADDRINUSE, "10.0.0.9:7400": syscall.EADDRNOTAVAIL} {
		if _, _, err := h.Listen(addr); !errors.Is(err, want) {
			t.Errorf("listen on %s: got %v, want %v", addr, err, want)
		}
	}
	zero, _, err := h.Listen("10.0.0.1:0")
	if err != nil || zero.Addr().String() == "10.0.0.1:0" {
		t.Errorf("port 0: got %v, %v", zero.Addr(), err)
	}
	// The next life may listen on the same address, the former one may not do anything.
	n.Crash("a")
	if _, _, err := n.Host("a").Listen(":7400"); err != nil {
		t.Errorf("listen after a crash: %v", err)
	}
	if _, _, err := h.Listen(":7500"); err == nil {
		t.Error("a dead host listens")
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept on a dead host: got %v", err)
	}
	n.SetName("app", "10.0.0.1", "10.0.0.7")
	n.SetName("srv:_miw._tcp.app", "a:7001", "10.0.0.7:7002")
	for name, want := range map[string]string{
		"app:99":            "[10.0.0.1:99 10.0.0.7:99]",
		"app":               "[10.0.0.1:7400 10.0.0.7:7400]",
		"srv:_miw._tcp.app": "[10.0.0.1:7001 10.0.0.7:7002]",
		"10.2.3.4:5":        "[10.2.3.4:5]",
	} {
		got, err := n.Host("a").Lookup(t.Context(), name)
		if text := "[" + join(got) + "]"; err != nil || text != want {
			t.Errorf("lookup %s: got %s, %v, want %s", name, text, err, want)
		}
	}
	if _, err := n.Host("a").Lookup(t.Context(), "nobody:1"); err == nil {
		t.Error("an unknown name was found")
	}
}

func join(s []string) string {
	out := ""
	for i, x := range s {
		if i > 0 {
			out += " "
		}
		out += x
	}
	return out
}

// An idle connection with blocked readers costs no timer: an hour passes in one step.
func TestIdleCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := connect(t, memnet.Options{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = p.b.Read(make([]byte, 1))
		}()
		time.Sleep(1000 * time.Hour)
		p.net.Close()
		<-done
	})
}
