package transport

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// control limits how long a TCP connection waits for acknowledgements. Where the kernel refuses, its own limit stays.
func control(network, _ string, c syscall.RawConn) error {
	switch network {
	case "tcp", "tcp4", "tcp6":
	default:
		return nil
	}
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
	})
}
