package node

import (
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
)

// A connection that this node closed is no fault of a peer; one that breaks is.
func TestRaftLogger_ClosedConnections(t *testing.T) {
	var out strings.Builder
	l := newRaftLogger(slog.New(slog.NewTextHandler(&out, nil)))
	l.Error("failed to decode incoming command", "error", &net.OpError{Op: "read", Net: "tcp", Err: net.ErrClosed})
	if out.Len() > 0 {
		t.Errorf("got %q", out.String())
	}
	l.Error("failed to decode incoming command", "error", errors.New("bad type"))
	if !strings.Contains(out.String(), `level=WARN msg="failed to decode incoming command" part=raft error="bad type"`) {
		t.Errorf("got %q", out.String())
	}
}
