package api

import (
	"net/http"
	"time"
)

func (c *call) status() (any, int, error) {
	view, age, err := c.read()
	if err != nil {
		return nil, 0, err
	}
	s := c.node.Status()
	return Status{
		Revision: view.Revision(), Age: age,
		NodeID: s.NodeID, InstanceID: s.InstanceID, Boot: s.Boot,
		ClusterID: s.ClusterID, Generation: s.Generation, Version: s.Version,
		Role: string(s.Role), LeaderID: s.LeaderID, Term: s.Term,
		CommitIndex: s.CommitIndex, AppliedIndex: s.AppliedIndex,
		Ready: s.Ready, ReadyReason: s.ReadyReason, Draining: s.Draining,
		Quorum: Quorum{Voters: s.Quorum.Voters, Alive: s.Quorum.Alive, OK: s.Quorum.OK},
	}, http.StatusOK, nil
}

func (c *call) members() (any, int, error) {
	limit, err := c.limit()
	if err != nil {
		return nil, 0, err
	}
	view, age, err := c.read()
	if err != nil {
		return nil, 0, err
	}
	answer := Members{Revision: view.Revision(), Age: age, Members: []Member{}}
	for _, m := range c.node.Members() {
		if m.NodeID <= c.query["after"] && c.query["after"] != "" {
			continue
		}
		if len(answer.Members) == limit {
			answer.Next = answer.Members[limit-1].NodeID
			break
		}
		member := Member{
			NodeID: m.NodeID, Addr: m.Addr, APIAddr: m.APIAddr, Zone: m.Zone, Labels: m.Labels,
			Voter: m.Voter, Leader: m.Leader, Gossip: m.Gossip, Version: m.Version,
		}
		if m.LastContact >= 0 {
			d := Duration(m.LastContact.Round(time.Millisecond))
			member.LastContact = &d
		}
		if member.Labels == nil {
			member.Labels = map[string]string{}
		}
		answer.Members = append(answer.Members, member)
	}
	return answer, http.StatusOK, nil
}

// stepDown hands raft's leadership over, to the node named or to whoever is furthest.
func (c *call) stepDown() (any, int, error) {
	var req StepDownRequest
	if err := decodeJSON(c.body, &req); err != nil {
		return nil, 0, err
	}
	if err := c.node.StepDown(c.ctx, req.To); err != nil {
		return nil, 0, err
	}
	return Accepted{Revision: c.node.View().Revision()}, http.StatusAccepted, nil
}

// stamp is a time of the state, zero where there is none.
func stamp(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}
