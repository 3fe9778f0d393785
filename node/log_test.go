package node_test

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/node/nodetest"
)

// logBook keeps what is logged, a line each.
type logBook struct {
	mu    sync.Mutex
	lines []string
}

func (b *logBook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, string(p))
	return len(p), nil
}

func (b *logBook) with(text string) (found []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.lines {
		if strings.Contains(l, text) {
			found = append(found, l)
		}
	}
	return found
}

// What others do to an instance is in its own log, once; a first start has
// nothing to prove; raft's complaints about a dead peer are few.
func TestNode_LogOfAnInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := &logBook{}
		c := nodetest.New(t, nodetest.Config{Seed: 74, Log: slog.New(slog.NewTextHandler(book, nil))})
		c.WaitReady()
		for i := range 3 {
			if _, err := c.Node(i).Session(c.Context(5 * time.Second)); err != nil {
				t.Fatal(err)
			}
		}
		id := c.Node(1).InstanceID()
		submit(t, c, 0, &fsm.MarkInstance{InstanceId: id, Mark: fsm.MarkCordon, By: "op", Reason: "to see"})
		submit(t, c, 0, &fsm.MarkInstance{InstanceId: id, Mark: fsm.MarkDrain, By: "op", Reason: "to see"})
		submit(t, c, 0, &fsm.MarkInstance{InstanceId: id, Mark: fsm.MarkUndrain, By: "op", Reason: "to see"})
		c.Converge()
		for _, what := range []string{"instance.cordoned", "instance.draining", "instance.undrained"} {
			lines := book.with("what=" + what)
			if len(lines) != 1 || !strings.Contains(lines[0], "node="+c.Node(1).ID()) || !strings.Contains(lines[0], `by=op reason="to see"`) {
				t.Errorf("%s: %q", what, lines)
			}
		}
		leader := c.WaitLeader()
		c.Crash((leader + 1) % 3)
		c.Crash((leader + 2) % 3)
		time.Sleep(3 * time.Minute)
		if warned := book.with("level=WARN"); len(warned) == 0 || len(warned) > 40 {
			t.Errorf("%d warnings in three minutes without a quorum", len(warned))
		}
		c.Start((leader + 1) % 3)
		c.Start((leader + 2) % 3)
		c.WaitReady()
		if lines := book.with("does not prove"); len(lines) != 0 {
			t.Errorf("there was nothing to prove, or it was proved: %q", lines)
		}
		if lines := book.with("the node is leaving"); len(lines) != 0 {
			t.Errorf("%q", lines)
		}
	})
}

func TestNode_LogOfATakenPort(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	book := &logBook{}
	n, err := node.New(node.Config{
		DataDir: t.TempDir(), Bind: taken.Addr().String(), BootstrapExpect: 1, Logger: slog.New(slog.NewTextHandler(book, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	if err := n.Run(ctx); err != nil {
		t.Error(err)
	}
	lines := book.with("can't listen")
	if len(lines) != 1 || !strings.Contains(lines[0], "level=WARN") || !strings.Contains(lines[0], "set another bind address") {
		t.Errorf("%q", lines)
	}
}

// Whoever reaches the port can't fill the log with packets: one line of a kind in
// a minute, which counts those that were left out.
func TestNode_LogOfGarbagePackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := &logBook{}
		c := nodetest.New(t, nodetest.Config{Nodes: 1, Seed: 75, Log: slog.New(slog.NewTextHandler(book, nil))})
		c.WaitReady()
		stranger := c.Net.Host("stranger")
		_, packets, err := stranger.Listen(stranger.IP() + ":9")
		if err != nil {
			t.Fatal(err)
		}
		to, err := net.ResolveUDPAddr("udp", c.Node(0).Addr())
		if err != nil {
			t.Fatal(err)
		}
		const labelled = 244 // how memberlist marks a label
		garbage := map[string]func(i byte) []byte{
			"discarding packet with unacceptable label":      func(i byte) []byte { return []byte{labelled, 2, 'a' + i%26, 'b', 1, 2, 3} },
			"cannot decode label; packet has been truncated": func(i byte) []byte { return []byte{labelled, 200, i} },
			"label header cannot be empty when present":      func(i byte) []byte { return []byte{labelled, 0, i} },
		}
		send := func(n int) {
			for i := range n {
				for _, packet := range garbage {
					if _, err := packets.WriteTo(packet(byte(i)), to); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
		send(300)
		for text := range garbage {
			if lines := book.with(text); len(lines) != 1 || strings.Contains(lines[0], "repeated") {
				t.Errorf("%d lines %q for 300 packets, want 1 without a count: %v", len(lines), text, lines)
			}
		}
		time.Sleep(time.Minute)
		send(1)
		for text := range garbage {
			if lines := book.with(text); len(lines) != 2 || !strings.HasSuffix(lines[1], " repeated=299\n") {
				t.Errorf("after a minute: %v, want a second line of %q with repeated=299", lines, text)
			}
		}
		_ = packets.Close()
	})
}
