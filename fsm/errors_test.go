package fsm_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/miwnode/miwnode/fsm"
)

// Each code has its name, its error, and comes back from a Result.
func TestCodes(t *testing.T) {
	cases := []struct {
		number uint32
		name   string
		err    error
	}{
		{1, "invalid_argument", fsm.ErrInvalidArgument},
		{2, "unauthenticated", fsm.ErrUnauthenticated},
		{3, "permission_denied", fsm.ErrPermissionDenied},
		{4, "not_found", fsm.ErrNotFound},
		{5, "wait_timeout", fsm.ErrWaitTimeout},
		{6, "lease_held", fsm.ErrLeaseHeld},
		{7, "stale_token", fsm.ErrStaleToken},
		{8, "draining", fsm.ErrDraining},
		{9, "already_exists", fsm.ErrAlreadyExists},
		{10, "wrong_state", fsm.ErrWrongState},
		{11, "session_expired", fsm.ErrSessionExpired},
		{12, "etag_mismatch", fsm.ErrETagMismatch},
		{13, "overloaded", fsm.ErrOverloaded},
		{14, "no_quorum", fsm.ErrNoQuorum},
		{15, "not_ready", fsm.ErrNotReady},
		{16, "closing", fsm.ErrClosing},
		{17, "uncertain", fsm.ErrUncertain},
		{18, "internal", fsm.ErrInternal},
	}
	for _, c := range cases {
		code := fsm.Code(c.number)
		if code.String() != c.name {
			t.Errorf("code %d is %q, want %q", c.number, code, c.name)
		}
		err := fsm.ResultErr(&fsm.Result{Code: c.number, Message: "why"})
		wrapped := fmt.Errorf("call: %w", err)
		for _, other := range cases {
			if got, want := errors.Is(wrapped, other.err), other.number == c.number; got != want {
				t.Errorf("%s is %s: %v", c.name, other.name, got)
			}
		}
		if fsm.CodeOf(wrapped) != code {
			t.Errorf("%s: CodeOf says %v", c.name, fsm.CodeOf(wrapped))
		}
		if got, want := err.Error(), c.name+": why"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if fsm.CodeOf(nil) != fsm.CodeDone || fsm.CodeOf(errors.New("x")) != fsm.CodeInternal {
		t.Error("CodeOf of nil or of a stranger")
	}
	if err := fsm.ResultErr(&fsm.Result{Queued: true}); err != nil {
		t.Errorf("queued is no error: %v", err)
	}
	if got := fsm.Code(99).String(); got != "code_99" {
		t.Errorf("got %q", got)
	}
}

// A refused acquire says who holds the key, but never by which session.
func TestResult_HeldBy(t *testing.T) {
	l := newLogbook(t)
	l.open("a")
	l.open("b")
	l.done(&fsm.Acquire{Key: "k", SessionId: "a", Holder: "runner-1", Ask: 77})
	err := fsm.ResultErr(l.do(&fsm.Acquire{Key: "k", SessionId: "b"}))
	e, ok := errors.AsType[*fsm.Error](err)
	if !ok {
		t.Fatalf("got %v", err)
	}
	held, ok := e.Detail.(*fsm.LeaseRecord)
	if !ok || held.InstanceId != "i-a" || held.NodeId != "n-a" || held.Token != token(1) {
		t.Errorf("detail %v", e.Detail)
	}
	if held.SessionId != "" || held.Holder != "" || len(held.Asks) != 0 {
		t.Errorf("secrets in %v", held)
	}
}
