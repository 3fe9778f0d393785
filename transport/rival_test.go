package transport_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/miwnode/miwnode/transport"
	"github.com/miwnode/miwnode/transport/memnet"
)

// Who is refused for another life of its node is told of that life, whichever end
// refuses, and both ends are told of the refusal.
func TestRefusals_KnownLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New(1)
		defer n.Close()
		told := map[string]chan *transport.RefusedError{"good": make(chan *transport.RefusedError, 9), "old": make(chan *transport.RefusedError, 9)}
		listening := func(who string) func(*transport.Config) {
			return func(c *transport.Config) { c.Refused = func(e *transport.RefusedError) { told[who] <- e } }
		}
		good := listen(t, n, "good", change{config: listening("good")})
		newer := listen(t, n, "x", change{host: "new-x", id: transport.Identity{Boot: 7, Nonce: "seven"}})
		old := listen(t, n, "x", change{host: "old-x", id: transport.Identity{Boot: 6, Nonce: "six"}, config: listening("old")})
		if err := ask(newer, good.Addr(), "good"); err != nil {
			t.Fatal(err)
		}
		want := transport.Identity{ClusterID: "blue", NodeID: "x", Boot: 7, Nonce: "seven", Addr: newer.Addr()}
		check := func(what string, e *transport.RefusedError, byPeer bool) {
			t.Helper()
			if e.Refusal != transport.RefusedOlderBoot || e.ByPeer != byPeer || e.Known != want {
				t.Errorf("%s: refusal %q, by peer %t, known %+v; want an older boot, %t, %+v", what, e.Refusal, e.ByPeer, e.Known, byPeer, want)
			}
		}
		refused, ok := errors.AsType[*transport.RefusedError](ask(old, good.Addr(), "good"))
		if !ok {
			t.Fatal("the old life was let in")
		}
		check("the old life calls: its error", refused, true)
		check("the old life calls: the caller", <-told["old"], true)
		check("the old life calls: the called", <-told["good"], false)
		refused, ok = errors.AsType[*transport.RefusedError](ask(good, old.Addr(), "x"))
		if !ok {
			t.Fatal("the old life answers")
		}
		check("the old life is called: the error", refused, false)
		check("the old life is called: the caller", <-told["good"], false)
		check("the old life is called: the called", <-told["old"], true)

		// Two that call each other by one ID know it at once.
		refused, ok = errors.AsType[*transport.RefusedError](ask(old, newer.Addr(), "x"))
		if !ok || refused.Refusal != transport.RefusedTwin || refused.Known != want {
			t.Errorf("a twin is told %+v", refused)
		}
	})
}
