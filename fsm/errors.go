package fsm

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/miwnode/miwnode/fsm/fsmpb"
)

// Code says how a command ended. Numbers are part of the log (remembered
// results) and of the RPC: only append.
type Code uint32

// Codes. CodeDone is the one that is no error.
const (
	CodeDone             Code = 0
	CodeInvalidArgument  Code = 1
	CodeUnauthenticated  Code = 2
	CodePermissionDenied Code = 3
	CodeNotFound         Code = 4
	CodeWaitTimeout      Code = 5
	CodeLeaseHeld        Code = 6
	CodeStaleToken       Code = 7
	CodeDraining         Code = 8
	CodeAlreadyExists    Code = 9
	CodeWrongState       Code = 10
	CodeSessionExpired   Code = 11
	CodeETagMismatch     Code = 12
	CodeOverloaded       Code = 13
	CodeNoQuorum         Code = 14
	CodeNotReady         Code = 15
	CodeClosing          Code = 16
	CodeUncertain        Code = 17
	CodeInternal         Code = 18
)

// The sentinels, one for each code. Every refusal of this package matches one
// of them with errors.Is; those that say nothing of state (ErrUnauthenticated,
// ErrNoQuorum and their like) live here so that each code has one error only.
var (
	// ErrInvalidArgument is returned for a command whose shape is wrong or over a limit.
	ErrInvalidArgument error = sentinel(CodeInvalidArgument)
	// ErrUnauthenticated is returned for a call without a valid credential.
	ErrUnauthenticated error = sentinel(CodeUnauthenticated)
	// ErrPermissionDenied is returned for a call that its caller may not make.
	ErrPermissionDenied error = sentinel(CodePermissionDenied)
	// ErrNotFound is returned when what is named does not exist: an instance, a lease to revoke.
	ErrNotFound error = sentinel(CodeNotFound)
	// ErrWaitTimeout is returned when a bounded wait for a lease ended without it.
	ErrWaitTimeout error = sentinel(CodeWaitTimeout)
	// ErrLeaseHeld is returned for an acquire that does not wait and finds the
	// key taken or barred. Its Detail is the *LeaseRecord of the present holder.
	ErrLeaseHeld error = sentinel(CodeLeaseHeld)
	// ErrStaleToken is returned when a token is not that of the present grant;
	// nothing was changed.
	ErrStaleToken error = sentinel(CodeStaleToken)
	// ErrDraining is returned for new work on an instance that drains.
	ErrDraining error = sentinel(CodeDraining)
	// ErrAlreadyExists is returned when what is made is there already.
	ErrAlreadyExists error = sentinel(CodeAlreadyExists)
	// ErrWrongState is returned when the thing named is not in a state that allows the command.
	ErrWrongState error = sentinel(CodeWrongState)
	// ErrSessionExpired is returned for a session that is not live, whether it
	// ended or never was.
	ErrSessionExpired error = sentinel(CodeSessionExpired)
	// ErrETagMismatch is returned when a record changed since it was read.
	ErrETagMismatch error = sentinel(CodeETagMismatch)
	// ErrOverloaded is returned when a table or queue is full. Nothing was changed.
	ErrOverloaded error = sentinel(CodeOverloaded)
	// ErrNoQuorum is returned when the command has surely not been applied for lack of a quorum.
	ErrNoQuorum error = sentinel(CodeNoQuorum)
	// ErrNotReady is returned by a node that has no leader or no caught-up copy yet.
	ErrNotReady error = sentinel(CodeNotReady)
	// ErrClosing is returned by a node that is leaving.
	ErrClosing error = sentinel(CodeClosing)
	// ErrUncertain is returned when the command may or may not have been applied.
	// Repeating it under its request ID never applies it twice.
	ErrUncertain error = sentinel(CodeUncertain)
	// ErrInternal is returned for a broken invariant of our own.
	ErrInternal error = sentinel(CodeInternal)
)

var codeNames = [...]string{
	CodeDone:             "done",
	CodeInvalidArgument:  "invalid_argument",
	CodeUnauthenticated:  "unauthenticated",
	CodePermissionDenied: "permission_denied",
	CodeNotFound:         "not_found",
	CodeWaitTimeout:      "wait_timeout",
	CodeLeaseHeld:        "lease_held",
	CodeStaleToken:       "stale_token",
	CodeDraining:         "draining",
	CodeAlreadyExists:    "already_exists",
	CodeWrongState:       "wrong_state",
	CodeSessionExpired:   "session_expired",
	CodeETagMismatch:     "etag_mismatch",
	CodeOverloaded:       "overloaded",
	CodeNoQuorum:         "no_quorum",
	CodeNotReady:         "not_ready",
	CodeClosing:          "closing",
	CodeUncertain:        "uncertain",
	CodeInternal:         "internal",
}

// String returns the name that the HTTP contract uses.
func (c Code) String() string {
	if int(c) < len(codeNames) {
		return codeNames[c]
	}
	return fmt.Sprintf("code_%d", uint32(c))
}

// Error is a refusal: the command changed nothing. Two Errors match with
// errors.Is when their codes do.
type Error struct {
	Code    Code
	Message string
	// Detail is more for a machine to read, nil for most codes.
	Detail any
}

func sentinel(c Code) *Error { return &Error{Code: c} }

// Error returns the message, preceded by the name of the code.
func (e *Error) Error() string {
	if e.Message == "" {
		return e.Code.String()
	}
	return e.Code.String() + ": " + e.Message
}

// Is reports whether target is an Error of the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Errorf makes an Error.
func Errorf(code Code, format string, args ...any) error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// CodeOf returns the code of the first Error that err wraps, CodeDone for nil
// and CodeInternal for an error without one.
func CodeOf(err error) Code {
	if err == nil {
		return CodeDone
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeInternal
}

// ResultErr returns the refusal that r carries, nil if it was done. A queued
// acquire is done: the place in the queue is there.
func ResultErr(r *Result) error {
	if r.GetCode() == 0 {
		return nil
	}
	e := &Error{Code: Code(r.Code), Message: r.Message}
	if r.HeldBy != nil {
		e.Detail = r.HeldBy
	}
	return e
}

// LeaseRecord is a lease on the wire.
type LeaseRecord = fsmpb.LeaseRecord

// VersionError says that an entry of the log or a snapshot needs a newer
// binary. A Machine that meets it halts.
type VersionError struct {
	// Need is the smallest state version that would do, 0 if the bytes don't say.
	Need uint32
	What string

	known uint32 // 0: Version
}

func (e *VersionError) Error() string {
	need := "a newer one"
	if e.Need != 0 {
		need = fmt.Sprintf("version %d", e.Need)
	}
	return fmt.Sprintf("state version: %s; this binary knows up to version %d, %s is needed: start a newer miwnode on this data folder", e.What, cmp.Or(e.known, Version), need)
}
