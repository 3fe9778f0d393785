package api_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestSessions(t *testing.T) {
	s := serve(t, startReady(t))

	open := s.call("POST", "/v1/sessions", `{"ttl": "10s", "name": "mailer", "labels": {"a": "b"}}`).ok(201)
	id := open.text("session_id")
	if len(id) != 32 || strings.Trim(id, "0123456789abcdef") != "" {
		t.Errorf("session ID %q is not 128 bits in hex", id)
	}
	if got := open.text("trusted_for"); got != "9s" {
		t.Errorf("trusted for %s, want 9s", got)
	}
	if got := s.call("POST", "/v1/sessions", `{"ttl": "30s"}`).ok(201).text("trusted_for"); got != "27s" {
		t.Errorf("a TTL of 30s is trusted for %s, want 27s: the margin is a tenth", got)
	}
	kept := s.call("POST", "/v1/sessions/"+id+"/keepalive", "").ok(200)
	if kept.text("ttl") != "10s" || kept.text("trusted_for") != "9s" || kept.count("leases") != 0 {
		t.Errorf("got %s", kept.raw)
	}
	token := s.call("POST", "/v1/leases/acquire", acquireBody("k", id)).ok(200).number("token")
	kept = s.call("POST", "/v1/sessions/"+id+"/keepalive", "").ok(200)
	if kept.text("leases.0.key") != "k" || kept.number("leases.0.token") != token || kept.text("leases.0.state") != "held" {
		t.Errorf("got %s", kept.raw)
	}
	if all := string(s.call("GET", "/v1/leases", "").ok(200).raw) + string(s.call("GET", "/v1/instances", "").ok(200).raw) +
		string(s.call("GET", "/v1/history", "").ok(200).raw); strings.Contains(all, id) {
		t.Errorf("a list shows the session's ID: %s", all)
	}
	if got := s.call("GET", "/v1/leases?key=k", "").ok(200).text("leases.0.holder.name"); got != "mailer" {
		t.Errorf("holder %q, want mailer", got)
	}

	s.call("DELETE", "/v1/sessions/"+id, "").ok(204)
	if got := s.call("GET", "/v1/leases?key=k", "").ok(200).count("leases"); got != 0 {
		t.Errorf("a closed session left its lease")
	}
	s.call("DELETE", "/v1/sessions/"+id, "").refused(410, "session_expired")
	s.call("POST", "/v1/sessions/"+id+"/keepalive", "").refused(410, "session_expired")
	s.call("POST", "/v1/sessions/unknown/keepalive", "").refused(410, "session_expired", "open a new one")
	s.call("POST", "/v1/leases/acquire", acquireBody("k", id)).refused(410, "session_expired")

	with := s.call("POST", "/v1/sessions", `{"ttl": "10s", "name": "w", "instance": true}`).ok(201)
	list := s.call("GET", "/v1/instances", "").ok(200)
	if list.count("instances") != 2 || list.text("instances.1.instance_id") != with.text("instance_id") || list.text("instances.1.name") != "w" {
		t.Errorf("an HTTP client's instance is not listed after the node's: %s", list.raw)
	}
}

