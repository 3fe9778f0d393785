package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/fsm"
)

// Exit codes.
const (
	exitFailed        = 1
	exitUsage         = 2
	exitUnreachable   = 69 // no quorum, or no node
	exitLeaseLost     = 75
	exitWaitTimeout   = 124
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignal        = 128
)

// exitError carries an exit code. Without an err it says nothing.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usage is a fault of the command line.
func usage(cmd *cobra.Command, format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format+"; see %s --help", append(args, cmd.CommandPath())...)}
}

// codeOf is the exit code of an error.
func codeOf(err error) int {
	if exit, ok := errors.AsType[*exitError](err); ok {
		return exit.code
	}
	if _, ok := errors.AsType[*api.UnreachableError](err); ok {
		return exitUnreachable
	}
	switch fsm.CodeOf(err) {
	case fsm.CodeNoQuorum, fsm.CodeNotReady, fsm.CodeClosing, fsm.CodeUncertain:
		return exitUnreachable
	case fsm.CodeInvalidArgument:
		return exitUsage
	case fsm.CodeWaitTimeout:
		return exitWaitTimeout
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return exitUnreachable
	}
	return exitFailed
}

// report writes an error as one line (one for each where several were joined):
// what, why and what to do. It returns the exit code.
func (a *app) report(cmd *cobra.Command, err error) int {
	code := codeOf(err)
	if exit, ok := errors.AsType[*exitError](err); ok && exit.err == nil {
		return code
	}
	for _, e := range flatten(err) {
		line := strings.Join(strings.Fields(words(e)), " ")
		if hint := hintOf(e); hint != "" && !(cmd.Name() == "status" && fsm.CodeOf(e) == fsm.CodeNotReady) { // it would send to itself
			line += "; " + hint
		}
		fmt.Fprintf(a.stderr, "%s: %s\n", cmd.CommandPath(), line)
	}
	return code
}

// words says a refusal's code as a person would: no quorum, not no_quorum.
func words(err error) string {
	text := err.Error()
	if refusal, ok := errors.AsType[*fsm.Error](err); ok {
		name := refusal.Code.String()
		text = strings.Replace(text, name, strings.ReplaceAll(name, "_", " "), 1)
	}
	if strings.Contains(text, "HTTP request to an HTTPS server") {
		return "the node speaks TLS: use https:// in --addr, and --tls-ca for its authority"
	}
	return text
}

// flagFault says a flag that can't be read as a person would.
func flagFault(cmd *cobra.Command, err error) error {
	m := unreadable.FindStringSubmatch(err.Error())
	if m == nil {
		return usage(cmd, "%v", err)
	}
	must := "it can't be read"
	if f := cmd.Flag(m[2]); f != nil {
		switch f.Value.Type() {
		case "duration":
			must = "it must be a duration such as 10s"
		case "int", "int64", "uint64", "uint":
			must = "it must be a whole number"
		case "number":
			must = "it must be a whole number from 1"
		case "bool":
			must = "it must be true or false"
		}
	}
	return usage(cmd, "--%s is %s: %s", m[2], m[1], must)
}

// unreadable is how cobra says that a flag's value is of the wrong kind.
var unreadable = regexp.MustCompile(`^invalid argument (".*") for "(?:-., )?--([a-z-]+)" flag: `)

// flatten returns the errors that errors.Join put together, or err itself.
func flatten(err error) []error {
	if exit, ok := err.(*exitError); ok && exit.err != nil { //nolint:errorlint // the wrapper itself is looked through
		return flatten(exit.err)
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range joined.Unwrap() {
			all = append(all, flatten(e)...)
		}
		return all
	}
	return []error{err}
}

// hintOf is what to do about an error.
func hintOf(err error) string {
	if un, ok := errors.AsType[*api.UnreachableError](err); ok {
		if errors.Is(err, context.DeadlineExceeded) {
			return "the node is there but does not answer in time: raise --timeout or look at its log"
		}
		if _, is := errors.AsType[*tls.CertificateVerificationError](err); is {
			return "name the authority that signed its certificate with --tls-ca, and the host by a name in the certificate"
		}
		if errors.Is(err, http.ErrSchemeMismatch) {
			return "the node speaks no TLS: use http://"
		}
		if strings.Contains(un.Addr, "://") {
			return "check --addr and that the node runs"
		}
		return "start a node here with miwnode start, or name one with --data-dir or --addr"
	}
	if strings.Contains(err.Error(), "this node ID") {
		return "" // another process goes by the ID of the node, and what to do is said
	}
	switch fsm.CodeOf(err) {
	case fsm.CodeNoQuorum:
		if strings.Contains(err.Error(), "found") { // one that is yet to be founded
			return ""
		}
		return "bring back a majority of the voters (miwnode members shows them)"
	case fsm.CodeNotReady:
		return "wait until miwnode status says ready, or ask another node with --addr"
	case fsm.CodeClosing:
		return "ask another node with --addr"
	case fsm.CodeUncertain:
		return "look whether it happened before you repeat it"
	case fsm.CodeUnauthenticated:
		return "give the node's token with --api-token-file"
	case fsm.CodeOverloaded:
		return "try again later"
	}
	return ""
}
