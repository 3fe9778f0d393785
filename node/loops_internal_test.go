package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestScenario_Loops holds faults of loops that end unseen.
func TestScenario_Loops(t *testing.T) {
	// A loop that ended while health stayed green.
	t.Run("B-43_a_part_that_ends_stops_the_node", func(t *testing.T) {
		for _, end := range []error{nil, errors.New("out of luck"), context.Canceled} {
			t.Run(fmt.Sprint(end), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := &Node{life: lifecycle{failed: make(chan error, 1)}}
					n.life.ran.Store(true)
					n.life.running.Store(true)
					bg := newBackground(t.Context(), n.fail)
					quit := make(chan struct{})
					bg.run("scheduler", func(context.Context) error { <-quit; return end })
					bg.run("other", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
					synctest.Wait()
					if err := n.Healthy(); err != nil {
						t.Fatalf("unhealthy before: %v", err)
					}
					close(quit)
					synctest.Wait()
					want := "scheduler: ended by itself"
					if end != nil {
						want = "scheduler: " + end.Error()
					}
					if err := n.Healthy(); err == nil || err.Error() != want {
						t.Errorf("Healthy says %v, want %s", err, want)
					}
					if err := <-n.life.failed; err.Error() != want { // what ends Run
						t.Errorf("Run is to end with %v, want %s", err, want)
					}
					if err := bg.stop(); err != nil {
						t.Error(err)
					}
					select {
					case err := <-n.life.failed:
						t.Errorf("a part that was told to end counts as failed: %v", err)
					default:
					}
				})
			})
		}
	})

	t.Run("B-43_a_duty_that_ends_is_started_again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := &Node{log: slog.New(slog.NewTextHandler(io.Discard, nil))}
			n.metrics = newMetrics(n)
			ctx, cancel := context.WithCancel(t.Context())
			var runs []time.Duration
			start := time.Now()
			done := make(chan struct{})
			go func() {
				defer close(done)
				n.keepDoing(ctx, 1, duty{"members", func(ctx context.Context, _ uint64) error {
					runs = append(runs, time.Since(start))
					switch len(runs) {
					case 1:
						return nil // as if it were done
					case 2:
						return context.Canceled // by somebody else's context
					}
					<-ctx.Done()
					return ctx.Err()
				}})
			}()
			time.Sleep(time.Minute)
			cancel()
			<-done
			if want := "[0s 100ms 300ms]"; fmt.Sprint(runs) != want {
				t.Errorf("the duty began at %v, want %s", runs, want)
			}
			reg := prometheus.NewRegistry()
			reg.MustRegister(n.metrics.duties)
			families, err := reg.Gather()
			if err != nil {
				t.Fatal(err)
			}
			if f := families[0]; f.GetName() != "miw_duty_restarts_total" || f.Metric[0].Counter.GetValue() != 2 {
				t.Errorf("counted %v, want 2", f)
			}
		})
	})
}
