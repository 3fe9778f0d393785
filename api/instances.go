package api

import (
	"math"
	"net/http"
	"time"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/fsm/fsmpb"
)

func (c *call) instances() (any, int, error) {
	limit, err := c.limit()
	if err != nil {
		return nil, 0, err
	}
	var after fsm.EventID
	if s, given := c.query["after"]; given {
		var ok bool
		if after.Revision, after.Position, ok = parsePosition(s); !ok {
			return nil, 0, invalid("after is %q: it must be the next of an earlier answer", s)
		}
	}
	view, age, err := c.read()
	if err != nil {
		return nil, 0, err
	}
	answer := Instances{Revision: view.Revision(), Age: age, Instances: []Instance{}}
	var last fsm.EventID
	for s := range view.Instances() {
		at := fsm.EventID{Revision: s.Revision, Position: s.Position}
		if c.query["after"] != "" && !after.Less(at) {
			continue
		}
		if len(answer.Instances) == limit {
			answer.Next = formatPosition(last.Revision, last.Position)
			break
		}
		last = at
		answer.Instances = append(answer.Instances, instanceOf(s))
	}
	return answer, http.StatusOK, nil
}

func instanceOf(s *fsm.Session) Instance {
	return Instance{
		InstanceID: s.InstanceID, NodeID: s.NodeID, Name: s.Name,
		JoinedAt: stamp(s.At), JoinedRevision: s.Revision,
		Draining: s.Draining(), Cordoned: s.Cordoned(), Drain: markOf(s.Drain), Cordon: markOf(s.Cordon),
		Zone: s.Zone, Labels: labelsOf(s.Labels), Leases: s.LeaseCount(),
	}
}

func markOf(m *fsm.Mark) *Mark {
	if m == nil {
		return nil
	}
	return &Mark{Reason: m.Reason, By: m.By, At: stamp(m.At), ExpiresIn: Duration(m.ExpiresIn)}
}

// mark is drain, undrain, cordon or uncordon.
func mark(kind fsmpb.Mark) func(*call) (any, int, error) {
	return func(c *call) (any, int, error) {
		var req MarkRequest
		if err := decodeJSON(c.body, &req); err != nil {
			return nil, 0, err
		}
		expires, err := millis("expires_in", req.ExpiresIn, maxTimeout)
		if err != nil {
			return nil, 0, err
		}
		res, err := c.propose(&fsm.MarkInstance{
			InstanceId: c.r.PathValue("id"), Mark: kind, Reason: req.Reason, By: req.By, ExpiresInMs: expires,
		})
		if err != nil {
			return nil, 0, err
		}
		return Accepted{Revision: res.GetRevision()}, http.StatusAccepted, nil
	}
}

// millis turns a duration of a body into the state's milliseconds, rounded up.
func millis(name string, d Duration, most time.Duration) (int64, error) {
	if d < 0 || time.Duration(d) > most {
		return 0, invalid("%s is %v: it must lie between 0s and %v", name, d, most)
	}
	return int64(math.Ceil(float64(d) / float64(time.Millisecond))), nil
}

// labelsOf turns the state's sorted labels into an object.
func labelsOf(labels []fsm.Label) map[string]string {
	m := make(map[string]string, len(labels))
	for _, l := range labels {
		m[l.Key] = l.Value
	}
	return m
}
