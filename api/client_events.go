package api

import (
	"bufio"
	"context"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// StreamEvent is one server-sent event.
type StreamEvent struct {
	ID   string // REVISION.POSITION
	Type string
	Data []byte // JSON: an Event, or a Resync for the type resync
}

// silence is how long a stream may say nothing, its heartbeats included,
// before its node is held to be gone.
const silence = 3 * heartbeat

// maxEvent bounds a line of a stream.
const maxEvent = 1 << 20

// Events follows GET /v1/events with the query's since, type and key and hands
// each event to each until it returns false or ctx ends. A broken stream is
// taken up after the last event; when no node answers for the patience, Events
// returns the *UnreachableError.
func (c *Client) Events(ctx context.Context, query url.Values, patience time.Duration, each func(StreamEvent) bool) error {
	s := &subscription{c: c, query: query, each: each}
	broken := time.Time{}
	for {
		before := s.received
		done, err := s.read(ctx)
		if done || ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if _, refused := errors.AsType[*fsm.Error](err); refused && fsm.CodeOf(err) != fsm.CodeNotReady && fsm.CodeOf(err) != fsm.CodeClosing {
			return err
		}
		if s.received > before || broken.IsZero() {
			broken = time.Now()
		}
		if time.Since(broken) > patience {
			return err
		}
		pause := time.NewTimer(50*time.Millisecond + rand.N(100*time.Millisecond))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return context.Cause(ctx)
		}
	}
}

// PastEvents returns the events that the node has for the query's since, type
// and key; without since there are none.
func (c *Client) PastEvents(ctx context.Context, query url.Values) ([]StreamEvent, error) {
	var all []StreamEvent
	past := maps.Clone(query)
	past.Set("timeout", time.Millisecond.String()) // the stream ends once all that there is has been sent
	s := &subscription{c: c, query: past, each: func(e StreamEvent) bool {
		all = append(all, e)
		return true
	}}
	if _, err := s.read(ctx); !errors.Is(err, errStreamEnded) {
		return nil, err
	}
	return all, nil
}

// errStreamEnded is the error of a stream that its node has ended.
var errStreamEnded = errors.New("the stream of events has ended")

type subscription struct {
	c        *Client
	query    url.Values
	each     func(StreamEvent) bool
	last     string // ID of the last event
	received int    // lines of all streams so far
}

// read reads one stream to its end; done says that the caller wants no more.
func (s *subscription) read(ctx context.Context) (done bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req := Request{Method: http.MethodGet, Path: "/v1/events", Query: s.query, lastEventID: s.last}
	quiet := time.AfterFunc(silence, cancel)
	defer quiet.Stop()
	resp, err := s.c.send(ctx, req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxBody))
		return false, refusalOf(resp, raw)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 4096), maxEvent)
	var e StreamEvent
	for lines.Scan() {
		quiet.Reset(silence)
		s.received++
		name, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case lines.Text() == "":
			if e.ID != "" {
				s.last = e.ID
			}
			if e.Data != nil && !s.each(e) {
				return true, nil
			}
			e = StreamEvent{}
		case name == "id":
			e.ID = value
		case name == "event":
			e.Type = value
		case name == "data":
			e.Data = append(e.Data, value...)
		}
	}
	err = lines.Err()
	if err == nil {
		err = errStreamEnded
	}
	return false, &UnreachableError{Addr: s.c.addr, Sent: true, Err: err}
}
