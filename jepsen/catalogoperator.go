package jepsen

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// CatalogEndpoint is how an operator asks one node for changes of workers. key,
// if not empty, makes a repeat safe; an etag of 0 demands none. Errors are those
// of an Endpoint.
type CatalogEndpoint interface {
	Create(ctx context.Context, key, by string, w NewWorker) (id string, etag uint64, err error)
	// Change does one of start, stop, reload, tag and delete.
	Change(ctx context.Context, key, by string, c WorkerChange) (etag uint64, err error)
	// Show reads a worker, linearizably.
	Show(ctx context.Context, id string) (w WorkerSeen, etag uint64, err error)
}

// NewWorker is a worker to be created.
type NewWorker struct {
	Name, Source string
	Tags         map[string]string
	Start        bool
}

// WorkerChange is a change of a worker.
type WorkerChange struct {
	Kind   Kind
	ID     string
	Etag   uint64
	Source string            // of a reload; "" = the same again
	Tags   map[string]string // of a tag
}

// TagText is how a history has tags.
func TagText(tags map[string]string) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		all = append(all, k+"="+tags[k])
	}
	return strings.Join(all, ",")
}

// CatalogPool is the workers that the operators of one cluster share.
type CatalogPool struct {
	Most  int // that are created
	Alive int // at a time, about

	mu      sync.Mutex
	ids     []string          // guarded by mu; not deleted, as far as anybody was told
	gone    []string          // guarded by mu
	etags   map[string]uint64 // guarded by mu; last seen
	created int               // guarded by mu
}

func (p *CatalogPool) put(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ids = append(p.ids, id)
}

func (p *CatalogPool) remove(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.ids, id); i >= 0 {
		p.ids = slices.Delete(p.ids, i, i+1)
		p.gone = append(p.gone, id)
	}
}

func (p *CatalogPool) saw(id string, etag uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.etags == nil {
		p.etags = map[string]uint64{}
	}
	p.etags[id] = max(p.etags[id], etag)
}

func (p *CatalogPool) etag(id string) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.etags[id]
}

// room takes a place for one more worker.
func (p *CatalogPool) room() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.created >= p.Most || len(p.ids) >= p.Alive {
		return false
	}
	p.created++
	return true
}

// pick is one of the workers, now and then one that is gone; "" if there is none.
func (p *CatalogPool) pick(rng *rand.Rand) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	from := p.ids
	if len(p.gone) > 0 && rng.IntN(12) == 0 {
		from = p.gone
	}
	if len(from) == 0 {
		return ""
	}
	return from[rng.IntN(len(from))]
}

// all are the workers that anybody was told of.
func (p *CatalogPool) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Concat(p.ids, p.gone)
}

// CatalogOperator does to a catalog of workers what people and programs do, as
// the seed says: it creates, starts, stops, reloads, tags, deletes and reads
// workers, through any node, some of it under an etag, some of it under a key
// that it repeats until it is answered.
type CatalogOperator struct {
	Name     string
	R        *Recorder
	Rng      *rand.Rand // owned by Run
	Nodes    []string
	Endpoint func(node string) CatalogEndpoint // nil while the node is down
	Pool     *CatalogPool
	Sources  []string
	// CallTimeout is the longest deadline of a call, Pause the longest time
	// between two.
	CallTimeout, Pause time.Duration

	stream *Stream // nil before the first call
	calls  int
}

