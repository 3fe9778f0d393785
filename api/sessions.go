package api

import (
	"crypto/rand"
	"encoding/hex"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/fsm/fsmpb"
)

// openSession opens a session for a client. Its ID is a secret of 128 random
// bits: whoever knows it acts for the session.
func (c *call) openSession() (any, int, error) {
	var req OpenSessionRequest
	if err := decodeJSON(c.body, &req); err != nil {
		return nil, 0, err
	}
	most := c.node.View().Cluster().MaxSessionTTL
	if req.TTL == 0 {
		return nil, 0, invalid(`ttl is missing: give a duration such as "10s", from %v to %v`, fsm.MinSessionTTL, most)
	}
	if d := time.Duration(req.TTL); d < fsm.MinSessionTTL || d > most {
		return nil, 0, invalid("ttl is %v: it must lie between %v and %v", d, fsm.MinSessionTTL, most)
	}
	ttl, err := millis("ttl", req.TTL, most)
	if err != nil {
		return nil, 0, err
	}
	op := &fsm.OpenSession{SessionId: newSessionID(), TtlMs: ttl, Name: req.Name, ViaNodeId: c.node.ID()}
	for _, k := range slices.Sorted(maps.Keys(req.Labels)) {
		op.Labels = append(op.Labels, &fsmpb.Label{Key: k, Value: req.Labels[k]})
	}
	if req.Instance {
		op.InstanceId = "http:" + cmpOr(req.Name, "session") + ":" + uuid.NewString()
	}
	res, err := c.propose(op)
	if err != nil {
		return nil, 0, err
	}
	answer := Session{
		Revision: res.GetRevision(), SessionID: op.SessionId, InstanceID: op.InstanceId, TTL: Duration(ttl) * Duration(time.Millisecond),
	}
	// A repeat under the same Idempotency-Key is answered with the first one's session.
	if first := res.GetSessionId(); first != "" && first != op.SessionId {
		s, live := c.node.View().Session(first)
		if !live {
			return nil, 0, fsm.Errorf(fsm.CodeSessionExpired, "the session that this Idempotency-Key opened is gone")
		}
		answer.SessionID, answer.InstanceID = s.ID, s.InstanceID
	}
	answer.TrustedFor = Duration(c.node.TrustedFor(time.Duration(answer.TTL)))
	return answer, http.StatusCreated, nil
}

func newSessionID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: it ends the process instead
	return hex.EncodeToString(b[:])
}

// keepAlive renews a session; the answer lists what it holds.
func (c *call) keepAlive() (any, int, error) {
	if err := decodeJSON(c.body, &struct{}{}); err != nil {
		return nil, 0, err
	}
	ka, err := c.node.KeepAlive(c.ctx, c.r.PathValue("id"))
	if err != nil {
		return nil, 0, err
	}
	answer := KeptAlive{Revision: ka.Revision, TTL: Duration(ka.TTL), TrustedFor: Duration(ka.TrustedFor), Leases: []KeptLease{}}
	for _, l := range ka.Leases {
		kept := KeptLease{Key: l.Key, Token: l.Token, State: l.State.String(), Group: l.Group}
		if l.Group != "" {
			kept.Workload = strings.TrimPrefix(l.Key, fsm.WorkloadKey(l.Group, ""))
		}
		answer.Leases = append(answer.Leases, kept)
	}
	return answer, http.StatusOK, nil
}

// closeSession ends a session and frees its leases.
func (c *call) closeSession() (any, int, error) {
	if err := decodeJSON(c.body, &struct{}{}); err != nil {
		return nil, 0, err
	}
	if _, err := c.propose(&fsm.CloseSession{SessionId: c.r.PathValue("id"), Reason: fsm.CloseClosed}); err != nil {
		return nil, 0, err
	}
	return nil, http.StatusNoContent, nil
}
