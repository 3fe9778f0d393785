package api

import (
	"context"
	"net"
	"syscall"
	"time"
)

// hangUpLook is how often a call that waits looks whether its caller is there.
const hangUpLook = time.Second

type connKey struct{}

// ConnContext is to be the ConnContext of a server that [Handler] is mounted in.
// It lets a waiting acquire see that its caller has hung up after sending the
// beginning of a further request, where net/http itself looks no more. [Server]
// has it; it needs Linux.
func ConnContext(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

// hungUp tells whether the connection of a call was closed by its caller.
func hungUp(ctx context.Context) (gone bool) {
	conn, _ := ctx.Value(connKey{}).(net.Conn)
	if secured, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secured.NetConn()
	}
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) { gone = peerClosed(fd) })
	return err == nil && gone
}