func TestLeases(t *testing.T) {
	n := startReady(t)
	s := serve(t, n)
	a, b := s.session(`{"ttl": "30s", "name": "a"}`), s.session(`{"ttl": "30s", "name": "b"}`)

	got := s.call("POST", "/v1/leases/acquire", acquireBody("k", a)).ok(200)
	token := got.number("token")
	if got.text("key") != "k" || token != 1<<40+1 {
		t.Errorf("got %s, want the first token of generation 1", got.raw)
	}
	if again := s.call("POST", "/v1/leases/acquire", acquireBody("k", a)).ok(200).number("token"); again != token {
		t.Errorf("the same holder got token %d, want %d again", again, token)
	}
	held := s.call("POST", "/v1/leases/acquire", acquireBody("k", b)).refused(409, "lease_held")
	if held.text("error.detail.key") != "k" || held.text("error.detail.holder.name") != "a" || held.number("error.detail.token") != token {
		t.Errorf("the refusal does not name the holder: %s", held.raw)
	}
	s.call("POST", "/v1/leases/acquire", acquireBody("k", a, "holder", "another")).refused(409, "lease_held")

	s.call("POST", "/v1/leases/release", tokenBody("k", token-1, "session_id", a)).refused(409, "stale_token")
	s.call("POST", "/v1/leases/release", tokenBody("k", token, "session_id", b)).refused(409, "stale_token")
	s.call("POST", "/v1/leases/revoke", tokenBody("free", token)).refused(404, "not_found")
	s.call("POST", "/v1/leases/revoke", tokenBody("k", token-1)).refused(409, "stale_token")
	s.call("POST", "/v1/leases/transfer", tokenBody("k", token, "to", "nobody")).refused(404, "not_found")
	s.call("POST", "/v1/leases/release", tokenBody("k", token, "session_id", a)).ok(200)
	s.call("POST", "/v1/leases/release", tokenBody("k", token, "session_id", a)).refused(409, "stale_token")

	// A revoked lease stays the holder's until it releases; then it passes on.
	token = s.call("POST", "/v1/leases/acquire", acquireBody("k", a)).ok(200).number("token")
	s.call("POST", "/v1/leases/revoke", tokenBody("k", token, "reason", "hangs", "by", "op")).ok(202)
	list := s.call("GET", "/v1/leases?key=k", "").ok(200)
	if list.text("leases.0.state") != "revoked" || list.text("leases.0.by") != "op" || list.text("leases.0.ttl") != "30s" {
		t.Errorf("got %s", list.raw)
	}
	if kept := s.call("POST", "/v1/sessions/"+a+"/keepalive", "").ok(200); kept.text("leases.0.state") != "revoked" {
		t.Errorf("a keep-alive says %s", kept.raw)
	}
	s.call("POST", "/v1/leases/release", tokenBody("k", token, "session_id", a)).ok(200)
	history := s.call("GET", "/v1/history?key=k", "").ok(200)
	if history.count("entries") != 2 || history.text("entries.0.end_reason") != "released" ||
		history.at("entries.0.former_token") != nil || history.number("entries.1.former_token") != history.number("entries.0.token") ||
		history.text("entries.1.end_reason") != "revoked" || history.text("entries.1.by") != "op" || history.text("entries.1.gap") == "" {
		t.Errorf("got %s", history.raw)
	}

	// A transfer names an instance that waits.
	c := s.call("POST", "/v1/sessions", `{"ttl": "30s", "name": "c", "instance": true}`).ok(201)
	token = s.call("POST", "/v1/leases/acquire", acquireBody("k", a)).ok(200).number("token")
	s.call("POST", "/v1/leases/transfer", tokenBody("k", token, "to", c.text("instance_id"))).refused(409, "wrong_state")
	granted := make(chan *answer, 1)
	go func() {
		a, _ := s.try(t.Context(), "POST", "/v1/leases/acquire", acquireBody("k", c.text("session_id"), "wait", "20s"))
		granted <- a
	}()
	until(t, n, "c waits", func() bool { return n.View().WaiterCount("k") == 1 })
	if got := s.call("GET", "/v1/leases?key=k", "").ok(200).number("leases.0.waiters"); got != 1 {
		t.Errorf("%d waiters, want 1", got)
	}
	s.call("POST", "/v1/leases/transfer", tokenBody("k", token, "to", c.text("instance_id"))).ok(202)
	if list := s.call("GET", "/v1/leases?key=k", "").ok(200); list.text("leases.0.state") != "transferring" || list.text("leases.0.successor") != c.text("instance_id") {
		t.Errorf("got %s", list.raw)
	}
	s.call("POST", "/v1/leases/release", tokenBody("k", token, "session_id", a)).ok(200)
	if got := (<-granted).ok(200).number("token"); got != token+1 {
		t.Errorf("the waiter got token %d, want %d", got, token+1)
	}
	// A lock delay bars the key after a loss.
	s.call("POST", "/v1/leases/acquire", acquireBody("barred", b, "lock_delay", "1h")).ok(200)
	s.call("DELETE", "/v1/sessions/"+b, "").ok(204)
	_ = n
}

