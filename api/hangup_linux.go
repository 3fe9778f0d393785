package api

import "golang.org/x/sys/unix"

// peerClosed tells whether nothing more will come on a socket but what has
// arrived and was not read.
func peerClosed(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return err == nil && n == 1 && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
}
