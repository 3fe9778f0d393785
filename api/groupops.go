package api

import (
	"net/http"
	"slices"

	"github.com/miwnode/miwnode/fsm"
)

// joinGroup makes the instance of a session a member: it is granted workloads,
// which its keep-alives list.
func (c *call) joinGroup() (any, int, error) {
	var req JoinRequest
	if err := decodeJSON(c.body, &req); err != nil {
		return nil, 0, err
	}
	op := &fsm.JoinGroup{Group: c.r.PathValue("name"), SessionId: req.SessionID, Capacity: req.Capacity, All: req.Workloads == nil}
	if req.Workloads != nil {
		if len(req.Workloads) == 0 {
			return nil, 0, invalid("workloads is an empty list: name what the session can run, or leave it out for all")
		}
		op.Keys = slices.Sorted(slices.Values(req.Workloads))
		for i := 1; i < len(op.Keys); i++ {
			if op.Keys[i] == op.Keys[i-1] {
				return nil, 0, invalid("workloads has %q twice", op.Keys[i])
			}
		}
	}
	res, err := c.propose(op)
	if err != nil {
		return nil, 0, err
	}
	answer := Joined{Revision: res.GetRevision()}
	if s, live := c.node.View().Session(req.SessionID); live {
		answer.InstanceID = s.InstanceID
	}
	return answer, http.StatusOK, nil
}

// leaveGroup takes the instance out; what it has of the group it must stop and release.
func (c *call) leaveGroup() (any, int, error) {
	var req LeaveRequest
	if err := decodeJSON(c.body, &req); err != nil {
		return nil, 0, err
	}
	return c.done(http.StatusOK, &fsm.LeaveGroup{Group: c.r.PathValue("name"), SessionId: req.SessionID})
}

// deleteGroup forgets a group that has no members.
func (c *call) deleteGroup() (any, int, error) {
	var req DeleteGroupRequest
	if err := decodeJSON(c.body, &req); err != nil {
		return nil, 0, err
	}
	return c.done(http.StatusOK, &fsm.DeleteGroup{Group: c.r.PathValue("name"), By: req.By})
}

// steer is one of the calls by which an operator decides about a workload.
func steer(make func(group string, req SteerRequest, expires int64) (fsm.Op, error)) func(*call) (any, int, error) {
	return func(c *call) (any, int, error) {
		var req SteerRequest
		if err := decodeJSON(c.body, &req); err != nil {
			return nil, 0, err
		}
		expires, err := millis("expires_in", req.ExpiresIn, maxTimeout)
		if err != nil {
			return nil, 0, err
		}
		op, err := make(c.r.PathValue("name"), req, expires)
		if err != nil {
			return nil, 0, err
		}
		return c.done(http.StatusAccepted, op)
	}
}

func moveOp(group string, req SteerRequest, _ int64) (fsm.Op, error) {
	if req.ExpiresIn != 0 {
		return nil, invalid("expires_in: a move is made once, pin it to keep it there")
	}
	if req.To == "" {
		return nil, errNoTarget
	}
	return &fsm.MoveWorkload{Group: group, Workload: req.Workload, ToInstance: req.To, By: req.By, Reason: req.Reason}, nil
}

func pinOp(group string, req SteerRequest, expires int64) (fsm.Op, error) {
	if req.To == "" {
		return nil, errNoTarget
	}
	return &fsm.SetPin{Group: group, Workload: req.Workload, InstanceId: req.To, By: req.By, Reason: req.Reason, ExpiresInMs: expires}, nil
}

func unpinOp(group string, req SteerRequest, expires int64) (fsm.Op, error) {
	if req.To != "" {
		return nil, errTarget
	}
	return &fsm.SetPin{Group: group, Workload: req.Workload, By: req.By, Reason: req.Reason, ExpiresInMs: expires}, nil
}

func pauseOp(group string, req SteerRequest, expires int64) (fsm.Op, error) {
	if req.To != "" {
		return nil, errTarget
	}
	return &fsm.SetPause{Group: group, Workload: req.Workload, Paused: true, By: req.By, Reason: req.Reason, ExpiresInMs: expires}, nil
}

func resumeOp(group string, req SteerRequest, expires int64) (fsm.Op, error) {
	if req.To != "" {
		return nil, errTarget
	}
	return &fsm.SetPause{Group: group, Workload: req.Workload, By: req.By, Reason: req.Reason, ExpiresInMs: expires}, nil
}

var (
	errNoTarget = invalid("to is missing: name an instance")
	errTarget   = invalid("to is for move and pin")
)