func TestAcquire_Wait(t *testing.T) {
	n := startReady(t)
	s := serve(t, n)
	a, b := s.session(`{"ttl": "30s"}`), s.session(`{"ttl": "30s"}`)
	token := s.call("POST", "/v1/leases/acquire", acquireBody("k", a)).ok(200).number("token")
	waits := func() bool { return n.View().WaiterCount("k") == 1 }
	alone := func() bool { return n.View().WaiterCount("k") == 0 }

	t.Run("runs out", func(t *testing.T) {
		s := *s
		s.t = t
		began := time.Now()
		s.call("POST", "/v1/leases/acquire", acquireBody("k", b, "wait", "50ms")).refused(408, "wait_timeout")
		if took := time.Since(began); took < 50*time.Millisecond || took > 3*time.Second {
			t.Errorf("took %v", took)
		}
		if !alone() {
			t.Error("the place in the queue is still there")
		}
	})
	t.Run("is cut by timeout", func(t *testing.T) {
		s := *s
		s.t = t
		a := s.call("POST", "/v1/leases/acquire?timeout=200ms", acquireBody("k", b, "wait", "1h"))
		if a.status != 504 { // a disk may take longer than that
			a.refused(408, "wait_timeout", "timeout")
		}
		until(t, n, "b has left the queue", alone)
	})
	t.Run("caller hangs up", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := s.try(ctx, "POST", "/v1/leases/acquire", acquireBody("k", b, "wait", "1h"))
			ended <- err
		}()
		until(t, n, "b waits", waits)
		began := time.Now()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v", err)
		}
		until(t, n, "b has left the queue", alone)
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("left the queue after %v", took)
		}
	})
	t.Run("another call of the holder keeps the place", func(t *testing.T) {
		first, hangUp := context.WithCancel(t.Context())
		firstEnded := make(chan struct{})
		go func() {
			defer close(firstEnded)
			_, _ = s.try(first, "POST", "/v1/leases/acquire", acquireBody("k", b, "wait", "1h"))
		}()
		until(t, n, "b waits", waits)
		revision := n.View().Revision()
		second := make(chan *answer, 1)
		go func() {
			a, _ := s.try(t.Context(), "POST", "/v1/leases/acquire", acquireBody("k", b, "wait", "1h"))
			second <- a
		}()
		until(t, n, "the second call is in", func() bool { return n.View().Revision() > revision })
		revision = n.View().Revision()
		hangUp()
		<-firstEnded
		until(t, n, "the first call has left", func() bool { return n.View().Revision() > revision })
		s := *s
		s.t = t
		s.call("POST", "/v1/leases/release", tokenBody("k", token, "session_id", a)).ok(200)
		token = (<-second).ok(200).number("token")
		if l, ok := n.View().Lease("k"); !ok || l.Token != token {
			t.Fatal("the call that was answered has lost its grant to the one that hung up")
		}
		a, b = b, a
	})
	t.Run("grant", func(t *testing.T) {
		s := *s
		s.t = t
		granted := make(chan *answer, 1)
		go func() {
			a, _ := s.try(t.Context(), "POST", "/v1/leases/acquire", acquireBody("k", b, "wait", "20s"))
			granted <- a
		}()
		until(t, n, "b waits", waits)
		s.call("POST", "/v1/leases/release", tokenBody("k", token, "session_id", a)).ok(200)
		got := (<-granted).ok(200)
		if got.number("token") <= token {
			t.Errorf("got %s, want a token above %d", got.raw, token)
		}
	})
}

