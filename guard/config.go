package guard

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"
)

// Defaults of Config.
const (
	DefaultStopBudget      = time.Second
	DefaultLeftoverTimeout = 5 * time.Second
)

// Exit codes, as shells give them.
const (
	CodeNotExecutable = 126
	CodeNotFound      = 127
	codeSignal        = 128
)

// Config says what a guard needs to know at its start. The zero value does for a guard without a folder.
type Config struct {
	// Dir is the node's data folder, which takes the files guard.lock and runs. "" keeps none: then nothing is left for a
	// later start to find, as suits a process that has no later start.
	Dir string
	// StopBudget is the time that what a command leaves behind has between TERM and KILL, where its Spec says nothing else.
	// Defaults to one second.
	StopBudget time.Duration
	// LeftoverTimeout bounds how long Start waits for what an earlier guard of Dir left. Defaults to five seconds.
	LeftoverTimeout time.Duration
	// Logger gets what the guard says while its owner lives. Nil discards.
	Logger *slog.Logger
	// Stderr is where the guard says what it did after its owner died, from the level up that Logger lets through, as JSON where
	// that has a *slog.JSONHandler, else as text. Without a Logger that is warnings and errors. Nil is os.Stderr.
	Stderr *os.File

	_ struct{}
}

func (c Config) withDefaults() Config {
	c.StopBudget = cmp.Or(c.StopBudget, DefaultStopBudget)
	c.LeftoverTimeout = cmp.Or(c.LeftoverTimeout, DefaultLeftoverTimeout)
	c.Stderr = cmp.Or(c.Stderr, os.Stderr)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate reports all faults at once, each naming the field and what would do.
func (c Config) Validate() error {
	var errs []error
	if c.StopBudget < 0 {
		errs = append(errs, fmt.Errorf("StopBudget: %v is negative; 0 means %v", c.StopBudget, DefaultStopBudget))
	}
	if c.LeftoverTimeout < 0 {
		errs = append(errs, fmt.Errorf("LeftoverTimeout: %v is negative; 0 means %v", c.LeftoverTimeout, DefaultLeftoverTimeout))
	}
	return errors.Join(errs...)
}

// Spec is a command to run.
type Spec struct {
	// Argv is the command and its arguments. A name without a slash is looked up in the PATH of Env.
	Argv []string
	// Env is the whole environment, as KEY=VALUE. Nil is this process's. MIW_RUN is added to it: by it the command and what it
	// starts are found again.
	Env []string
	// Dir is the working directory. "" is this process's.
	Dir string
	// Stdin, Stdout and Stderr become the command's. Nil is /dev/null. The caller keeps its ends and may close them once Spawn
	// has returned.
	Stdin, Stdout, Stderr *os.File
	// Key and Token name the lease that the command runs under. They stand in the record and in logs.
	Key   string
	Token uint64
	// StopBudget is the time between TERM and KILL for what the command leaves behind when it ends by itself, and of Stop
	// without one of its own. 0 takes Config's.
	StopBudget time.Duration

	_ struct{}
}

func (s Spec) validate() error {
	if len(s.Argv) == 0 || s.Argv[0] == "" {
		return errors.New("guard: Argv: names no command")
	}
	for _, list := range [][]string{s.Argv, s.Env, {s.Dir}} {
		for _, v := range list {
			if strings.IndexByte(v, 0) >= 0 {
				return fmt.Errorf("guard: %q contains a zero byte", v)
			}
		}
	}
	if s.StopBudget < 0 {
		return fmt.Errorf("guard: StopBudget: %v is negative", s.StopBudget)
	}
	return nil
}

// Feed says until when commands may run, and what to close if the node dies. Each Feed replaces the one before.
type Feed struct {
	// StopAt and KillAt are instants of CLOCK_BOOTTIME (see BootTime). At StopAt all commands get TERM and no more are
	// started; at KillAt they get KILL. A command that was told to stop is not spared by a later Feed, nor is one that
	// should have been: a Feed that is made after the StopAt of the one before is for new commands only.
	StopAt, KillAt time.Duration
	// Session is what to close when the node is dead. Nil closes nothing.
	Session *Session

	_ struct{}
}

func (f Feed) validate() error {
	if f.StopAt <= 0 || f.KillAt < f.StopAt {
		return fmt.Errorf("guard: StopAt %v and KillAt %v: want 0 < StopAt <= KillAt", f.StopAt, f.KillAt)
	}
	if f.Session != nil {
		return f.Session.validate()
	}
	return nil
}

// Reason says why a command ended.
type Reason string

// The reasons.
const (
	ReasonExited    Reason = "exited"     // by itself
	ReasonStopped   Reason = "stopped"    // Stop, or Close
	ReasonDeadline  Reason = "deadline"   // nobody fed the guard until StopAt
	ReasonGuardDied Reason = "guard_died" // the guard process ended; the node killed the command
)

// Status is how a command ended: all of it is gone.
type Status struct {
	Code   int            `json:"code"`             // its exit code; -1 if a signal ended it
	Signal syscall.Signal `json:"signal,omitempty"` // the signal that ended it; 0 if none did
	Reason Reason         `json:"reason"`
	Killed bool           `json:"killed,omitempty"` // KILL was needed for some of it
}

// ExitCode returns the code that a shell would give: the command's own, or 128+n if signal n ended it.
func (s Status) ExitCode() int {
	if s.Signal != 0 {
		return codeSignal + int(s.Signal)
	}
	return s.Code
}

// String says it in words.
func (s Status) String() string {
	if s.Signal != 0 {
		return fmt.Sprintf("%s, by signal %d (%s)", s.Reason, int(s.Signal), s.Signal)
	}
	return fmt.Sprintf("%s, code %d", s.Reason, s.Code)
}

// ExitCode returns what a shell would give for an error of Spawn: 126 or 127 where the command is to blame, 1 for every
// other error, 0 for nil.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*StartError](err); ok {
		return e.Code
	}
	return 1
}

// Leftover is something of an earlier start that Leftovers could not end, or can't prove to be gone.
type Leftover struct {
	PID    int    // a process; 0 if it is a group or a guard of another pid namespace
	PGID   int    // its group, as recorded
	Key    string // of the lease it ran under, if it was recorded
	Token  uint64
	Reason string // a sentence
}

// String names the process and the reason.
func (l Leftover) String() string {
	switch {
	case l.Key != "":
		return fmt.Sprintf("command of %q (group %d): %s", l.Key, l.PGID, l.Reason)
	case l.PID != 0:
		return fmt.Sprintf("process %d: %s", l.PID, l.Reason)
	}
	return l.Reason
}
