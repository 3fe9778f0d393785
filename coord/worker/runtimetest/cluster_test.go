//go:build linux

package runtimetest_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/miwnode/miwnode/artifact"
	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/coord/worker/execrt"
	"github.com/miwnode/miwnode/coord/worker/runtimetest"
	"github.com/miwnode/miwnode/coord/worker/wasmrt"
	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/guard"
	"github.com/miwnode/miwnode/node"
)

// The nodes of the test run their commands under guards, which are this binary.
func TestMain(m *testing.M) {
	guard.Main()
	goleak.VerifyTestMain(m)
}

// member is a node that runs workers.
type member struct {
	*node.Node
	*worker.Catalog
	store *artifact.Store
}

// cluster starts three nodes on the loopback, with everything that runs workers.
func cluster(t *testing.T, log *slog.Logger) (members []*member) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var nodes, catalogs sync.WaitGroup
	working, done := context.WithCancel(ctx)
	t.Cleanup(func() {
		done()
		catalogs.Wait()
		cancel()
		nodes.Wait()
	})
	dir := t.TempDir()
	var join []string
	for i := range 3 {
		n, err := node.New(node.Config{
			DataDir: filepath.Join(dir, strconv.Itoa(i)), ID: "n" + strconv.Itoa(i), Bind: "127.0.0.1:0", Join: join,
			Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
		})
		if err != nil {
			t.Fatal(err)
		}
		nodes.Go(func() { _ = n.Run(ctx) })
		if _, err := n.Session(t.Context()); err != nil {
			t.Fatal(err)
		}
		join = append(join, n.Addr())
		m := &member{Node: n}
		if m.store, err = artifact.Open(filepath.Join(n.DataDir(), "artifacts")); err != nil {
			t.Fatal(err)
		}
		n.ServeArtifacts(m.store)
		commands, err := execrt.New(execrt.Config{Spawner: n, Dir: filepath.Join(n.DataDir(), "run")})
		if err != nil {
			t.Fatal(err)
		}
		modules, err := wasmrt.New(wasmrt.Config{})
		if err != nil {
			t.Fatal(err)
		}
		m.Catalog, err = worker.NewCatalog(n, func(c *worker.Config) {
			c.Runtimes = []worker.Runtime{commands, modules}
			c.Artifacts = &worker.Depot{Store: m.store, Peers: n}
			c.Logger = log
		})
		if err != nil {
			t.Fatal(err)
		}
		catalogs.Go(func() {
			_ = m.Catalog.Run(working)
			_ = modules.Close()
		})
		members = append(members, m)
	}
	return members
}

// owner is the member that has the worker now.
func owner(t *testing.T, members []*member, id string) *member {
	t.Helper()
	if err := members[0].Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	w, err := members[0].Get(id)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(members, func(m *member) bool { return m.InstanceID() == w.InstanceID })
	if i < 0 {
		t.Fatalf("nobody has worker %s", id)
	}
	return members[i]
}

// TestCluster: a command and a module that one node was given run on another after the drain of the first, which had to fetch their code, and never on two at once.
func TestCluster(t *testing.T) {
	log := runtimetest.NewLog(t)
	members := cluster(t, slog.New(slog.NewJSONHandler(log, nil)))
	// One after the other: a drain moves all that is there.
	for name, source := range map[string]string{"shell": "ticker.sh", "module": "ticker.wasm"} {
		runtime := worker.RuntimeExec
		if filepath.Ext(source) == ".wasm" {
			runtime = worker.RuntimeWasm
		}
		w, err := members[0].Create(t.Context(), worker.Spec{
			Name: name, Runtime: runtime, Source: filepath.Join("../../../examples/worker", source), Start: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		id := w.ID
		log.Await(name, "tick 1")
		first := owner(t, members, id)
		if err := first.Barrier(t.Context()); err != nil {
			t.Fatal(err)
		}
		if w, err = first.Get(id); err != nil {
			t.Fatal(err)
		}
		r, err := first.Submit(t.Context(), &fsm.MarkInstance{InstanceId: first.InstanceID(), Mark: fsm.MarkDrain, Reason: "test", By: "test"})
		if err == nil {
			err = fsm.ResultErr(r)
		}
		if err != nil {
			t.Fatal(err)
		}
		log.AwaitCount(name, "tick 1", 2)
		second := owner(t, members, id)
		if second == first {
			t.Errorf("%s is on the drained node", name)
		}
		if digest, err := artifact.ParseDigest(w.Current.SHA256); err != nil || !second.store.Has(digest) {
			t.Errorf("%s: the code %q is not with its new owner (%v)", name, w.Current.SHA256, err)
		}
		ended := map[string]string{"shell": "finishing", "module": "module is done"}[name]
		began := map[string]string{"shell": "began under token ", "module": "module began under token "}[name]
		var order []string
		for _, line := range log.Stream(name, "stdout") {
			if line == ended || strings.HasPrefix(line, began) {
				order = append(order, strings.TrimRight(line, "0123456789"))
			}
		}
		if want := []string{began, ended, began}; !slices.Equal(order, want) {
			t.Errorf("%s: %q, want %q", name, order, want)
		}
		if _, err := first.Submit(t.Context(), &fsm.MarkInstance{InstanceId: first.InstanceID(), Mark: fsm.MarkUndrain, By: "test"}); err != nil {
			t.Fatal(err)
		}
	}
}
