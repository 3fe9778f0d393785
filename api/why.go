package api

import (
	"errors"
	"net/http"
	"slices"

	"github.com/miwnode/miwnode/coord"
	"github.com/miwnode/miwnode/fsm"
)

// why explains where a workload is.
func (c *call) why() (any, int, error) {
	name, workload := c.r.PathValue("name"), c.query["workload"]
	if workload == "" {
		return nil, 0, invalid("workload is missing: name one of the group's")
	}
	view, age, err := c.read()
	if err != nil {
		return nil, 0, err
	}
	e, err := coord.Why(view, name, workload, c.h.assigners[name])
	if err != nil {
		return nil, 0, refusalOfAssigner(err)
	}
	answer := Why{
		Revision: view.Revision(), Age: age, Group: e.Group, Workload: e.Workload, Status: e.Status.String(),
		Owner: e.Owner, Successor: e.Successor, Because: append([]string{}, e.Because...), Instances: []Judgement{},
	}
	for _, j := range e.Instances {
		answer.Instances = append(answer.Instances, Judgement(j))
	}
	return answer, http.StatusOK, nil
}

// plan tells what would move; it changes nothing.
func (c *call) plan() (any, int, error) {
	var req PlanRequest
	if err := decodeJSON(c.body, &req); err != nil {
		return nil, 0, err
	}
	if slices.Contains(req.Without, "") {
		return nil, 0, invalid("without has an empty name: name instances")
	}
	name := c.r.PathValue("name")
	view, age, err := c.read()
	if err != nil {
		return nil, 0, err
	}
	g, err := findGroup(view, name)
	if err != nil {
		return nil, 0, err
	}
	moves, err := coord.WhatIf(view, name, coord.Change{Without: req.Without, Add: req.Add}, c.h.assigners[name])
	if err != nil {
		return nil, 0, refusalOfAssigner(err)
	}
	answer := Plan{Revision: view.Revision(), Age: age, Inputs: g.Inputs, Moves: []PlannedMove{}}
	for _, m := range moves {
		answer.Moves = append(answer.Moves, PlannedMove(m))
	}
	return answer, http.StatusOK, nil
}

// refusalOfAssigner tells the caller what a program's own function did wrong.
func refusalOfAssigner(err error) error {
	if e := (*coord.AssignError)(nil); errors.As(err, &e) {
		return fsm.Errorf(fsm.CodeWrongState, "the group can't be planned: %v", err)
	}
	return err
}
