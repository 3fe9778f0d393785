package worker_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/miwnode/miwnode/artifact"
	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/fsm"
)

// Artifacts that no worker names go an hour after they were stored, on each node
// by itself; what a worker names stays, its former code too, and without a quorum
// everything does. It runs in a bubble.
func TestSweeper(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.join("a", w.script(nil)("a"))
		store, err := artifact.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		put := func(content string) artifact.Digest {
			t.Helper()
			d, _, err := store.Put(strings.NewReader(content), artifact.MaxUpload)
			if err == nil {
				err = os.Chtimes(store.Path(d), time.Now(), time.Now()) // those of the bubble
			}
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			(&worker.Sweeper{State: a, Store: store}).Run(ctx)
		}()
		defer func() { stop(); <-done }()

		waits, former, present, none := put("waits for its worker"), put("former"), put("present"), put("named by none")
		half := store.Path(artifact.Digest{1}) + ".part"
		if err := os.WriteFile(half, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(half, time.Now(), time.Now()); err != nil {
			t.Fatal(err)
		}
		id := "w" + strings.Repeat("a", 26)
		w.do(&fsm.CreateWorker{WorkerId: id, Name: "x", Runtime: "exec", Source: artifact.Scheme + former.String()})
		w.do(&fsm.FinishLoad{WorkerId: id, Attempt: 1, ErrorType: "not_executable"})
		w.do(&fsm.ReloadWorker{WorkerId: id, Source: artifact.Scheme + present.String()})
		has := func(want string, all ...artifact.Digest) {
			t.Helper()
			got := ""
			for _, d := range all {
				got += map[bool]string{true: "+", false: "-"}[store.Has(d)]
			}
			if got != want {
				t.Errorf("after %v: got %s, want %s", time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)), got, want)
			}
		}
		time.Sleep(59 * time.Minute)
		has("++++", waits, former, present, none)
		other := "w" + strings.Repeat("b", 26)
		w.do(&fsm.CreateWorker{WorkerId: other, Name: "y", Runtime: "exec", Source: artifact.Scheme + waits.String()})
		w.LoseQuorum()
		time.Sleep(2 * time.Hour)
		has("++++", waits, former, present, none)
		w.RestoreQuorum()
		time.Sleep(11 * time.Minute)
		has("+++-", waits, former, present, none)
		if _, err := os.Stat(half); err == nil {
			t.Error("half an artifact that nobody goes on with is left")
		}
		again := put("named by none")
		w.do(&fsm.DeleteWorker{WorkerId: id})
		time.Sleep(11 * time.Minute)
		has("+--+", waits, former, present, again)
	})
}
