package coord_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/fsm"
)

// do commits an operator's command, and fails the test when it is refused.
func do(t *testing.T, w *coordtest.World, op fsm.Op) {
	t.Helper()
	res, err := w.Propose(op)
	if err == nil {
		err = fsm.ResultErr(res)
	}
	if err != nil {
		t.Fatalf("%s: %v", coordtest.Kind(op), err)
	}
}

// statusOf is the status of a workload at the leader.
func statusOf(w *coordtest.World, group, workload string) string {
	g, ok := w.View().Group(group)
	if !ok {
		return "no group"
	}
	x, ok := g.Workload(workload)
	if !ok {
		return "absent"
	}
	return x.Status.String()
}

// await waits, in a bubble, for what becomes true before long.
func await(is func() bool) {
	for synctest.Wait(); !is(); synctest.Wait() {
		time.Sleep(time.Millisecond)
	}
}

// finishing is work that goes on after it was asked to finish, for as long.
func finishing(d time.Duration) func(context.Context, string, coord.Workload, *coord.Lease) error {
	return func(ctx context.Context, _ string, _ coord.Workload, l *coord.Lease) error {
		select {
		case <-l.Draining():
		case <-ctx.Done():
			return nil
		}
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
		return nil
	}
}

func settings(g coord.Group, change func(*coord.Group)) coord.Group {
	change(&g)
	return g
}

// group is the group at the leader.
func group(t *testing.T, w *coordtest.World, name string) *fsm.Group {
	t.Helper()
	g, ok := w.View().Group(name)
	if !ok {
		t.Fatalf("no group %s", name)
	}
	return g
}

// putCatalog brings a catalog into the state and returns its hash.
func putCatalog(t *testing.T, w *coordtest.World, keys ...string) string {
	t.Helper()
	var specs []fsm.Spec
	for _, k := range keys {
		specs = append(specs, fsm.Spec{Key: k})
	}
	hash, parts, err := fsm.NewCatalog(specs)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		do(t, w, p)
	}
	return hash
}

var errBroken = errors.New("broken")
