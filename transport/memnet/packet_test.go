package memnet_test

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/transport/memnet"
)

func TestPackets(t *testing.T) {
	const ms = time.Millisecond
	tests := []struct {
		name  string
		fault func(n *memnet.Net)
		sent  int
		got   int
		after time.Duration // of the first
	}{
		{"arrive after the delay", func(*memnet.Net) {}, 3, 3, ms},
		{"cut", func(n *memnet.Net) { n.Cut("a", "b") }, 3, 0, 0},
		{"cut the other way", func(n *memnet.Net) { n.CutOneWay("b", "a") }, 3, 3, ms},
		{"half lost", func(n *memnet.Net) { n.SetLoss("a", "b", 0.5) }, 200, 91, ms},
		{"buffer full", func(*memnet.Net) {}, 300, 256, ms},
		{"receiver paused", func(n *memnet.Net) {
			n.Pause("b")
			time.AfterFunc(time.Second, func() { n.Resume("b") })
		}, 300, 256, time.Second},
		{"sender paused", func(n *memnet.Net) {
			n.Pause("a")
			time.AfterFunc(time.Second, func() { n.Resume("a") })
		}, 300, 256, time.Second + ms},
		{"receiver crashed", func(n *memnet.Net) { n.Crash("b") }, 3, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := memnet.New(1, exact())
				defer n.Close()
				_, a, err := n.Host("a").Listen(":1")
				if err != nil {
					t.Fatal(err)
				}
				_, b, err := n.Host("b").Listen(":2")
				if err != nil {
					t.Fatal(err)
				}
				tt.fault(n)
				begin := time.Now()
				for range tt.sent {
					if _, err := a.WriteTo([]byte("hello"), &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 2}); err != nil {
						t.Fatal(err)
					}
				}
				_ = b.SetReadDeadline(begin.Add(time.Minute))
				got, first := 0, time.Duration(0)
				for {
					buf := make([]byte, 10)
					k, from, err := b.ReadFrom(buf)
					if err != nil {
						break
					}
					if got++; got == 1 {
						first = time.Since(begin)
					}
					if string(buf[:k]) != "hello" || from.String() != "10.0.0.1:1" {
						t.Fatalf("got %q from %v", buf[:k], from)
					}
				}
				if got != tt.got || first != tt.after {
					t.Errorf("got %d packets, the first after %v, want %d after %v", got, first, tt.got, tt.after)
				}
				s := n.LinkStats("a", "b")
				if s.Packets != uint64(tt.sent) && tt.name != "sender paused" {
					t.Errorf("counted %d packets, want %d", s.Packets, tt.sent)
				}
			})
		})
	}
}
