package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/fsm"
)

// bubble runs f in a bubble with a cluster of its own.
func bubble(t *testing.T, f func(t *testing.T, w *world)) { bubbleWith(t, coordtest.Timing{}, f) }

func bubbleWith(t *testing.T, timing coordtest.Timing, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{World: coordtest.New(timing), t: t, seen: &observer{}}
		defer w.close()
		f(t, w)
	})
}

// world is a cluster whose instances have catalogs.
type world struct {
	*coordtest.World
	t       *testing.T
	seen    *observer
	all     []*member
	scripts []*scripted
}

// member is an instance with a Catalog that runs.
type member struct {
	*coordtest.Instance
	*worker.Catalog
	w      *world
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func (w *world) close() {
	for _, m := range w.all {
		m.cancel()
	}
	for _, m := range w.all {
		<-m.done
	}
	w.World.Close()
	w.seen.check(w.t)
	for _, s := range w.scripts {
		if _, kept := s.count(); kept != 0 {
			w.t.Errorf("%s has %d units that were not unloaded", s.instance, kept)
		}
	}
}

// join adds an instance with a Catalog of these runtimes.
func (w *world) join(name string, runtimes ...worker.Runtime) *member {
	return w.joinWith(name, func(c *worker.Config) { c.Runtimes = runtimes })
}

func (w *world) joinWith(name string, options ...func(*worker.Config)) *member {
	return w.host(w.Join(name), options...)
}

// back has a killed member of three come back.
func (w *world) back(m *member) *member {
	w.t.Helper()
	return w.host(w.Restart(m.Instance, true), func(c *worker.Config) { c.Runtimes = []worker.Runtime{w.stateful(m.InstanceID())} })
}

func (w *world) host(i *coordtest.Instance, options ...func(*worker.Config)) *member {
	w.t.Helper()
	cat, err := worker.NewCatalog(i, options...)
	if err != nil {
		w.t.Fatal(err)
	}
	m := &member{Instance: i, Catalog: cat, w: w, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(w.t.Context())
	m.cancel = cancel
	go func() {
		defer close(m.done)
		m.err = cat.Run(ctx)
	}()
	w.all = append(w.all, m)
	w.until("the instance has joined", func() bool { return cat.Status().Joined })
	return m
}

// three are instances a, b, c with the same runtime.
func (w *world) three(r func(name string) worker.Runtime) (a, b, c *member) {
	return w.join("a", r("a")), w.join("b", r("b")), w.join("c", r("c"))
}

// kill ends the process of m.
func (m *member) kill() {
	m.Crash()
	m.w.seen.kill(m.InstanceID())
	m.stop()
}

// stop ends the Catalog and waits for it.
func (m *member) stop() {
	m.cancel()
	<-m.done
}

// create makes a worker through m.
func (m *member) create(s worker.Spec) worker.Worker {
	m.w.t.Helper()
	if s.Name == "" {
		s.Name = "worker"
	}
	if s.Runtime == "" {
		s.Runtime = worker.RuntimeFunc
	}
	got, err := m.Create(m.w.t.Context(), s)
	if err != nil {
		m.w.t.Fatal(err)
	}
	return got
}

// worker is the record at the leader, with its state "deleted" if there is none.
func (w *world) worker(id string) *fsm.Worker {
	rec, ok := w.View().Worker(id)
	if !ok {
		return &fsm.Worker{ID: id}
	}
	return rec
}

// until waits for what becomes true before long.
func (w *world) until(what string, is func() bool) {
	w.t.Helper()
	w.untilWithin(time.Minute, what, is)
}

// untilWithin waits, in a bubble, for what becomes true within that time.
func (w *world) untilWithin(d time.Duration, what string, is func() bool) {
	w.t.Helper()
	for end := time.Now().Add(d); !is(); {
		if time.Now().After(end) {
			w.t.Fatalf("not within %v: %s", d, what)
		}
		synctest.Wait()
		if is() {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func (w *world) untilState(id string, want fsm.WorkerState) {
	w.t.Helper()
	w.until(fmt.Sprintf("worker %v", want), func() bool { return w.worker(id).State == want })
}

// untilRuns waits until a run of the worker is under way, and says where.
func (w *world) untilRuns(id string) (instance string) {
	w.t.Helper()
	w.until("the worker runs", func() bool { instance = w.seen.where(id); return instance != "" })
	return instance
}

// member finds the one of that instance.
func (w *world) member(instanceID string) *member {
	i := slices.IndexFunc(w.all, func(m *member) bool { return m.InstanceID() == instanceID })
	if i < 0 {
		w.t.Fatalf("no member %s", instanceID)
	}
	return w.all[i]
}

// events are the types of the events of the worker, in order.
func (w *world) events(id string) (types []string) {
	events, whole := w.View().Events(fsm.EventID{})
	if !whole {
		w.t.Fatal("events are missing")
	}
	for e := range events {
		if e.Key == fsm.WorkerKey(id) && strings.HasPrefix(e.Type.String(), "worker.") {
			types = append(types, strings.TrimPrefix(e.Type.String(), "worker."))
		}
	}
	return types
}

func (w *world) wantEvents(id string, want ...string) {
	w.t.Helper()
	if got := w.events(id); !slices.Equal(got, want) {
		w.t.Errorf("events %q, want %q", got, want)
	}
}

// do commits a command as an operator's.
func (w *world) do(op fsm.Op) {
	w.t.Helper()
	res, err := w.Propose(op)
	if err == nil {
		err = fsm.ResultErr(res)
	}
	if err != nil {
		w.t.Fatalf("%s: %v", coordtest.Kind(op), err)
	}
}

// run is one run of a worker, as an observer of all instances sees it.
type run struct {
	instance string
	token    uint64
	source   string
	over     bool
}

// observer sees every run and holds that no two of a worker overlap.
type observer struct {
	mu   sync.Mutex
	runs map[string][]*run
	bad  []string
}

func (o *observer) enter(instance, source string, r worker.Run) (leave func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.runs == nil {
		o.runs = make(map[string][]*run)
	}
	for _, former := range o.runs[r.WorkerID] {
		if !former.over {
			o.bad = append(o.bad, fmt.Sprintf("%s runs %s while %s does", instance, r.WorkerID, former.instance))
		}
		if former.token > r.Token {
			o.bad = append(o.bad, fmt.Sprintf("%s runs %s with token %d after %d", instance, r.WorkerID, r.Token, former.token))
		}
	}
	x := &run{instance: instance, token: r.Token, source: source}
	o.runs[r.WorkerID] = append(o.runs[r.WorkerID], x)
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		x.over = true
	}
}

// kill ends every run of the instance, as the end of its process does.
func (o *observer) kill(instance string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, all := range o.runs {
		for _, x := range all {
			x.over = x.over || x.instance == instance
		}
	}
}

func (o *observer) of(id string) (all []run) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, x := range o.runs[id] {
		all = append(all, *x)
	}
	return all
}

// where is the instance where the worker runs, "" for none.
func (o *observer) where(id string) string {
	for _, x := range o.of(id) {
		if !x.over {
			return x.instance
		}
	}
	return ""
}

func (o *observer) check(t *testing.T) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, b := range o.bad {
		t.Error(b)
	}
}

// scripted is a runtime "func" whose loads and runs a test writes. It knows
// every function that it names.
type scripted struct {
	w        *world
	instance string
	names    []string
	load     func(ctx context.Context, p worker.Program) error               // nil = well
	run      func(ctx context.Context, p worker.Program, r worker.Run) error // nil = until asked

	mu    sync.Mutex
	loads int
	kept  int // units that were not unloaded
}

func (s *scripted) Name() string { return worker.RuntimeFunc }

func (s *scripted) Provides() (all []string) {
	for _, n := range s.names {
		all = append(all, worker.RuntimeFunc+":"+n)
	}
	return all
}

func (s *scripted) Check(spec worker.Spec) error {
	if spec.Source == "refused" {
		return errors.New("refused by the runtime")
	}
	return nil
}

func (s *scripted) Load(ctx context.Context, p worker.Program) (worker.Unit, error) {
	s.mu.Lock()
	s.loads++
	s.mu.Unlock()
	if s.load != nil {
		if err := s.load(ctx, p); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept++
	return &scriptedUnit{s: s, p: p}, nil
}

func (s *scripted) count() (loads, kept int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loads, s.kept
}

type scriptedUnit struct {
	s *scripted
	p worker.Program
}

func (u *scriptedUnit) Run(ctx context.Context, r worker.Run) error {
	defer u.s.w.seen.enter(u.s.instance, u.p.Source, r)()
	if u.s.run != nil {
		return u.s.run(ctx, u.p, r)
	}
	return untilAsked(ctx, r)
}

func (u *scriptedUnit) Unload() error {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	u.s.kept--
	return nil
}

// untilAsked is work that goes on until it is asked to finish.
func untilAsked(ctx context.Context, r worker.Run) error {
	select {
	case <-r.Draining():
	case <-ctx.Done():
	}
	return nil
}

// script makes runtimes that know the functions "f" and "g".
func (w *world) script(change func(*scripted)) func(name string) worker.Runtime {
	return func(name string) worker.Runtime {
		s := &scripted{w: w, instance: name + ":1:coordtest", names: []string{"f", "g", "refused"}}
		if change != nil {
			change(s)
		}
		w.scripts = append(w.scripts, s)
		return s
	}
}

func equal[T comparable](t *testing.T, got, want T, what string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func wantErr(t *testing.T, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("got error %v, want %v", got, want)
	}
}
