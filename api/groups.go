package api

import (
	"net/http"

	"github.com/miwnode/miwnode/fsm"
)

// pageWorkloads is how many workloads a page of groups has, save for those of
// its last group.
const pageWorkloads = 10000

// groups lists groups, each whole, or those that want a workload, with nothing
// but that one.
func (c *call) groups() (any, int, error) {
	limit, err := c.limit()
	if err != nil {
		return nil, 0, err
	}
	workload, one := c.query["workload"]
	view, age, err := c.read()
	if err != nil {
		return nil, 0, err
	}
	answer := Groups{Revision: view.Revision(), Age: age, Groups: []Group{}}
	shown := 0
	for g := range view.Groups() {
		if g.Name <= c.query["after"] && c.query["after"] != "" {
			continue
		}
		if one {
			if _, wanted := g.Wanted(workload); !wanted {
				continue
			}
		}
		if n := len(answer.Groups); n == limit || shown > pageWorkloads {
			answer.Next = answer.Groups[n-1].Name
			break
		}
		page := workloadPage{limit: fsm.MaxWorkloads}
		if one {
			page.only = workload
		}
		group := groupOf(view, g, page)
		shown += len(group.Workloads)
		answer.Groups = append(answer.Groups, group)
	}
	return answer, http.StatusOK, nil
}

// group shows one group, its workloads in pages.
func (c *call) group() (any, int, error) {
	limit, err := c.limit()
	if err != nil {
		return nil, 0, err
	}
	view, age, err := c.read()
	if err != nil {
		return nil, 0, err
	}
	g, err := findGroup(view, c.r.PathValue("name"))
	if err != nil {
		return nil, 0, err
	}
	answer := groupOf(view, g, workloadPage{limit: limit, after: c.query["after"]})
	answer.Revision, answer.Age = view.Revision(), age
	return answer, http.StatusOK, nil
}

func findGroup(view *fsm.View, name string) (*fsm.Group, error) {
	if g, ok := view.Group(name); ok {
		return g, nil
	}
	return nil, fsm.Errorf(fsm.CodeNotFound, "there is no group %q", name)
}

// workloadPage says which workloads of a group to show.
type workloadPage struct {
	after string
	only  string // "" = all
	limit int
}

// groupOf looks at all workloads of a group, to count them, and shows a page.
func groupOf(view *fsm.View, g *fsm.Group, page workloadPage) Group {
	group := Group{
		Name: g.Name, Assigner: g.Settings.Assigner, Rebalance: g.Settings.Rebalance, MaxMoves: g.Settings.MaxMoves,
		By: g.By, UpdatedAt: stamp(g.UpdatedAt), Inputs: g.Inputs, PlannedInputs: g.PlannedInputs, PlannedAt: stamp(g.PlannedAt),
		Counts: map[string]int{}, Members: []GroupMember{}, Workloads: []GroupWorkload{}, Pins: []Pin{},
	}
	if l, ok := view.Lease(fsm.PlannerKey(g.Name)); ok && l.State != fsm.Barred {
		group.Planner = l.Who.InstanceID
	}
	has := map[string]int{}
	for w := range g.Workloads("") {
		group.Counts[w.Status.String()]++
		if w.Pin != nil {
			group.Pins = append(group.Pins, *pinOf(w.Key, w.Pin))
		}
		if owned(&w) {
			has[w.Lease.Who.InstanceID]++
		}
		switch {
		case w.Key <= page.after && page.after != "" || page.only != "" && page.only != w.Key:
		case len(group.Workloads) < page.limit:
			group.Workloads = append(group.Workloads, workloadOf(&w))
		case group.Next == "":
			group.Next = group.Workloads[page.limit-1].Key
		}
	}
	for m, s := range g.Members() {
		group.Members = append(group.Members, groupMemberOf(m, s, has[s.InstanceID]))
	}
	return group
}

// owned tells whether somebody has the workload; a barred one nobody has.
func owned(w *fsm.Workload) bool { return w.Lease != nil && w.Lease.State != fsm.Barred }

func workloadOf(w *fsm.Workload) GroupWorkload {
	out := GroupWorkload{
		Key: w.Key, DisplayName: w.DisplayName, Weight: w.Weight, Status: w.Status.String(),
		Pin: pinOf(w.Key, w.Pin), Pause: markOf(w.Pause),
	}
	if len(w.Labels) > 0 {
		out.Labels = labelsOf(w.Labels)
	}
	if owned(w) {
		l := w.Lease
		out.Owner, out.NodeID, out.Name = l.Who.InstanceID, l.Who.NodeID, l.Who.Name
		out.Token, out.Since, out.Stuck = l.Token, stamp(l.AcquiredAt), stuckOf(l.Stuck)
		out.Successor, out.Preparing, out.By, out.Reason = w.Successor(), w.Preparing(), l.Note.By, l.Note.Reason
	}
	if f := w.Failure; f != nil {
		out.Failure = &Failure{InstanceID: f.InstanceID, Count: f.Count, Error: f.Error, At: stamp(f.At)}
	}
	if o := w.Last; o != nil {
		out.LastOwner = &LastOwner{InstanceID: o.InstanceID, NodeID: o.NodeID, Name: o.Name, EndedAt: stamp(o.At), EndReason: o.Reason.String()}
	}
	return out
}

func groupMemberOf(m *fsm.Member, s *fsm.Session, has int) GroupMember {
	declares := "keys"
	switch {
	case m.All:
		declares = "all"
	case m.CatalogHash != "":
		declares = "catalog"
	case len(m.Runtimes) > 0:
		declares = "runtimes"
	}
	return GroupMember{
		InstanceID: s.InstanceID, NodeID: s.NodeID, Name: s.Name, Zone: s.Zone,
		Declares: declares, Runtimes: m.Runtimes, Capacity: m.Capacity, Embedded: m.Embedded,
		Draining: s.Draining(), Cordoned: s.Cordoned(), JoinedAt: stamp(m.JoinedAt), Workloads: has,
	}
}

func pinOf(workload string, p *fsm.Pin) *Pin {
	if p == nil {
		return nil
	}
	return &Pin{
		Workload: workload, InstanceID: p.InstanceID, NodeID: p.NodeID,
		Reason: p.Reason, By: p.By, At: stamp(p.At), ExpiresIn: Duration(p.ExpiresIn),
	}
}

func stuckOf(s *fsm.Stuck) *Stuck {
	if s == nil {
		return nil
	}
	return &Stuck{At: stamp(s.At), Detail: s.Detail}
}
