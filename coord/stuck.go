package coord

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"time"
)

// ExitCode is what the process ends with under PolicyExit: the lease was lost
// (EX_TEMPFAIL: a supervisor may start it again).
const ExitCode = 75

// Policy says what happens to work that does not return when it must.
type Policy uint8

// Policies.
const (
	// PolicyDefault is PolicyHold for work whose lease is kept and PolicyExit
	// for a run whose lease is lost.
	PolicyDefault Policy = iota
	// PolicyHold keeps the session alive and waits for the work, for ever: it
	// starts nowhere else meanwhile. Only for work whose lease is kept.
	PolicyHold
	// PolicyExit ends the process with ExitCode: nothing else can stop a
	// goroutine.
	PolicyExit
	// PolicyReport says that the work is stuck and leaves it running. Only for
	// work whose lease is lost. It costs the exclusion: another instance gets
	// the key while the stuck run goes on, and only fencing tokens protect
	// what both write to.
	PolicyReport
)

func (p Policy) String() string {
	switch p {
	case PolicyDefault:
		return "default"
	case PolicyHold:
		return "hold"
	case PolicyExit:
		return "exit"
	case PolicyReport:
		return "report"
	}
	return fmt.Sprintf("policy_%d", uint8(p))
}

// StuckConfig says what happens to work that does not return when it must.
// Whatever it says, stuck work is reported: in the log, by Hooks.Stuck, and to
// the node, with the stack and the age of the run.
type StuckConfig struct {
	// WhileHeld is for work that was told to stop while its lease is kept (a
	// drain, a shutdown, a transfer) and has not returned within the kill
	// timeout: PolicyHold (the default) or PolicyExit.
	WhileHeld Policy
	// WhenLost is for work that has not returned when its lease may pass on
	// (T - M after the last confirmed keep-alive was sent): PolicyExit (the
	// default) or PolicyReport.
	WhenLost Policy
	// Exit ends the process. Defaults to os.Exit after a line on standard error
	// that says why, or to the method Exit(code int) of a Cluster that has one: a
	// double whose process is simulated.
	Exit func(code int)

	// farewell takes the line that says why the process ends; nil with an Exit
	// of somebody's own.
	farewell io.Writer
}

// Validate reports every fault of s at once.
func (s StuckConfig) Validate() error {
	var errs []error
	switch s.WhileHeld {
	case PolicyDefault, PolicyHold, PolicyExit:
	default:
		errs = append(errs, fmt.Errorf("Stuck.WhileHeld is %v: %v or %v would do (held work is reported under both)", s.WhileHeld, PolicyHold, PolicyExit))
	}
	switch s.WhenLost {
	case PolicyDefault, PolicyExit, PolicyReport:
	default:
		errs = append(errs, fmt.Errorf("Stuck.WhenLost is %v: %v or %v would do (a lost session can't be held)", s.WhenLost, PolicyExit, PolicyReport))
	}
	return errors.Join(errs...)
}

// exiter is a Cluster that stands for a process of its own.
type exiter interface{ Exit(code int) }

func (s StuckConfig) withDefaults(c Cluster, whenLost Policy) StuckConfig {
	if s.WhileHeld == PolicyDefault {
		s.WhileHeld = PolicyHold
	}
	if s.WhenLost == PolicyDefault {
		s.WhenLost = whenLost
	}
	if s.Exit == nil {
		s.Exit, s.farewell = os.Exit, os.Stderr
		if p, ok := c.(exiter); ok {
			s.Exit, s.farewell = p.Exit, nil
		}
	}
	return s
}

// StuckRun describes work that did not return in time.
type StuckRun struct {
	Key   string
	Token uint64
	Cause error         // why it must stop
	Age   time.Duration // since it was told to
	Stack string        // where it hangs
	Lost  bool          // the lease is lost: somebody else may hold it now
	// HeldUp is for how long the whole process did not run just before (it was
	// stopped, suspended or starved): the work had no time to return. 0: it ran,
	// or nobody knows.
	HeldUp time.Duration
}

// holdUps is a Cluster that knows for how long its process did not run.
type holdUps interface{ HeldUp() time.Duration }

// farewell says why the process ends with the run in it.
func (r StuckRun) farewell() string {
	before := ""
	if r.HeldUp > 0 {
		before = fmt.Sprintf("; the process had been stopped or starved for %v before", r.HeldUp)
	}
	return fmt.Sprintf("ending the process with code %d: the work of %q (token %d) did not return within %v of being told to stop (%v), and nothing else can stop it%s",
		ExitCode, r.Key, r.Token, r.Age, r.Cause, before)
}

// attrs are what the log says of it.
func (r StuckRun) attrs() []slog.Attr {
	all := []slog.Attr{slog.Uint64("token", r.Token), slog.Any("cause", r.Cause), slog.Duration("age", r.Age)}
	if r.HeldUp > 0 {
		all = append(all, slog.Duration("held_up", r.HeldUp))
	}
	return all
}

// goid is the number of the calling goroutine, as stack dumps name it; "" when
// the runtime no longer says it. It is used to find a stack, nothing else.
func goid() string {
	var buf [64]byte
	head := buf[:runtime.Stack(buf[:], false)]
	_, rest, _ := bytes.Cut(head, []byte("goroutine "))
	id, _, ok := bytes.Cut(rest, []byte(" "))
	if !ok {
		return ""
	}
	return string(id)
}

// maxDump bounds a dump of all stacks, during which nothing else runs: about a
// thousand goroutines, in a few milliseconds.
const maxDump = 1 << 20

// stackOf finds the stack of a goroutine in a dump of all.
func stackOf(id string) string {
	if id == "" {
		return "(stack unknown)"
	}
	buf := make([]byte, maxDump)
	dump := string(buf[:runtime.Stack(buf, true)])
	for one := range strings.SplitSeq(dump, "\n\n") {
		if strings.HasPrefix(one, "goroutine "+id+" ") {
			return strings.TrimSpace(one)
		}
	}
	return "(stack of goroutine " + id + " is not within the first MiB of all stacks)"
}

// callers formats where a handle was acquired.
func callers(pcs []uintptr) string {
	var b strings.Builder
	b.WriteString("held by a lease of coord.Acquire, acquired at\n")
	for frames := runtime.CallersFrames(pcs); ; {
		f, more := frames.Next()
		fmt.Fprintf(&b, "%s\n\t%s:%d\n", f.Function, f.File, f.Line)
		if !more {
			return strings.TrimSpace(b.String())
		}
	}
}
