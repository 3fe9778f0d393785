package coord_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/fsm"
)

// Ensures that groups whose members all came over the API are planned for by the
// nodes, and left to the first Coordinator that joins.
func TestPlanner_GroupsOfTheAPI(t *testing.T) {
	bubble(t, coordtest.Timing{}, func(t *testing.T, w *coordtest.World) {
		a, b := w.Join("a"), w.Join("b")
		var all sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		var hosts []*coord.Planner
		for _, i := range []*coordtest.Instance{a, b} {
			p, err := coord.NewPlanner(i)
			if err != nil {
				t.Fatal(err)
			}
			hosts = append(hosts, p)
			all.Go(func() { equal(t, p.Run(ctx), nil, "Run") })
		}
		do(t, w, &fsm.PutGroup{Group: "g", Settings: &fsm.GroupSettings{MaxMoves: 6}, CatalogHash: putCatalog(t, w, "w1", "w2", "w3", "w4", "w5", "w6"), By: "op"})
		x, y := w.Client("x"), w.Client("y")
		do(t, w, &fsm.JoinGroup{Group: "g", SessionId: x.SessionID(), All: true})
		do(t, w, &fsm.JoinGroup{Group: "g", SessionId: y.SessionID(), Keys: []string{"w1", "w2"}})
		settle()
		equal(t, fmt.Sprint(len(x.Leases()), len(y.Leases())), "4 2", "grants")
		leading := 0
		for _, h := range hosts {
			equal(t, len(h.Status()), 1, "groups")
			if h.Status()[0].Leading {
				leading++
			}
		}
		equal(t, leading, 1, "who plan")

		m := newTeam(t, w, coord.Group{Name: "g", Workloads: works("w1", "w2", "w3", "w4", "w5", "w6")})
		c := m.join("c")
		settle()
		for _, h := range hosts {
			equal(t, len(h.Status()), 0, "groups left to the hosts")
		}
		who, _ := planningOf(c)
		equal(t, who, "c", "who plans")
		for l := range w.View().SessionLeases(x.SessionID()) { // a client hands over by releasing
			if l.State == fsm.Transferring {
				do(t, w, &fsm.Release{Key: l.Key, Token: l.Token, SessionId: x.SessionID()})
			}
		}
		settle()
		equal(t, fmt.Sprint(len(x.Leases()), len(y.Leases()))+" "+m.watch.count(), "2 2 c 2", "shares")
		equal(t, c.leave(), nil, "Run")
		settle()
		equal(t, fmt.Sprint(len(x.Leases()), len(y.Leases())), "4 2", "grants without c")
		cancel()
		all.Wait()
		m.watch.check(t)
	})
}
