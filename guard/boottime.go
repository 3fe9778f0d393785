//go:build linux

package guard

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// BootTime returns the time on CLOCK_BOOTTIME: since the start of the machine, suspends included. Feed's instants are on it.
func BootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("guard: CLOCK_BOOTTIME: " + err.Error()) // in the kernel since 2.6.39; nothing here holds without it
	}
	return time.Duration(ts.Nano())
}

// alarm is a timer on CLOCK_BOOTTIME: it fires at once after a suspend that went past its instant.
type alarm struct{ fd int }

func newAlarm() (alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return alarm{}, fmt.Errorf("make timer: %w", err)
	}
	return alarm{fd}, nil
}

// set makes the alarm's fd readable at the instant; 0 is never.
func (a alarm) set(at time.Duration) error {
	var spec unix.ItimerSpec
	if at > 0 {
		spec.Value = unix.NsecToTimespec(int64(at))
	}
	return unix.TimerfdSettime(a.fd, unix.TFD_TIMER_ABSTIME, &spec, nil)
}

// kernelBoot returns the identity of this run of the kernel.
func kernelBoot() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read kernel boot ID: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
