package jepsen

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"
)

// statePaths are the reads that together show a node's whole copy of the state,
// as far as its API does.
var statePaths = []string{"/v1/leases", "/v1/instances", "/v1/groups/g", "/v1/jobs", "/v1/history"}

// copied is a copy at one revision.
type copied struct {
	revision uint64
	hash     string
}

// copyOf reads a node's copy; false if it changed meanwhile, or the node doesn't answer.
func copyOf(ctx context.Context, e *HTTPEndpoint) (c copied, ok bool) {
	h := sha256.New()
	for _, path := range statePaths {
		rctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		raw, err := e.Get(rctx, path, nil)
		cancel()
		if err != nil {
			return c, false
		}
		var body map[string]any
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.UseNumber()
		if dec.Decode(&body) != nil {
			return c, false
		}
		revision, _ := strconv.ParseUint(fmt.Sprint(body["revision"]), 10, 64)
		if c.revision != 0 && revision != c.revision {
			return c, false
		}
		c.revision = revision
		delete(body, "age")                 // of the copy
		_ = json.NewEncoder(h).Encode(body) // a hash takes all
	}
	c.hash = fmt.Sprintf("%x", h.Sum(nil)[:8])
	return c, true
}

// SampleCopies reads the copies of all nodes at once and notes those that did not
// change meanwhile. It tells whether all nodes were seen at one revision.
func (p *Processes) SampleCopies(ctx context.Context) (together bool) {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		seen = map[uint64]int{}
	)
	for _, n := range p.names {
		if !p.Up(n) {
			continue
		}
		wg.Go(func() {
			c, ok := copyOf(ctx, p.API(n))
			if !ok {
				return
			}
			p.r.Sample(n, c.revision, c.hash)
			mu.Lock()
			seen[c.revision]++
			mu.Unlock()
		})
	}
	wg.Wait()
	for _, n := range seen {
		if n == len(p.names) {
			return true
		}
	}
	return false
}
