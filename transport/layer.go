package transport

import (
	"context"
	"net"
	"sync"
	"time"
)

// layer hands the streams of one kind to raft or memberlist. There may be one after another, so that either can be restarted.
type layer struct {
	t        *Transport
	kind     Kind
	accepted chan net.Conn
	done     chan struct{}
	once     sync.Once
}

// newLayer makes the layer that takes all new streams of its kind from now on.
func (t *Transport) newLayer(kind Kind) *layer {
	l := &layer{t: t, kind: kind, accepted: make(chan net.Conn), done: make(chan struct{})}
	t.streams.mu.Lock()
	closed := t.streams.closed
	old := t.streams.layers[kind]
	if !closed {
		t.streams.layers[kind] = l
	}
	t.streams.mu.Unlock()
	if old != nil {
		old.close()
	}
	if closed {
		l.shut()
	}
	return l
}

// layerOf returns who takes new streams of the kind; nil = nobody.
func (t *Transport) layerOf(kind Kind) *layer {
	t.streams.mu.Lock()
	defer t.streams.mu.Unlock()
	return t.streams.layers[kind]
}

func (l *layer) isShut() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

func (l *layer) shut() { l.once.Do(func() { close(l.done) }) }

// close ends the layer and every stream that went through it, accepted or dialled. The Transport goes on.
func (l *layer) close() {
	l.shut()
	l.t.streams.mu.Lock()
	if l.t.streams.layers[l.kind] == l {
		delete(l.t.streams.layers, l.kind)
	}
	l.t.streams.mu.Unlock()
	l.t.closeStreams(func(s *stream) bool { return s.layer == l })
}

// offer hands an accepted stream over, or closes it if it is not taken in time.
func (l *layer) offer(s *stream, limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case l.accepted <- s:
	case <-l.done:
		_ = s.Close()
	case <-timer.C:
		_ = s.Close()
	}
}

// dial opens a stream of the layer's kind.
func (l *layer) dial(ctx context.Context, addr, want string) (net.Conn, error) {
	s, err := l.t.dial(ctx, l.kind, addr, want, l)
	if err != nil {
		return nil, err
	}
	return s, nil
}
