package jepsen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// settle waits until the cluster is whole again and at rest, and compares. A run
// that was stopped early waits less.
func (c *chamber) settle(ctx context.Context) {
	c.t.say("healed: waiting until all is well again")
	hctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 40*time.Second)
	defer cancel()
	for _, n := range c.Nodes() {
		if err := c.Start(n, false); err != nil {
			c.r.Notef(n, "start: %v", err)
		}
		if err := c.WaitReady(hctx, n); err != nil {
			c.r.Found(CheckRecovery, "%s is not ready though all is healed: %v; %s", n, err, c.lastLine(n))
		}
	}
	for _, n := range c.Nodes() {
		if err := c.Undrain(hctx, n); err != nil {
			c.r.Notef(n, "%v", err)
		}
	}
	// Whatever is not running after the widest bound, and a second, is a fault.
	if c.untilAllRuns(hctx, c.r.h.Meta.Bounds.takeOver()+time.Second) && ctx.Err() == nil {
		sleep(hctx, c.t.TTL/2)
	}
	c.t.say("at rest: comparing copies, events and totals")
	c.stop()
	c.rest(hctx)
	c.blind()
	c.workers.Wait()
	c.measure(hctx, After)
}

// rest compares what the nodes have when nobody asks them for anything new.
func (c *chamber) rest(ctx context.Context) {
	for i := range tortureJobs {
		keeper := &Bookkeeper{Name: "auditor", R: c.r, Rng: rand.New(rand.NewPCG(uint64(c.t.Seed), 1000)), Nodes: c.Nodes(), Endpoint: c.up}
		for _, n := range c.Nodes() {
			keeper.ReadTotal(ctx, tortureJobs[i], n)
		}
	}
	together := false
	for range 60 {
		if together = c.SampleCopies(ctx); together {
			break
		}
		sleep(ctx, 100*time.Millisecond)
	}
	if !together {
		c.r.Notef("", "the copies were never seen at one revision")
	}
	sleep(ctx, 300*time.Millisecond) // what readers are still to get
	c.r.ReadUntil()
	for _, n := range c.Nodes() {
		if err := c.API(n).Replay(ctx, c.r, n+"/replay"); err != nil {
			c.r.Notef(n, "replay of events: %v", err)
		}
	}
}

// measure notes what the processes have of the machine, at rest: what goes back
// slowly is given time.
func (c *chamber) measure(ctx context.Context, when GaugeTime) {
	var gauges []Gauge
	for try := 0; ; try++ {
		for _, n := range c.Nodes() {
			c.API(n).c.Close() // idle connections are ours, not the node's
		}
		sleep(ctx, 100*time.Millisecond)
		gauges = c.gauges(ctx, when)
		h := &History{Gauges: append(slices.Clone(c.before()), gauges...), Meta: Meta{Nodes: c.Nodes()}}
		if when == Before || checkLeaks(h).OK || try == 10 || !sleep(ctx, time.Second) {
			break
		}
	}
	for _, g := range gauges {
		c.r.Gauge(g)
	}
}

// gauges are what the processes that live have now.
func (c *chamber) gauges(ctx context.Context, when GaugeTime) (all []Gauge) {
	for _, n := range c.Nodes() {
		if g, ok := c.gauge(ctx, n); ok {
			g.When = when
			all = append(all, g)
		}
	}
	return all
}

func (c *chamber) before() []Gauge {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	return c.r.h.Gauges
}

// stopAll ends the nodes gracefully and sees that nothing of them is left.
func (c *chamber) stopAll() {
	c.t.say("ending")
	c.r.Fault(FaultEnd, c.Nodes(), "the nodes end")
	c.mu.Lock()
	c.ending = true
	c.mu.Unlock()
	c.stop()
	c.blind()
	var wg sync.WaitGroup
	for _, n := range c.Nodes() {
		wg.Go(func() { c.leave(n) })
	}
	wg.Wait()
	c.workers.Wait()
	c.eyes.Wait()
	const patience = 5 * time.Second
	for until := c.r.Now() + patience; ; {
		left := marked(c.dir)
		if len(left) == 0 {
			break
		}
		if c.r.Now() > until {
			for pid, node := range left {
				c.r.Found(CheckLeaks, "process %d of %s is there %v after its node has ended: %s", pid, node, patience, commandLine(pid))
			}
			break
		}
		sleep(context.Background(), 50*time.Millisecond)
	}
	c.obs.Close()
}

// kill ends everything at once.
func (c *chamber) kill() {
	c.mu.Lock()
	c.ending = true
	c.mu.Unlock()
	if c.stop != nil {
		c.stop()
		c.blind()
	}
	for range 5 { // what is killed may just have started something
		left := marked(c.dir)
		if len(left) == 0 {
			return
		}
		for pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL) // gone already
		}
		sleep(context.Background(), 50*time.Millisecond)
	}
}

// close leaves nothing on the machine.
func (c *chamber) close() error {
	c.kill()
	if c.Processes != nil {
		c.workers.Wait()
		c.eyes.Wait()
	}
	if c.obs != nil {
		c.obs.Close()
	}
	if c.net != nil {
		c.net.Close()
	}
	if c.disks != nil {
		c.disks.Close()
	}
	if err := os.RemoveAll(c.dir); err != nil {
		return fmt.Errorf("torture: could not leave the machine as it was: %w", err)
	}
	return nil
}

// keepLogs copies the nodes' logs into the report, and what a node tells of owners.
func (c *chamber) keepLogs() error {
	if c.Processes == nil {
		return nil
	}
	to := filepath.Join(c.t.Report, "logs")
	if err := os.MkdirAll(to, 0o755); err != nil {
		return fmt.Errorf("keep logs: %w", err)
	}
	var errs []error
	for _, n := range c.Nodes() {
		if err := copyFile(filepath.Join(to, n+".log"), c.log(n)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("keep logs: %w", err))
		}
	}
	return errors.Join(errs...)
}

// keepFolders copies the nodes' data folders into the report of a failed run.
func (c *chamber) keepFolders() error {
	var errs []error
	for _, n := range c.Nodes() {
		from, to := filepath.Join(c.dir, n), filepath.Join(c.t.Report, "nodes", n)
		errs = append(errs, filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
			if err != nil {
				return fmt.Errorf("keep folders: %w", err)
			}
			at := filepath.Join(to, strings.TrimPrefix(path, from))
			switch {
			case d.IsDir():
				return os.MkdirAll(at, 0o755)
			case d.Type().IsRegular():
				return copyFile(at, path)
			}
			return nil
		}))
	}
	return errors.Join(errs...)
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// Replay hands every event that the node still has to the recorder.
func (e *HTTPEndpoint) Replay(ctx context.Context, r *Recorder, reader string) error {
	rctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	all, err := e.c.PastEvents(rctx, url.Values{"since": {"0"}})
	resync := false
	for _, s := range all {
		if s.Type == "resync" {
			resync = true
			continue
		}
		v, derr := decodeEvent(s.Data, reader)
		if derr != nil {
			return fmt.Errorf("event %s: %w", s.ID, derr)
		}
		v.Resync, resync = resync, false
		r.Event(v)
	}
	return err
}
