package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/miwnode/miwnode/fsm"
)

// statuses is the HTTP status of each code; a code without one is a fault of this table.
var statuses = map[string]int{
	"invalid_argument":  http.StatusBadRequest,
	"unauthenticated":   http.StatusUnauthorized,
	"permission_denied": http.StatusForbidden,
	"not_found":         http.StatusNotFound,
	"wait_timeout":      http.StatusRequestTimeout,
	"lease_held":        http.StatusConflict,
	"stale_token":       http.StatusConflict,
	"draining":          http.StatusConflict,
	"already_exists":    http.StatusConflict,
	"wrong_state":       http.StatusConflict,
	"session_expired":   http.StatusGone,
	"etag_mismatch":     http.StatusPreconditionFailed,
	"overloaded":        http.StatusTooManyRequests,
	"no_quorum":         http.StatusServiceUnavailable,
	"not_ready":         http.StatusServiceUnavailable,
	"closing":           http.StatusServiceUnavailable,
	"uncertain":         http.StatusGatewayTimeout,
	"internal":          http.StatusInternalServerError,
}

// errorAnswer is the body of every refusal.
type errorAnswer struct {
	Error    ErrorBody `json:"error"`
	Revision uint64    `json:"revision"`
}

// ErrorBody is a refusal as it travels.
type ErrorBody struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Detail  any    `json:"detail,omitempty"`
}

// invalid is a refusal that names what is wrong with the request.
func invalid(format string, args ...any) error {
	return fsm.Errorf(fsm.CodeInvalidArgument, format, args...)
}

// bodyOf turns an error into what travels and its status. write says whether the
// call may have changed something: an end without a verdict is then uncertain.
func bodyOf(err error, write bool) (ErrorBody, int) {
	var e *fsm.Error
	if errors.As(err, &e) {
		name := e.Code.String()
		if status, ok := statuses[name]; ok {
			message := e.Message
			if message == "" {
				message = err.Error()
			}
			return ErrorBody{Code: name, Message: message, Detail: e.Detail}, status
		}
	}
	code := "no_quorum"
	switch {
	case write:
		code = "uncertain"
	case !errors.Is(err, context.DeadlineExceeded):
		code = "not_ready"
	}
	return ErrorBody{Code: code, Message: err.Error()}, statuses[code]
}

// UnreachableError is returned by a Client when nobody answers at its address.
// errors.Is and errors.As see the cause.
type UnreachableError struct {
	Addr string
	// Sent says that the request may have reached the node.
	Sent bool
	Err  error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("no node answers at %s: %v", e.Addr, e.Err)
}

func (e *UnreachableError) Unwrap() error { return e.Err }
