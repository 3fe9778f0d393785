package guard

import (
	"errors"
	"fmt"
)

// ErrUnsupported is returned by Start and Leftovers on systems without guards: everything but Linux.
var ErrUnsupported = errors.New("guard processes need Linux 5.3 or newer, with /proc")

// ErrNoMain is matched by the error of Start when the binary does not answer as a guard: its main does not call Main first.
var ErrNoMain = errors.New("the program does not call guard.Main first thing in main")

// ErrFolderInUse is matched by the error of Start when a guard of another process holds the folder.
var ErrFolderInUse = errors.New("folder is held by another guard")

// ErrClosed is returned by every call on a Guard whose Close has begun.
var ErrClosed = errors.New("guard is closed")

// ErrNotFed is returned by Spawn when no Feed allows a command to run now: none was given, or its StopAt has passed.
var ErrNotFed = errors.New("no lease allows a command to run now")

// ErrGuardDied is returned by Spawn when the guard process ended before the command was started; another is on its way.
var ErrGuardDied = errors.New("guard process died")

// ErrNotFound is matched by the error of Spawn when there is no such command.
var ErrNotFound = errors.New("command not found")

// ErrNotExecutable is matched by the error of Spawn when the command exists but can't be run.
var ErrNotExecutable = errors.New("command not executable")

// ErrRecord is matched by the error of Spawn when the command's record could not be brought to disk.
var ErrRecord = errors.New("run could not be recorded")

// StartError is returned by Spawn when the system refused to run the command.
type StartError struct {
	Command string
	Code    int // 126 or 127, as a shell says it
	Reason  string
}

// Error names the command and the reason.
func (e *StartError) Error() string { return fmt.Sprintf("run %q: %s", e.Command, e.Reason) }

// Is matches ErrNotFound or ErrNotExecutable.
func (e *StartError) Is(target error) bool {
	return target == ErrNotFound && e.Code == CodeNotFound || target == ErrNotExecutable && e.Code == CodeNotExecutable
}
