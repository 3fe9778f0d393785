package jepsen

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// gauge reads what a node's process has of the machine; false if it is down.
func (p *Processes) gauge(ctx context.Context, node string) (g Gauge, ok bool) {
	pid := p.Pid(node)
	if pid == 0 {
		return g, false
	}
	p.mu.Lock()
	g = Gauge{Node: node, Boot: p.procs[node].boots, Goroutines: -1}
	p.mu.Unlock()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return g, false
	}
	g.Handles = len(entries)
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		number, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch name {
		case "Threads":
			g.Threads = int(number)
		case "VmRSS":
			g.Memory = number << 10
		}
	}
	rctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	metrics, _ := p.API(node).Get(rctx, "/metrics", nil)
	for line := range strings.Lines(string(metrics)) {
		if value, ok := strings.CutPrefix(line, "miw_goroutines "); ok {
			if n, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil {
				g.Goroutines = int(n)
			}
		}
	}
	return g, true
}

// machine says in a line what this is.
func machine() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "Linux"
	}
	return fmt.Sprintf("%s %s %s", unix.ByteSliceToString(u.Sysname[:]), unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Machine[:]))
}
