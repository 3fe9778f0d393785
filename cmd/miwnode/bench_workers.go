package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/load"
	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/transport"
)

// benchWorkers are how many the cells of many have.
const benchWorkers = 1000

// benchFunc is what the workers of a cluster in this process are made of.
const benchFunc = "bench"

// stalled is a runtime whose loads never end.
type stalled struct{}

func (stalled) Name() string { return worker.RuntimeFunc }

func (stalled) Provides() []string { return []string{worker.RuntimeFunc + ":" + benchFunc} }

func (stalled) Check(worker.Spec) error { return nil }

func (stalled) Load(ctx context.Context, _ worker.Program) (worker.Unit, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// stamping is a runtime of workers that tell the observer of their runs on n.
func (s *stamps) stamping(n *node.Node) worker.Runtime {
	return worker.Funcs(map[string]func(context.Context, worker.Run) error{benchFunc: func(ctx context.Context, run worker.Run) error {
		defer s.begin(run.WorkerID, n.ID())()
		select {
		case <-run.Draining():
		case <-ctx.Done():
		}
		return nil
	}})
}

// benchCatalogs are the Catalogs of a cluster's nodes.
type benchCatalogs struct {
	all   []*worker.Catalog
	stop  context.CancelFunc
	ended sync.WaitGroup
}

// workers has every node of c load and run workers by a runtime of its own.
func (c *benchCluster) workers(ctx context.Context, runtime func(*node.Node) worker.Runtime) (*benchCatalogs, error) {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	w := &benchCatalogs{stop: stop}
	for _, n := range c.nodes {
		cat, err := worker.NewCatalog(n, func(c *worker.Config) { c.Runtimes = []worker.Runtime{runtime(n)} })
		if err != nil {
			w.close()
			return nil, err
		}
		w.all = append(w.all, cat)
		w.ended.Go(func() { _ = cat.Run(life) })
	}
	return w, nil
}

func (w *benchCatalogs) close() {
	w.stop()
	w.ended.Wait()
}

// create has 16 callers on three nodes create the workers, those before the
// first of idle to be started.
func (w *benchCatalogs) create(ctx context.Context, idle int) error {
	const callers = 16
	var wg sync.WaitGroup
	errs := make([]error, callers)
	for caller := range callers {
		wg.Go(func() {
			for i := caller; i < benchWorkers && errs[caller] == nil; i += callers {
				_, errs[caller] = w.all[caller%3].Create(ctx, worker.Spec{Name: "w" + strconv.Itoa(i), Runtime: worker.RuntimeFunc, Source: benchFunc, Start: i < benchWorkers-idle})
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// benchWorkerCreate: one call after the other, through a follower. What it makes
// stays loading.
func benchWorkerCreate(ctx context.Context, b *bench) (load.Row, error) {
	return b.inCluster(ctx, func(c *benchCluster) (load.Row, error) {
		w, err := c.workers(ctx, func(*node.Node) worker.Runtime { return stalled{} })
		if err != nil {
			return load.Row{}, err
		}
		defer w.close()
		at := w.all[(c.leader+1)%3]
		var calls []time.Duration
		for i := range 100 {
			begin := time.Now()
			if _, err := at.Create(ctx, worker.Spec{Name: "w" + strconv.Itoa(i), Runtime: worker.RuntimeFunc, Source: benchFunc, Start: true}); err != nil {
				return load.Row{}, err
			}
			calls = append(calls, time.Since(begin))
			if err := pause(ctx, 20*time.Millisecond); err != nil { // idle but for that
				return load.Row{}, err
			}
		}
		return load.Row{Callers: 1, P50: load.MS(load.Quantile(calls, 0.5)), P99: load.MS(load.Quantile(calls, 0.99))}, nil
	})
}

func benchWorkerStart(ctx context.Context, b *bench) (load.Row, error) {
	return b.inCluster(ctx, func(c *benchCluster) (load.Row, error) {
		watch := newStamps()
		w, err := c.workers(ctx, watch.stamping)
		if err != nil {
			return load.Row{}, err
		}
		defer w.close()
		begin := time.Now()
		if err := w.create(ctx, 0); err != nil {
			return load.Row{}, err
		}
		if err := c.run(ctx, watch, benchWorkers); err != nil {
			return load.Row{}, err
		}
		return load.Row{Callers: 16, P50: load.MS(time.Since(begin)), Overlap: watch.overlaps}, nil
	})
}

// run waits until the nodes run exactly so many workers.
func (c *benchCluster) run(ctx context.Context, watch *stamps, want int) error {
	return watch.wait(ctx, func(by map[string]int) bool {
		sum := 0
		for _, n := range c.nodes {
			sum += by[n.ID()]
		}
		return sum == want
	})
}

// benchWorkerRestore ends all three nodes and starts them on their folders: until
// what ran runs, and what was stopped is stopped.
func benchWorkerRestore(ctx context.Context, b *bench) (load.Row, error) {
	return b.inCluster(ctx, func(c *benchCluster) (load.Row, error) {
		const idle = benchWorkers / 5
		watch := newStamps()
		w, err := c.workers(ctx, watch.stamping)
		if err != nil {
			return load.Row{}, err
		}
		defer func() { w.close() }()
		if err := w.create(ctx, idle); err != nil {
			return load.Row{}, err
		}
		if err := c.saved(ctx, watch, benchWorkers-idle); err != nil {
			return load.Row{}, err
		}
		c.end()
		w.close()
		if err := c.boot(ctx); err != nil {
			return load.Row{}, err
		}
		if w, err = c.workers(ctx, watch.stamping); err != nil {
			return load.Row{}, err
		}
		for !slices.ContainsFunc(c.nodes, func(n *node.Node) bool { return n.Status().Role == node.RoleLeader }) {
			if err := pause(ctx, time.Millisecond); err != nil {
				return load.Row{}, err
			}
		}
		begin := time.Now()
		if err := c.saved(ctx, watch, benchWorkers-idle); err != nil {
			return load.Row{}, err
		}
		took := time.Since(begin)
		return load.Row{P50: load.MS(took), Overlap: watch.overlaps}, c.ready(ctx)
	})
}

// saved waits until so many workers run, and all are in the state that belongs to that.
func (c *benchCluster) saved(ctx context.Context, watch *stamps, running int) error {
	if err := c.run(ctx, watch, running); err != nil {
		return err
	}
	return waitFor(ctx, c.nodes[0], fsm.WorkersTopic, func(v *fsm.View) bool {
		states := map[fsm.WorkerState]int{}
		for w := range v.Workers("") {
			states[w.State]++
		}
		return states[fsm.WorkerRunning] == running && states[fsm.WorkerStopped] == benchWorkers-running
	})
}

func benchWorkerLoadKilled(ctx context.Context, b *bench) (load.Row, error) {
	return b.workerLoad(ctx, false)
}

func benchWorkerLoadRestart(ctx context.Context, b *bench) (load.Row, error) {
	return b.workerLoad(ctx, true)
}

// workerLoad kills the process that loads a worker, which does not lead, and its
// guard, while the code is on its way. It comes to whoever asks from then on.
func (b *bench) workerLoad(ctx context.Context, restart bool) (row load.Row, err error) {
	o, err := b.serveLate()
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	c, err := b.startProcessesWith(ctx, []string{"SSL_CERT_FILE=" + o.authority()}, "--allow-private-sources")
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	var made api.WorkerChanged
	create := api.Request{Method: "POST", Path: "/v1/workers", Body: api.CreateWorkerRequest{
		Name: "bench", Runtime: worker.RuntimeExec, Source: o.url, SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte(lateCode))),
	}}
	if _, err := c.procs[0].client.Do(ctx, create, &made); err != nil {
		return row, err
	}
	if err := o.next(ctx); err != nil {
		return row, err
	}
	driver, err := c.driver(ctx, made.WorkerID)
	if err != nil {
		return row, err
	}
	survivor := c.procs[(driver+1)%3]
	if leader, err := c.leader(ctx); err != nil {
		return row, err
	} else if leader == driver {
		if err := c.lead(ctx, leader, (driver+1)%3); err != nil {
			return row, err
		}
	}
	for g := (api.Group{}); len(g.Members) < 3; {
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return row, err
		}
		if _, err := survivor.client.Do(ctx, api.Request{Method: "GET", Path: "/v1/groups/" + fsm.WorkersGroup}, &g); err != nil {
			return row, err
		}
	}
	guards := c.procs[driver].guards()
	begin := time.Now()
	c.procs[driver].kill()
	for _, pid := range guards {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	close(o.gate)
	if restart {
		if c.procs[driver], err = c.start(ctx, driver); err != nil {
			return row, err
		}
	}
	for w := (api.Worker{}); w.State != fsm.WorkerStopped.String(); {
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return row, err
		}
		if _, err := survivor.client.Do(ctx, api.Request{Method: "GET", Path: "/v1/workers/" + made.WorkerID}, &w); err != nil {
			return row, err
		}
		if w.State == fsm.WorkerLoadFailed.String() {
			return row, fmt.Errorf("the load failed: %+v", w.Error)
		}
	}
	return load.Row{P50: load.MS(time.Since(begin))}, nil
}

// driver is the index of the process that loads a worker.
func (c *benchProcesses) driver(ctx context.Context, id string) (int, error) {
	for {
		var leases api.Leases
		get := api.Request{Method: "GET", Path: "/v1/leases", Query: map[string][]string{"key": {fsm.LoadKey(id)}}}
		if _, err := c.procs[0].client.Do(ctx, get, &leases); err != nil {
			return 0, err
		}
		for _, l := range leases.Leases {
			for i, p := range c.procs {
				if l.Holder != nil && p.status.NodeID == l.Holder.NodeID {
					return i, nil
				}
			}
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

// lateCode is a command.
const lateCode = "#!/bin/sh\nexit 0\n"

// lateOrigin is an https server whose code comes once gate is closed.
type lateOrigin struct {
	url   string
	dir   string
	gate  chan struct{}
	asked chan struct{}
	srv   *http.Server
}

func (o *lateOrigin) authority() string { return filepath.Join(o.dir, transport.CACertFile) }

// serveLate starts one on loopback, with a certificate of its own authority.
func (b *bench) serveLate() (*lateOrigin, error) {
	dir, err := os.MkdirTemp(b.dir, "s-")
	if err != nil {
		return nil, err
	}
	o := &lateOrigin{dir: dir, gate: make(chan struct{}), asked: make(chan struct{}, 16)}
	own := filepath.Join(dir, "server")
	if err := errors.Join(transport.NewCA(dir), transport.NewNodeCert(dir, "server", []string{"127.0.0.1"}, own)); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(own, transport.NodeCertFile), filepath.Join(own, transport.NodeKeyFile))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	o.url = fmt.Sprintf("https://%s/code", ln.Addr())
	o.srv = &http.Server{
		Handler: o, ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
	}
	go func() { _ = o.srv.ServeTLS(ln, "", "") }()
	return o, nil
}

// ServeHTTP implements http.Handler.
func (o *lateOrigin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.asked <- struct{}{}
	select {
	case <-o.gate:
		_, _ = w.Write([]byte(lateCode))
	case <-r.Context().Done():
	}
}

// next waits until somebody asks for the code.
func (o *lateOrigin) next(ctx context.Context) error {
	select {
	case <-o.asked:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (o *lateOrigin) close() error {
	return errors.Join(o.srv.Close(), os.RemoveAll(o.dir))
}
