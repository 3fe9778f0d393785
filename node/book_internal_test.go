package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// TestScenario_Book is the part of B-85 that takes a while.
func TestScenario_Book(t *testing.T) {
	t.Run("B-85_who_is_dead_or_foreign_is_forgotten", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f, err := openFolder(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			defer f.release()
			b, err := openBook(f)
			if err != nil {
				t.Fatal(err)
			}
			for k := range 30 {
				b.learn(fmt.Sprint("dead-", k), fmt.Sprintf("10.77.0.%d:7400", k+1), 7)
			}
			b.learn("member", "10.0.0.1:7400", 1)
			b.learn("silent member", "10.0.0.2:7400", 1)
			b.learn("joining", "10.0.0.3:7400", 1)
			var known atomic.Bool // who is a member
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				done <- b.keep(ctx, func() []raft.Server {
					if !known.Load() {
						return nil
					}
					return []raft.Server{{ID: "member"}, {ID: "silent member"}}
				})
			}()
			saved := func() []string {
				t.Helper()
				synctest.Wait()
				again, err := openBook(f)
				if err != nil {
					t.Fatal(err)
				}
				return slices.Sorted(maps.Keys(again.all()))
			}
			time.Sleep(time.Hour)
			if got := saved(); len(got) != 33 {
				t.Errorf("while nobody knows who is a member, %d are left of 33", len(got))
			}
			b.learn("joining", "10.0.0.3:7400", 1)
			synctest.Wait()
			known.Store(true)
			time.Sleep(2 * time.Minute)
			if got, want := saved(), []string{"joining", "member", "silent member"}; !slices.Equal(got, want) {
				t.Errorf("the book has %q, want %q", got, want)
			}
			time.Sleep(bookMemory)
			if got, want := saved(), []string{"member", "silent member"}; !slices.Equal(got, want) {
				t.Errorf("later the book has %q, want %q", got, want)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	})
}