// Run works until ctx ends; a call that is under way then is ended.
func (o *CatalogOperator) Run(ctx context.Context) {
	for sleep(ctx, draw(o.Rng, o.Pause/20, o.Pause)) {
		id := o.Pool.pick(o.Rng)
		switch d := o.Rng.IntN(100); {
		case d < 20 || id == "":
			if o.Pool.room() {
				o.create(ctx)
			}
		case d < 45:
			o.change(ctx, WorkerChange{Kind: KindStart, ID: id})
		case d < 57:
			o.change(ctx, WorkerChange{Kind: KindStop, ID: id})
		case d < 67:
			c := WorkerChange{Kind: KindReload, ID: id}
			if o.Rng.IntN(3) > 0 {
				c.Source = o.Sources[o.Rng.IntN(len(o.Sources))]
			}
			o.change(ctx, c)
		case d < 75:
			o.change(ctx, WorkerChange{Kind: KindTag, ID: id, Tags: o.tags()})
		case d < 80:
			o.change(ctx, WorkerChange{Kind: KindDelete, ID: id})
		default:
			o.show(ctx, id)
		}
	}
}

func (o *CatalogOperator) tags() map[string]string {
	return map[string]string{"team": fmt.Sprint(o.Rng.IntN(3))}
}

// by names the next call.
func (o *CatalogOperator) by() string {
	o.calls++
	return fmt.Sprintf("%s.%d", o.Name, o.calls)
}

// call notes a call on the operator's stream.
func (o *CatalogOperator) call(op Op) *Pending {
	if o.stream == nil {
		o.stream = o.R.Stream(o.Name)
	}
	return o.stream.Call(op)
}

func (o *CatalogOperator) create(ctx context.Context) {
	by := o.by()
	w := NewWorker{Name: "w-" + by, Source: o.Sources[o.Rng.IntN(len(o.Sources))], Start: o.Rng.IntN(3) == 0}
	if o.Rng.IntN(2) == 0 {
		w.Tags = o.tags()
	}
	p := o.call(Op{Kind: KindCreate, By: by, Worker: &WorkerSeen{Name: w.Name, Source: w.Source, StartRequested: w.Start, Tags: TagText(w.Tags)}})
	var id string
	var etag uint64
	err := o.ask(ctx, p, by, func(ctx context.Context, e CatalogEndpoint, key string) (err error) {
		id, etag, err = e.Create(ctx, key, by, w)
		return err
	})
	if err == nil {
		p.op.Key = fsm.WorkerKey(id)
		o.Pool.put(id)
		o.Pool.saw(id, etag)
	}
	settle(p, err, etag, 0)
}

// CreateStarted creates a worker and asks that it starts, through two nodes, as
// a test's own word.
func (o *CatalogOperator) CreateStarted(ctx context.Context, w NewWorker) (id string, err error) {
	by := o.by()
	p := o.call(Op{Kind: KindCreate, By: by, Worker: &WorkerSeen{Name: w.Name, Source: w.Source}})
	id, etag, err := o.Endpoint(o.Nodes[0]).Create(ctx, "", by, w)
	p.op.Key = fsm.WorkerKey(id)
	if settle(p, err, etag, 0); err != nil {
		return "", err
	}
	o.Pool.put(id)
	return id, o.Do(ctx, o.Nodes[1], WorkerChange{Kind: KindStart, ID: id})
}

// Do makes a change, but no deletion, through a node, as a test's own word.
func (o *CatalogOperator) Do(ctx context.Context, node string, c WorkerChange) error {
	by := o.by()
	p := o.call(Op{Kind: c.Kind, Key: fsm.WorkerKey(c.ID), By: by, Worker: &WorkerSeen{Source: c.Source, Tags: TagText(c.Tags)}})
	etag, err := o.Endpoint(node).Change(ctx, "", by, c)
	settle(p, err, etag, 0)
	return err
}

func (o *CatalogOperator) change(ctx context.Context, c WorkerChange) {
	by := o.by()
	if o.Rng.IntN(4) == 0 {
		c.Etag = o.Pool.etag(c.ID)
	}
	p := o.call(Op{Kind: c.Kind, Key: fsm.WorkerKey(c.ID), By: by, Token: c.Etag, Worker: &WorkerSeen{Source: c.Source, Tags: TagText(c.Tags)}})
	var etag uint64
	err := o.ask(ctx, p, by, func(ctx context.Context, e CatalogEndpoint, key string) (err error) {
		etag, err = e.Change(ctx, key, by, c)
		return err
	})
	if err == nil && c.Kind == KindDelete {
		o.Pool.remove(c.ID)
		etag = 0
	}
	if err == nil {
		o.Pool.saw(c.ID, etag)
	}
	settle(p, err, etag, 0)
}

