//go:build linux

package execrt_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/miwnode/miwnode/guard"
)

// The test binary is its own guard.
func TestMain(m *testing.M) {
	guard.Main()
	goleak.VerifyTestMain(guarded{m})
}

// guarded ends the guard that tests share when they are over.
type guarded struct{ *testing.M }

func (m guarded) Run() int {
	defer func() {
		if g, err := shared(); err == nil {
			_ = g.Close(context.Background())
		}
	}()
	return m.M.Run()
}

// shared is a guard that lets commands run for an hour.
var shared = sync.OnceValues(func() (*guard.Guard, error) {
	g, err := guard.Start(guard.Config{StopBudget: 300 * time.Millisecond})
	if err == nil {
		err = feed(g, time.Hour)
	}
	return g, err
})

func feed(g *guard.Guard, left time.Duration) error {
	now := guard.BootTime()
	return g.Feed(guard.Feed{StopAt: now + left, KillAt: now + left + 300*time.Millisecond})
}
