package worker

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/miwnode/miwnode/fsm"
)

// Types of errors: stable words, for programs to tell them apart. A Runtime may
// add its own.
const (
	TypeSourceNotFound = "source_not_found" // there is no such code
	TypeFetchFailed    = "fetch_failed"     // the code could not be got hold of
	TypeDigestMismatch = "digest_mismatch"  // the code is not what was asked for
	TypeTooLarge       = "too_large"
	TypeForbidden      = "forbidden_source" // where code must not be fetched from
	TypeNotExecutable  = "not_executable"
	TypeInvalidModule  = "invalid_module"
	TypeRuntimeMissing = "runtime_missing" // no instance has the runtime
	TypeLoadTimeout    = "load_timeout"
	TypeDriverDied     = "driver_died" // every instance that loaded it did, one after the other
	TypeLoadFailed     = "load_failed" // a failure of loading with no type of its own

	TypeExited      = "exited" // with a code other than 0, or by a signal
	TypeTrapped     = "trapped"
	TypeMemoryLimit = "memory_limit"
	TypePanicked    = "panicked"
	TypeRunFailed   = "run_failed" // a failure of a run with no type of its own
)

// Error is why a load or a run failed.
type Error struct {
	Type    string
	Message string
	Err     error // what is behind it, nil if nothing is
}

// Errorf makes an Error. What the format wraps with %w is what is behind it.
func Errorf(typ, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Type: typ, Message: err.Error(), Err: errors.Unwrap(err)}
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns what is behind the error.
func (e *Error) Unwrap() error { return e.Err }

// Is makes errors of the same type match, whatever their messages say.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Message == "" && t.Type == e.Type
}

// Sentinels for errors.Is.
var (
	ErrSourceNotFound = &Error{Type: TypeSourceNotFound}
	ErrFetchFailed    = &Error{Type: TypeFetchFailed}
	ErrDigestMismatch = &Error{Type: TypeDigestMismatch}
	ErrTooLarge       = &Error{Type: TypeTooLarge}
	ErrForbidden      = &Error{Type: TypeForbidden}
	ErrNotExecutable  = &Error{Type: TypeNotExecutable}
	ErrInvalidModule  = &Error{Type: TypeInvalidModule}
)

// final are the types of what another try of the same load does not mend.
var final = map[string]bool{
	TypeDigestMismatch: true, TypeTooLarge: true, TypeForbidden: true, TypeNotExecutable: true, TypeInvalidModule: true,
	TypeRuntimeMissing: true, TypeLoadTimeout: true, TypeMemoryLimit: true,
}

// errorOf is err with a type: its own, or the one given.
func errorOf(err error, typ string) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return &Error{Type: e.Type, Message: err.Error(), Err: err}
	}
	return &Error{Type: typ, Message: err.Error(), Err: err}
}

// told is the error as the state takes it.
func (e *Error) told() (typ, message string) {
	typ = cmp.Or(fsm.Clip(e.Type, fsm.MaxErrorTypeBytes), "unknown")
	return typ, cmp.Or(fsm.ClipLines(e.Message, fsm.MaxWorkerErrorBytes), typ)
}
