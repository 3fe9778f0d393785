package jepsen

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The observer of real processes: work runs in commands of its own, each of
// which says over one socket when it starts, that it is alive, and when it
// stops, all by CLOCK_MONOTONIC of the one machine, which no wall-clock step and
// no network namespace touches. What is killed without a word ends, for the
// judge, when it last said that it was alive: less can't be blamed on anybody.

// lifeVariable is the environment variable that tells which boot of its node a
// process belongs to, from 1.
const lifeVariable = "MIW_TORTURE_LIFE"

// ownLife names the life of the node that this command runs in: another one that
// the same life starts under the same grant is no new owner. Not all that a node
// starts gets its environment, but its guard does, and is above all commands. A
// command of no node is an owner of its own.
func ownLife() string {
	for pid := os.Getpid(); pid > 1; pid = parentOf(pid) {
		if life := variableOf(pid, lifeVariable); life != "" {
			return life
		}
	}
	return fmt.Sprintf("pid%d", os.Getpid())
}

// aliveEvery is how often a worker says so, and so how exact a killed one's end is.
const aliveEvery = 5 * time.Millisecond

// Observer listens to the workers.
type Observer struct {
	r    *Recorder
	mono time.Duration // CLOCK_MONOTONIC at the recorder's beginning
	l    net.Listener
	wg   sync.WaitGroup

	mu    sync.Mutex
	open  map[string]int           // guarded by mu; live runs by key
	conns map[net.Conn]struct{}    // guarded by mu
	start map[string]chan struct{} // guarded by mu; closed at the next start of a key
	last  map[string]Run           // guarded by mu; the latest run of a key
}

// Observe listens on a unix socket at path.
func Observe(r *Recorder, path string) (*Observer, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("observe: %w", err)
	}
	o := &Observer{
		r: r, l: l, mono: monotonic() - r.Now(), open: map[string]int{}, conns: map[net.Conn]struct{}{},
		start: map[string]chan struct{}{}, last: map[string]Run{},
	}
	o.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			o.mu.Lock()
			o.conns[c] = struct{}{}
			o.mu.Unlock()
			o.wg.Go(func() { o.listen(c) })
		}
	})
	return o, nil
}

// Close ends the listening; workers still there are noted as open.
func (o *Observer) Close() {
	o.l.Close()
	o.mu.Lock()
	for c := range o.conns {
		c.Close()
	}
	o.mu.Unlock()
	o.wg.Wait()
}

// Started returns the run of key that began last at or after since, waiting for
// it until ctx ends.
func (o *Observer) Started(ctx context.Context, key string, since time.Duration) (Run, error) {
	for {
		o.mu.Lock()
		last, ok := o.last[key]
		next := o.start[key]
		if next == nil {
			next = make(chan struct{})
			o.start[key] = next
		}
		o.mu.Unlock()
		if ok && last.Start >= since {
			return last, nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return Run{}, fmt.Errorf("%s did not start since %v: %w", key, since, context.Cause(ctx))
		}
	}
}

// Running counts the workers of a key that live.
func (o *Observer) Running(key string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.open[key]
}

func (o *Observer) listen(c net.Conn) {
	defer func() {
		c.Close()
		o.mu.Lock()
		delete(o.conns, c)
		o.mu.Unlock()
	}()
	var run Run
	lines := bufio.NewScanner(c)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 2 {
			continue
		}
		ns, _ := strconv.ParseInt(f[1], 10, 64)
		at := time.Duration(ns) - o.mono
		switch f[0] {
		case "start": // start NS KEY TOKEN NODE LIFE
			if len(f) != 6 {
				continue
			}
			token, _ := strconv.ParseUint(f[3], 10, 64)
			run = Run{Proc: f[4] + "/" + f[5], Node: f[4], Key: f[2], Token: token, Start: at, Stop: at, End: "killed"}
			o.mu.Lock()
			o.open[run.Key]++
			o.last[run.Key] = run
			if next := o.start[run.Key]; next != nil {
				close(next)
				delete(o.start, run.Key)
			}
			o.mu.Unlock()
		case "alive":
			run.Stop = max(run.Stop, at)
		case "stop":
			run.Stop, run.End = max(run.Stop, at), "returned"
		}
	}
	if run.Key != "" {
		o.mu.Lock()
		o.open[run.Key]--
		o.mu.Unlock()
		o.r.AddRun(run)
	}
}

// Worker is the main function of a worker: args are the observer's socket, the
// node that runs it, and how long it takes to stop once told ("deaf": it never
// does). Key and token come from its environment. It returns the exit code.
func Worker(args []string) int {
	if len(args) != 3 {
		fmt.Fprintln(os.Stderr, "worker SOCKET NODE STOP")
		return 2
	}
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM, syscall.SIGINT)
	c, err := net.Dial("unix", args[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	say := func(what, rest string) {
		fmt.Fprintf(c, "%s %d%s\n", what, monotonic(), rest)
	}
	say("start", fmt.Sprintf(" %s %s %s %s", os.Getenv("MIW_KEY"), os.Getenv("MIW_TOKEN"), args[1], ownLife()))
	alive := time.NewTicker(aliveEvery)
	var stops <-chan time.Time
	for {
		select {
		case <-alive.C:
			say("alive", "")
		case <-told:
			if args[2] == "deaf" || stops != nil {
				continue
			}
			d, err := time.ParseDuration(args[2])
			if err != nil {
				return 2
			}
			stops = time.After(d)
		case <-stops:
			say("stop", "")
			return 0
		}
	}
}