func (o *CatalogOperator) show(ctx context.Context, id string) {
	p := o.call(Op{Kind: KindShow, Key: fsm.WorkerKey(id)})
	err := o.once(ctx, p, func(ctx context.Context, e CatalogEndpoint) error {
		w, etag, err := e.Show(ctx, id)
		p.op.Worker, p.op.Got = &w, etag
		o.Pool.saw(id, etag)
		return err
	})
	settle(p, err, p.op.Got, 0)
}

// ask makes a call: once, or under a key until it is answered, each time through
// another node. What was perhaps done and then not answered stays uncertain.
func (o *CatalogOperator) ask(ctx context.Context, p *Pending, by string, call func(context.Context, CatalogEndpoint, string) error) error {
	key, tries := "", 1
	if o.Rng.IntN(2) == 0 {
		key, tries = "key-"+by, 12
	}
	var doubt error
	for {
		err := o.once(ctx, p, func(ctx context.Context, e CatalogEndpoint) error { return call(ctx, e, key) })
		switch settled(err) {
		case Uncertain:
			doubt = err
		case OK, Refused:
			// An answer under a key is the first one's, whichever try it was.
			return err
		}
		if tries--; tries == 0 || !sleep(ctx, draw(o.Rng, 50*time.Millisecond, 500*time.Millisecond)) {
			if doubt != nil {
				return doubt
			}
			return err
		}
	}
}

// once makes a call through a node that is up.
func (o *CatalogOperator) once(ctx context.Context, p *Pending, call func(context.Context, CatalogEndpoint) error) error {
	for _, i := range o.Rng.Perm(len(o.Nodes)) {
		if e := o.Endpoint(o.Nodes[i]); e != nil {
			p.op.Node = o.Nodes[i]
			ctx, cancel := context.WithTimeout(ctx, draw(o.Rng, o.CallTimeout/4, o.CallTimeout))
			defer cancel()
			return call(ctx, e)
		}
	}
	return fsm.Errorf(fsm.CodeNotReady, "no node is up")
}

// CatalogAtRest shows every worker, once all is healed, for the judge; more are
// those that a copy shows.
func CatalogAtRest(ctx context.Context, r *Recorder, e CatalogEndpoint, p *CatalogPool, more []string) error {
	ids := append(p.all(), more...)
	slices.Sort(ids)
	s := r.Stream(atRest)
	for _, id := range slices.Compact(ids) {
		call := s.Call(Op{Kind: KindShow, Key: fsm.WorkerKey(id)})
		w, etag, err := e.Show(ctx, id)
		call.op.Worker = &w
		if o := settle(call, err, etag, 0); o != OK && o != Refused {
			return fmt.Errorf("worker %s at rest: %w", id, err)
		}
	}
	return nil
}

// CrashDriver is a fault: the node that loads a worker just now is killed, and
// started again when it heals. driver names one, "" if nobody loads anything:
// then it is whom the seed says.
func CrashDriver(driver func() string) Fault {
	hit := map[time.Duration]string{} // by the step
	return Fault{
		Name: "crash-driver", Needs: []Verb{VerbCrash}, Weight: 14,
		Hits: func(_ *Nemesis, s Step) []string {
			if hit[s.At] = driver(); hit[s.At] == "" {
				hit[s.At] = s.Node
			}
			return []string{hit[s.At]}
		},
		Inject: func(_ context.Context, n *Nemesis, s Step) error { n.C.Crash(hit[s.At]); return nil },
		Heal:   func(_ context.Context, n *Nemesis, s Step) error { return n.C.Start(hit[s.At], false) },
	}
}