func TestScenario(t *testing.T) {
	n := startReady(t)
	s := serve(t, n)

	t.Run("B-19_a_waiter_whose_session_ended_is_told", func(t *testing.T) {
		s := *s
		s.t = t
		a, c := s.session(`{"ttl": "30s"}`), s.session(`{"ttl": "2s"}`)
		s.call("POST", "/v1/leases/acquire", acquireBody("w", a)).ok(200)
		ended := make(chan *answer, 1)
		go func() {
			a, _ := s.try(t.Context(), "POST", "/v1/leases/acquire", acquireBody("w", c, "wait", "1h"))
			ended <- a
		}()
		until(t, n, "c waits", func() bool { return n.View().WaiterCount("w") == 1 })
		// Nobody keeps it alive: it expires by itself.
		select {
		case a := <-ended:
			a.refused(410, "session_expired")
		case <-time.After(10 * time.Second):
			t.Fatal("still waits")
		}
		if got := n.View().WaiterCount("w"); got != 0 {
			t.Errorf("%d waiters are left", got)
		}
	})

	t.Run("B-29_nothing_grows", func(t *testing.T) {
		s := *s
		s.t = t
		count := 2000
		if testing.Short() {
			count = 300
		}
		a, b := s.session(`{"ttl": "60s"}`), s.session(`{"ttl": "60s"}`)
		s.call("POST", "/v1/leases/acquire", acquireBody("g", a)).ok(200)
		base := settled()
		for i := range count {
			key := fmt.Sprintf("g%d", i%10)
			token := s.call("POST", "/v1/leases/acquire", acquireBody(key, a)).ok(200).number("token")
			s.call("POST", "/v1/leases/release", tokenBody(key, token, "session_id", a)).ok(200)
			s.call("POST", "/v1/leases/acquire", acquireBody("g", b)).refused(409, "lease_held")
		}
		if got := settled(); got > base+5 {
			t.Errorf("%d goroutines, had %d", got, base)
		}
		if leases := n.View().LeaseCount(); leases > 2 {
			t.Errorf("%d leases are left", leases)
		}
	})

	t.Run("B-95_one_grant_for_all_waiters", func(t *testing.T) {
		s := *s
		s.t = t
		const waiters = 200
		a := s.session(`{"ttl": "60s"}`)
		b := s.session(`{"ttl": "60s"}`)
		token := s.call("POST", "/v1/leases/acquire", acquireBody("herd", a)).ok(200).number("token")
		ctx, cancel := context.WithCancel(t.Context())
		granted := make(chan int, waiters)
		done := make(chan struct{}, waiters)
		for i := range waiters {
			go func() {
				a, err := s.try(ctx, "POST", "/v1/leases/acquire", acquireBody("herd", b, "wait", "1h", "holder", fmt.Sprint(i)))
				if err == nil && a.status == 200 {
					granted <- i
				}
				done <- struct{}{}
			}()
		}
		until(t, n, "all wait", func() bool { return n.View().WaiterCount("herd") == waiters })
		before := n.View().Revision()
		s.call("POST", "/v1/leases/release", tokenBody("herd", token, "session_id", a)).ok(200)
		<-granted
		if entries := n.View().Revision() - before; entries > 2 {
			t.Errorf("the release and its grant took %d entries of the log", entries)
		}
		if got := n.View().WaiterCount("herd"); got != waiters-1 {
			t.Errorf("%d still wait, want %d", got, waiters-1)
		}
		cancel()
		for range waiters {
			<-done
		}
		if len(granted) != 0 {
			t.Error("more than one was granted")
		}
	})
}

// settled is the number of goroutines once it does not fall any more.
func settled() int {
	least := runtime.NumGoroutine()
	for range 20 {
		runtime.GC()
		runtime.Gosched()
		least = min(least, runtime.NumGoroutine())
	}
	return least
}

func TestIdempotency(t *testing.T) {
	n := startReady(t)
	s := serve(t, n)
	once := func(method, path, body, key string) *answer {
		t.Helper()
		return s.call(method, path, body, "Idempotency-Key", key)
	}
	first := once("POST", "/v1/sessions", `{"ttl": "30s", "instance": true}`, "open-1").ok(201)
	again := once("POST", "/v1/sessions", `{"ttl": "30s", "instance": true}`, "open-1").ok(201)
	if first.text("session_id") != again.text("session_id") || first.text("instance_id") != again.text("instance_id") {
		t.Errorf("a repeat opened another session: %s, then %s", first.raw, again.raw)
	}
	once("POST", "/v1/sessions", `{"ttl": "20s"}`, "open-1").refused(400, "invalid_argument", "the header Idempotency-Key) was used with another body")
	a := first.text("session_id")

	token := once("POST", "/v1/leases/acquire", acquireBody("k", a), "acquire-1").ok(200).number("token")
	if again := once("POST", "/v1/leases/acquire", acquireBody("k", a), "acquire-1").ok(200).number("token"); again != token {
		t.Errorf("a repeat got token %d, want %d", again, token)
	}
	release := tokenBody("k", token, "session_id", a)
	once("POST", "/v1/leases/release", release, "release-1").ok(200)
	once("POST", "/v1/leases/release", release, "release-1").ok(200)
	once("POST", "/v1/leases/acquire", acquireBody("k", a), "acquire-1").refused(409, "stale_token")
	once("POST", "/v1/leases/release", release, "acquire-1").refused(400, "invalid_argument")
	once("POST", "/v1/leases/release", release, strings.Repeat("x", 300)).refused(400, "invalid_argument", "Idempotency-Key")
	once("DELETE", "/v1/sessions/"+a, "", "close-1").ok(204)
	once("DELETE", "/v1/sessions/"+a, "", "close-1").ok(204)
	once("POST", "/v1/sessions", `{"ttl": "30s", "instance": true}`, "open-1").refused(410, "session_expired")
}
