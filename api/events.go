package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

const (
	// heartbeat keeps proxies from closing a quiet stream, moves the reader's
	// Last-Event-ID past events that its filter hid, and finds readers that are gone.
	heartbeat = 15 * time.Second
	// writeTimeout is how long a reader may take none of what is sent to it.
	writeTimeout = 30 * time.Second
	// eventBatch bounds what is put together before it is written.
	eventBatch = 512
)

// Resync is the data of a resync event: events up to the revision are gone from
// the memory of the cluster; read the state, which is at least as new, and go on.
type Resync struct {
	Revision uint64 `json:"revision"`
}

// events streams what happens as server-sent events. Every reader goes at its
// own pace through the replicated ring of events; one that falls out of it is
// told to resync.
func (c *call) events() (any, int, error) {
	matches, err := eventFilter(c.query["type"], c.query["key"])
	if err != nil {
		return nil, 0, err
	}
	at, err := c.eventsFrom()
	if err != nil {
		return nil, 0, err
	}
	wake, stop := c.node.Watch(fsm.AllTopic)
	defer stop()
	s := &stream{c: c, rc: http.NewResponseController(c.w), at: at, matches: matches}
	header := c.w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Accel-Buffering", "no")
	header.Set("X-Content-Type-Options", "nosniff")
	c.w.WriteHeader(http.StatusOK)
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	if !s.write([]byte(": events of miwnode\n\n")) {
		return nil, 0, nil
	}
	for {
		for more := true; more; {
			var ok bool
			if more, ok = s.advance(); !ok {
				return nil, 0, nil
			}
		}
		select {
		case <-wake:
		case <-beat.C:
			// An ID without data moves the reader's place and shows it nothing.
			if !s.write(fmt.Appendf(nil, ": still here\nid: %s\n\n", formatPosition(s.at.Revision, s.at.Position))) {
				return nil, 0, nil
			}
		case <-c.ctx.Done():
			// Hung up, or the timeout that the reader named: a clean end of the stream.
			return nil, 0, nil
		}
	}
}

// eventsFrom is the place after which the reader wants events: the last one it
// saw, a revision, or now.
func (c *call) eventsFrom() (fsm.EventID, error) {
	if last := c.r.Header.Get("Last-Event-ID"); last != "" {
		revision, position, ok := parsePosition(last)
		if !ok {
			return fsm.EventID{}, invalid("Last-Event-ID is %q: it must be REVISION.POSITION", last)
		}
		if !strings.Contains(last, ".") {
			return fsm.AfterRevision(revision), nil
		}
		return fsm.EventID{Revision: revision, Position: position}, nil
	}
	if _, given := c.query["since"]; !given {
		return fsm.AfterRevision(c.node.View().Revision()), nil
	}
	revision, err := c.uint("since")
	return fsm.AfterRevision(revision), err
}

// stream is one reader.
type stream struct {
	c       *call
	rc      *http.ResponseController
	at      fsm.EventID // the last event that was sent or passed over
	matches func(eventType, key string) bool
}

// advance sends one batch of what came since. more says that there is more at
// once, ok that the reader is still there.
func (s *stream) advance() (more, ok bool) {
	view := s.c.node.View()
	events, complete := view.Events(s.at)
	var out bytes.Buffer
	if !complete {
		s.at = fsm.AfterRevision(view.Revision())
		appendEvent(&out, formatPosition(view.Revision(), 0), "resync", Resync{Revision: view.Revision()})
		return false, s.write(out.Bytes())
	}
	n := 0
	for e := range events {
		if n == eventBatch {
			more = true
			break
		}
		n++
		s.at = e.ID
		if kind := e.Type.String(); s.matches(kind, e.Key) {
			appendEvent(&out, formatPosition(e.ID.Revision, e.ID.Position), kind, eventOf(e))
		}
	}
	return more, out.Len() == 0 || s.write(out.Bytes())
}

func (s *stream) write(b []byte) bool {
	_ = s.rc.SetWriteDeadline(time.Now().Add(writeTimeout)) // not every server has one; then TCP decides
	if _, err := s.c.w.Write(b); err != nil {
		return false
	}
	return s.rc.Flush() == nil
}

func appendEvent(out *bytes.Buffer, id, kind string, data any) {
	b, err := json.Marshal(data)
	if err != nil {
		b = []byte("{}") // strings and numbers always encode
	}
	fmt.Fprintf(out, "id: %s\nevent: %s\ndata: %s\n\n", id, kind, b)
}

func eventOf(e *fsm.Event) Event {
	event := Event{
		Revision: e.ID.Revision, Position: e.ID.Position, Type: e.Type.String(), At: stamp(e.At),
		Key: e.Key, Token: e.Token, InstanceID: e.Who.InstanceID, NodeID: e.Who.NodeID, Name: e.Who.Name,
		Reason: e.EndReason.String(), By: e.Note.By, Detail: e.Note.Reason, To: e.Note.To,
	}
	if w := e.Worker; w != nil {
		event.WorkerID, event.Name, event.Runtime, event.State = strings.TrimPrefix(e.Key, fsm.WorkerKey("")), w.Name, w.Runtime, w.State.String()
		event.StartRequested = w.StartRequested
		if w.Error != nil {
			event.Error = &WorkerError{Type: w.Error.Type, Message: w.Error.Message}
		}
	}
	switch e.Type {
	case fsm.EventLeaderChanged:
		event.Term = e.Note.Number
	case fsm.EventVersionRaised:
		event.Version = e.Note.Number
	case fsm.EventJobRecorded, fsm.EventGroupPlanned:
		event.Total = e.Note.Number
	case fsm.EventLeaseOverlap:
		event.Certain = Duration(e.Note.Number)
	}
	return event
}

// eventFilter understands ?type=, a type or a prefix with a star (several with
// commas), and ?key=.
func eventFilter(types, key string) (func(eventType, key string) bool, error) {
	var patterns []string
	if types != "" {
		patterns = strings.Split(types, ",")
	}
	for _, p := range patterns {
		if head, _ := strings.CutSuffix(p, "*"); p == "" || strings.Contains(head, "*") {
			return nil, invalid("type is %q: it must be an event type such as lease.granted, or a prefix such as lease.*", types)
		}
	}
	return func(eventType, eventKey string) bool {
		if key != "" && key != eventKey {
			return false
		}
		for _, p := range patterns {
			if head, star := strings.CutSuffix(p, "*"); p == eventType || star && strings.HasPrefix(eventType, head) {
				return true
			}
		}
		return len(patterns) == 0
	}, nil
}
