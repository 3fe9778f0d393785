package api_test

import (
	"encoding/json"
	"fmt"
	"testing"
)

func TestJobs(t *testing.T) {
	n := startReady(t)
	s := serve(t, n)
	session := s.session(`{"ttl": "60s", "name": "cron", "instance": true}`)
	token := s.call("POST", "/v1/leases/acquire", acquireBody("lock", session)).ok(200).number("token")
	record := func(body string) *answer { return s.call("POST", "/v1/jobs/record", body) }

	if got := record(`{"key": "nightly"}`).ok(200).number("total"); got != 1 {
		t.Errorf("total is %d, want 1", got)
	}
	fenced := fmt.Sprintf(`{"key": "nightly", "lease_key": "lock", "token": %d, "outcome": "failed", "detail": "no disk"}`, token)
	if got := record(fenced).ok(200).number("total"); got != 2 {
		t.Errorf("total is %d, want 2", got)
	}
	record(fmt.Sprintf(`{"key": "nightly", "lease_key": "lock", "token": %d}`, token-1)).refused(409, "stale_token")
	record(`{"key": "nightly", "outcome": "lost"}`).refused(400, "invalid_argument", "lost")
	record(`{"key": "nightly", "outcome": "started"}`).refused(400, "invalid_argument", "token")
	record(`{"key": ""}`).refused(400, "invalid_argument", "key")
	record(`{"key": "x", "lease_key": "lock"}`).refused(400, "invalid_argument", "token")

	got := s.call("GET", "/v1/jobs?key=nightly", "").ok(200)
	for path, want := range map[string]any{
		"jobs.0.key": "nightly", "jobs.0.total": json.Number("2"), "jobs.0.recent.0.outcome": "done", "jobs.0.recent.0.instance_id": n.InstanceID(),
		"jobs.0.recent.1.outcome": "failed", "jobs.0.recent.1.detail": "no disk", "jobs.0.recent.1.lease_key": "lock", "jobs.0.recent.1.name": "cron",
	} {
		if got.at(path) != want {
			t.Errorf("%s is %v, want %v", path, got.at(path), want)
		}
	}
	if got.text("jobs.0.owner") != got.text("jobs.0.recent.1.instance_id") {
		t.Errorf("owner is not who recorded last: %s", got.raw)
	}

	// A run that its lease's end leaves open is lost.
	record(fmt.Sprintf(`{"key": "long", "lease_key": "lock", "token": %d, "outcome": "started"}`, token)).ok(200)
	if open := s.call("GET", "/v1/jobs?key=long", "").ok(200); open.at("jobs.0.recent.0.ended_at") != nil || open.text("jobs.0.recent.0.outcome") != "started" {
		t.Errorf("an open run: %s", open.raw)
	}
	s.call("DELETE", "/v1/sessions/"+session, "").ok(204)
	if closed := s.call("GET", "/v1/jobs?prefix=lo", "").ok(200); closed.count("jobs") != 1 || closed.text("jobs.0.recent.0.outcome") != "lost" || closed.text("jobs.0.recent.0.ended_at") == "" {
		t.Errorf("a run whose lease has ended: %s", closed.raw)
	}

	zero := s.call("GET", "/v1/jobs?key=never", "").ok(200)
	if zero.count("jobs") != 1 || zero.number("jobs.0.total") != 0 || zero.count("jobs.0.recent") != 0 || zero.at("jobs.0.last_at") != nil {
		t.Errorf("an unknown key: %s", zero.raw)
	}
	page := s.call("GET", "/v1/jobs?limit=1", "").ok(200)
	if page.text("jobs.0.key") != "long" || page.text("next") != "long" {
		t.Errorf("first page: %s", page.raw)
	}
	if page = s.call("GET", "/v1/jobs?limit=1&after=long", "").ok(200); page.text("jobs.0.key") != "nightly" || page.at("next") != nil {
		t.Errorf("second page: %s", page.raw)
	}
	s.call("GET", "/v1/jobs?key=", "").refused(400, "invalid_argument", "key is empty")
	s.call("GET", "/v1/jobs?key=a&prefix=b", "").refused(400, "invalid_argument", "not both")
}
