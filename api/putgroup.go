package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/miwnode/miwnode/fsm"
)

const (
	// maxFaults is how many faults of a body are named.
	maxFaults = 20
	// putTries is how often a catalog is put anew that was dropped, because
	// others came, before the group referred to it.
	putTries = 3
)

// putGroup sets what a group wants and how it is shared out. The workloads go
// into the state first, as a catalog in parts, and the group then names it: one
// command decides.
func (c *call) putGroup() (any, int, error) {
	var req PutGroupRequest
	if err := decodeJSON(c.body, &req); err != nil {
		return nil, 0, err
	}
	op := &fsm.PutGroup{
		Group: c.r.PathValue("name"), By: req.By,
		Settings: &fsm.GroupSettings{Assigner: req.Assigner, Rebalance: req.Rebalance, MaxMoves: req.MaxMoves},
	}
	specs, err := c.checkGroup(op, req.Workloads)
	if err != nil {
		return nil, 0, err
	}
	var puts []*fsm.PutCatalog
	if len(specs) > 0 {
		if op.CatalogHash, puts, err = fsm.NewCatalog(specs); err != nil {
			return nil, 0, err
		}
	}
	res, err := c.putCatalogAnd(op, puts)
	if err != nil {
		return nil, 0, err
	}
	return GroupPut{Revision: res.GetRevision(), Workloads: len(specs), CatalogHash: op.CatalogHash}, http.StatusOK, nil
}

// putCatalogAnd puts the catalog, save where the group has it already, and then
// the group.
func (c *call) putCatalogAnd(op *fsm.PutGroup, puts []*fsm.PutCatalog) (*fsm.Result, error) {
	opts, err := c.idempotency()
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.outliving()
	defer cancel()
	g, known := c.node.View().Group(op.Group)
	has := known && g.CatalogHash == op.CatalogHash
	for range putTries {
		if !has {
			if err := c.putCatalog(ctx, puts); err != nil {
				return nil, err
			}
		}
		has = false
		var res *fsm.Result
		if res, err = c.h.propose(ctx, op, opts...); fsm.CodeOf(err) != fsm.CodeNotFound {
			return res, err
		}
		if len(opts) > 0 {
			break // the answer to its key stays what it is
		}
	}
	return nil, fsm.Errorf(fsm.CodeOverloaded, "so many groups are put at once that the workloads of this one were dropped; try again, with another Idempotency-Key")
}

func (c *call) putCatalog(ctx context.Context, puts []*fsm.PutCatalog) error {
	for _, p := range puts {
		if _, err := c.h.propose(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// checkGroup names every fault of a group at once.
func (c *call) checkGroup(op *fsm.PutGroup, workloads []WorkloadRequest) ([]fsm.Spec, error) {
	faults := settingFaults(op)
	if g, known := c.node.View().Group(op.Group); op.Settings.Assigner == fsm.AssignCustom && !(known && g.Settings.Assigner == fsm.AssignCustom) {
		faults = append(faults, "assigner is custom: that is a function of a Go program, which brings it by itself")
	}
	if workloads == nil {
		faults = append(faults, "workloads is missing: an empty list would do for a group whose members bring them")
	}
	if n := len(workloads); n > fsm.MaxWorkloads {
		faults = append(faults, fmt.Sprintf("workloads are %d, a group has at most %d", n, fsm.MaxWorkloads))
	}
	specs := make([]fsm.Spec, len(workloads))
	first := make(map[string]int, len(workloads))
	for i, w := range workloads {
		name := fmt.Sprintf("workloads[%d]: ", i)
		specs[i] = specOf(w)
		if w.Weight != nil && *w.Weight == 0 { // absent is 1, but a zero that was written is a fault
			faults = append(faults, fmt.Sprintf("%sworkload %s: weight is 0, must be above 0 and finite", name, w.Key))
		}
		if _, _, err := fsm.NewCatalog(specs[i : i+1]); err != nil {
			faults = append(faults, name+messageOf(err))
		}
		if before, twice := first[w.Key]; twice {
			faults = append(faults, fmt.Sprintf("%skey %q is that of workloads[%d], too", name, w.Key, before))
		} else {
			first[w.Key] = i
		}
	}
	return specs, faultsError(faults)
}

func specOf(w WorkloadRequest) fsm.Spec {
	spec := fsm.Spec{Key: w.Key, DisplayName: w.DisplayName}
	if w.Weight != nil {
		spec.Weight = *w.Weight
	}
	for _, k := range slices.Sorted(maps.Keys(w.Labels)) {
		spec.Labels = append(spec.Labels, fsm.Label{Key: k, Value: w.Labels[k]})
	}
	return spec
}

// settingFaults asks for each part of op alone, so that none hides another.
func settingFaults(op *fsm.PutGroup) (faults []string) {
	s := op.Settings
	for _, part := range []*fsm.PutGroup{
		{Group: op.Group},
		{Settings: &fsm.GroupSettings{Assigner: s.Assigner}},
		{Settings: &fsm.GroupSettings{Rebalance: s.Rebalance}},
		{Settings: &fsm.GroupSettings{MaxMoves: s.MaxMoves}},
		{By: op.By},
	} {
		part.Group = cmp.Or(part.Group, "any")
		if err := fsm.Check(part, fsm.Version); err != nil {
			faults = append(faults, messageOf(err))
		}
	}
	return faults
}

// faultsError is one refusal for all faults, nil without any. The first of them
// are named in the message, all that are named in the detail.
func faultsError(faults []string) error {
	if len(faults) == 0 {
		return nil
	}
	more := ""
	if n := len(faults); n > maxFaults {
		faults, more = faults[:maxFaults], fmt.Sprintf("; and %d more", n-maxFaults)
	}
	return &fsm.Error{Code: fsm.CodeInvalidArgument, Message: strings.Join(faults, "; ") + more, Detail: map[string][]string{"faults": faults}}
}

func messageOf(err error) string {
	if e := (*fsm.Error)(nil); errors.As(err, &e) {
		return e.Message
	}
	return err.Error()
}
