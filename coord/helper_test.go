package coord_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/fsm"
)

// bubble runs f in a bubble with a cluster of its own.
func bubble(t *testing.T, timing coordtest.Timing, f func(t *testing.T, w *coordtest.World)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := coordtest.New(timing)
		defer w.Close()
		f(t, w)
	})
}

// interval is one run of the work, by the observer's clock.
type interval struct {
	who        string
	token      uint64
	start, end time.Time // end is zero while it runs
}

// observer sees every run of every instance, and holds that no two overlap and
// that tokens grow.
type observer struct {
	mu   sync.Mutex
	runs map[string][]interval
	bad  []string
}

func (o *observer) enter(who string, l *coord.Lease) (leave func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.runs == nil {
		o.runs = make(map[string][]interval)
	}
	key := l.Key()
	for _, r := range o.runs[key] {
		if r.end.IsZero() {
			o.bad = append(o.bad, fmt.Sprintf("%s starts %q with token %d while %s runs it with token %d", who, key, l.Token(), r.who, r.token))
		}
		if r.token > l.Token() || r.token == l.Token() && r.who != who {
			o.bad = append(o.bad, fmt.Sprintf("%s starts %q with token %d after %s had %d", who, key, l.Token(), r.who, r.token))
		}
	}
	n := len(o.runs[key])
	o.runs[key] = append(o.runs[key], interval{who: who, token: l.Token(), start: time.Now()})
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.runs[key][n].end = time.Now()
	}
}

// kill ends every run of who, as the end of its process does.
func (o *observer) kill(who string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, all := range o.runs {
		for n := range all {
			if all[n].who == who && all[n].end.IsZero() {
				all[n].end = time.Now()
			}
		}
	}
}

func (o *observer) of(key string) []interval {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.runs[key])
}

func (o *observer) check(t *testing.T) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, b := range o.bad {
		t.Error(b)
	}
}

// trace collects what happened, in order.
type trace struct {
	mu    sync.Mutex
	lines []string
}

func (tr *trace) add(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.lines = append(tr.lines, fmt.Sprintf(format, args...))
}

func (tr *trace) all() []string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return slices.Clone(tr.lines)
}

func (tr *trace) count(line string) (n int) {
	for _, l := range tr.all() {
		if l == line {
			n++
		}
	}
	return n
}

// hooks writes what a Runner tells into the trace.
func (tr *trace) hooks() coord.Hooks {
	return coord.Hooks{
		Acquired: func(*coord.Lease) { tr.add("acquired") },
		Started:  func(_ *coord.Lease, run int) { tr.add("started %d", run) },
		Stopping: func(_ *coord.Lease, cause error) { tr.add("stopping: %v", cause) },
		Returned: func(_ *coord.Lease, err error, _ time.Duration) { tr.add("returned: %v", err) },
		Released: func(_ *coord.Lease, err error) { tr.add("released: %v", err) },
		Lost:     func(_ *coord.Lease, cause error) { tr.add("lost: %v", cause) },
		Stuck:    func(s coord.StuckRun) { tr.add("stuck: lost=%v", s.Lost) },
		Failed:   func(err error, n int, _ time.Duration) { tr.add("failed %d: %v", n, err) },
		Stopped:  func(err error) { tr.add("stopped: %v", err) },
	}
}

// background runs a Runner; wait returns what Run returned.
type background struct {
	r      *coord.Runner
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func run(t *testing.T, r *coord.Runner) *background {
	t.Helper()
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	b := &background{r: r, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(b.done)
		b.err = r.Run(ctx)
	}()
	return b
}

func (b *background) over() bool {
	synctest.Wait()
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

// stop cancels Run and waits for it.
func (b *background) stop() error {
	b.cancel()
	<-b.done
	return b.err
}

// untilDone is work that runs until its context ends.
func untilDone(ctx context.Context, _ *coord.Lease) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// noted is untilDone that tells the observer and the trace.
func noted(o *observer, who string) coord.Func {
	return func(ctx context.Context, l *coord.Lease) error {
		defer o.enter(who, l)()
		<-ctx.Done()
		return context.Cause(ctx)
	}
}

func at(t *testing.T, start time.Time, want time.Duration, what string) {
	t.Helper()
	if got := time.Since(start); got != want {
		t.Errorf("%s after %v, want %v", what, got, want)
	}
}

func wantErr(t *testing.T, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("got error %v, want %v", got, want)
	}
}

func equal[T comparable](t *testing.T, got, want T, what string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func equalLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got\n\t%q\nwant\n\t%q", got, want)
	}
}

// holder names the instance that holds key at the leader, "" for none.
func holder(w *coordtest.World, key string) string {
	l, ok := w.View().Lease(key)
	if !ok || l.State == fsm.Barred {
		return ""
	}
	return l.Who.InstanceID
}
