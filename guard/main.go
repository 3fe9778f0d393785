//go:build linux

package guard

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// roleVariable makes a process of this binary a guard, the watcher of one, or the shim of a command, at its call of Main.
const roleVariable = "MIW_GUARD_ROLE"

const (
	roleGuard   = "guard"
	roleShim    = "shim"
	roleWatcher = "watcher"
)

// Descriptors that a guard, a shim and a watcher start with.
const (
	guardControlFD = 3 // socket to the node
	guardNodeFD    = 4 // pidfd of the node
	guardFDs       = 5

	shimControlFD = 3 // socket to the guard
	shimCommandFD = 4 // memory with the command
	shimFDs       = 5

	watcherLineFD  = 3 // socket to the guard
	watcherGuardFD = 4 // pidfd of the guard
	watcherFDs     = 5
)

// mainCalled tells Start that this binary knows how to be a guard.
var mainCalled atomic.Bool

// Available tells whether this process can have a guard: nil, or why not, as an error that matches ErrNoMain (Main was not called
// in this process) or ErrUnsupported (the system has no guards).
func Available() error {
	if !mainCalled.Load() {
		return ErrNoMain
	}
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	switch err {
	case nil:
		unix.Close(fd)
	case unix.ENOSYS, unix.EPERM: // an old kernel; a filter of system calls
		return fmt.Errorf("%w: pidfd_open: %w", ErrUnsupported, err)
	}
	if _, err := readProc(os.Getpid()); err != nil {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return nil
}

// Main must be called first thing in main. In an ordinary process it returns at once. In a process that Start or a guard has
// started it does that process's work and never returns.
func Main() {
	mainCalled.Store(true)
	role := os.Getenv(roleVariable)
	if role == "" {
		return
	}
	os.Unsetenv(roleVariable)
	// A variable that leaked into an ordinary process makes no guard of it.
	switch {
	case role == roleGuard && isSocket(guardControlFD):
		os.Exit(guardMain())
	case role == roleShim && isSocket(shimControlFD):
		os.Exit(shimMain())
	case role == roleWatcher && isSocket(watcherLineFD):
		os.Exit(watcherMain())
	}
}

func isSocket(fd int) bool {
	family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	return err == nil && family == unix.AF_UNIX
}

// guardMain is the life of a guard process.
func guardMain() int {
	// Commands are tied to the thread that forks them (they die with it), so all forking is done from one that never ends.
	runtime.LockOSThread()
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(24 << 20)
	for _, fd := range []int{guardControlFD, guardNodeFD} {
		unix.CloseOnExec(fd)
	}
	closeInherited(guardFDs)
	w, err := newWarden()
	if err != nil {
		refuse(err)
		return 1
	}
	debug.FreeOSMemory()
	leaveImage()
	w.serve()
	return 0
}

// guardEnv is the environment of a guard: the node's, with a runtime that stays small.
func guardEnv(env []string) []string {
	return append(stripEnv(env, roleVariable, "GOGC", "GOMEMLIMIT", "GOMAXPROCS", "GODEBUG"),
		roleVariable+"="+roleGuard, "GOGC=50", "GOMEMLIMIT=24MiB", "GOMAXPROCS="+strconv.Itoa(min(2, runtime.NumCPU())))
}
