package api

import (
	"errors"
	"net/http"

	"github.com/miwnode/miwnode/fsm"
)

func (c *call) leases() (any, int, error) {
	limit, err := c.limit()
	if err != nil {
		return nil, 0, err
	}
	key, one := c.query["key"]
	prefix, many := c.query["prefix"]
	if one && many {
		return nil, 0, invalid("give key or prefix, not both")
	}
	view, age, err := c.read()
	if err != nil {
		return nil, 0, err
	}
	answer := Leases{Revision: view.Revision(), Age: age, Leases: []Lease{}}
	if one {
		if l, ok := view.Lease(key); ok {
			answer.Leases = append(answer.Leases, leaseOf(view, l))
		}
		return answer, http.StatusOK, nil
	}
	for l := range view.Leases(prefix, c.query["after"]) {
		if len(answer.Leases) == limit {
			answer.Next = answer.Leases[limit-1].Key
			break
		}
		answer.Leases = append(answer.Leases, leaseOf(view, l))
	}
	return answer, http.StatusOK, nil
}

func leaseOf(view *fsm.View, l *fsm.Lease) Lease {
	lease := Lease{
		Key: l.Key, Token: l.Token, AcquiredAt: stamp(l.AcquiredAt), AcquiredRevision: l.AcquiredRevision,
		State: l.State.String(), Waiters: view.WaiterCount(l.Key), Group: l.Group, Stuck: stuckOf(l.Stuck),
	}
	if l.Note != nil {
		lease.Successor, lease.By, lease.Reason = l.Note.To, l.Note.By, l.Note.Reason
	}
	if l.State != fsm.Barred {
		lease.Holder = &Holder{Name: l.Who.Name, InstanceID: l.Who.InstanceID, NodeID: l.Who.NodeID, Who: l.Holder}
		if s, ok := view.Session(l.SessionID); ok {
			lease.TTL = Duration(s.TTL)
		}
	}
	return lease
}

// release gives a lease back by its token.
func (c *call) release() (any, int, error) {
	var req ReleaseRequest
	if err := decodeJSON(c.body, &req); err != nil {
		return nil, 0, err
	}
	return c.done(http.StatusOK, &fsm.Release{Key: req.Key, Token: req.Token, SessionId: req.SessionID, Failure: req.Failure})
}

// transfer asks the holder to hand the lease to a waiter of another instance.
func (c *call) transfer() (any, int, error) {
	var req TransferRequest
	if err := decodeJSON(c.body, &req); err != nil {
		return nil, 0, err
	}
	return c.done(http.StatusAccepted, &fsm.Transfer{Key: req.Key, Token: req.Token, ToInstance: req.To, By: req.By, Reason: req.Reason})
}

// revoke takes a lease from whoever holds it: the holder stops by then.
func (c *call) revoke() (any, int, error) {
	var req RevokeRequest
	if err := decodeJSON(c.body, &req); err != nil {
		return nil, 0, err
	}
	return c.done(http.StatusAccepted, &fsm.Revoke{Key: req.Key, Token: req.Token, Reason: req.Reason, By: req.By})
}

func (c *call) done(status int, op fsm.Op) (any, int, error) {
	res, err := c.propose(op)
	if err != nil {
		return nil, 0, err
	}
	return Accepted{Revision: res.GetRevision()}, status, nil
}

// heldBy puts the present holder, as lists show it, into a refusal.
func heldBy(view *fsm.View, err error) error {
	var e *fsm.Error
	if !errors.As(err, &e) || e.Code != fsm.CodeLeaseHeld {
		return err
	}
	record, ok := e.Detail.(*fsm.LeaseRecord)
	if !ok {
		return err
	}
	return &fsm.Error{Code: e.Code, Message: e.Message, Detail: leaseOf(view, fsm.LeaseOf(record))}
}
