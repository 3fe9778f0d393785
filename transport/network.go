package transport

import (
	"context"
	"errors"
	"net"
)

// DefaultPort is the port of a name that gives none.
const DefaultPort = "7400"

// Network is what a Transport needs of the world: a stream listener and a packet socket on one port number, dialling,
// and names. OS is the real one; package memnet has one in memory.
type Network interface {
	// Listen binds a stream listener and a packet socket on one port number. Port 0 chooses one that is free for both.
	Listen(addr string) (net.Listener, net.PacketConn, error)
	// DialContext opens a stream to host:port.
	DialContext(ctx context.Context, addr string) (net.Conn, error)
	// Lookup turns a host:port, a name (DefaultPort) or "srv:NAME" into addresses of the form ip:port.
	Lookup(ctx context.Context, name string) ([]string, error)
}

// OS returns the network of the operating system.
func OS() Network { return osNetwork{} }

type osNetwork struct{}

func (osNetwork) Listen(string) (net.Listener, net.PacketConn, error) {
	return nil, nil, errors.ErrUnsupported
}

func (osNetwork) DialContext(context.Context, string) (net.Conn, error) {
	return nil, errors.ErrUnsupported
}
func (osNetwork) Lookup(context.Context, string) ([]string, error) { return nil, errors.ErrUnsupported }
