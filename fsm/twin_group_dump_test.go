package fsm_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/miwnode/miwnode/fsm"
)

// twinWorkload is how both sides describe a workload.
type twinWorkload struct {
	group, key, status, pin, failed, last string
	pinned, paused                        uint64
	failures                              int
}

func (t *twin) dumpGroups() (out []string) {
	for _, name := range slices.Sorted(maps.Keys(t.groups)) {
		g := t.groups[name]
		out = append(out, fmt.Sprintf("group %s %s put=%v inputs=%d planned=%d wanted=%v", name, g.assigner, g.put, g.inputs, g.planned, t.wanted(g)))
		members := slices.SortedFunc(maps.Keys(g.members), func(a, b string) int { return cmp.Compare(t.sessions[a].order, t.sessions[b].order) })
		out = append(out, fmt.Sprintf("members %v", members))
		for _, w := range t.wanted(g) {
			n, l := g.note(w), t.leases[fsm.WorkloadKey(name, w)]
			row := twinWorkload{name, w, "inactive", n.pin, n.failed, n.last, n.pinned, n.paused, n.failures}
			switch {
			case l == nil && n.paused != 0:
				row.status = "paused"
			case l == nil && n.failures > 0:
				row.status = "failed"
			case l == nil || l.state == "barred":
			case l.stuck:
				row.status = "stuck"
			case l.state == "held":
				row.status = "active"
			default:
				row.status = "transferring"
			}
			out = append(out, fmt.Sprintf("%+v", row))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(t.jobs)) {
		j := t.jobs[key]
		out = append(out, fmt.Sprintf("job %s %d %s %v", key, j.total, j.owner, j.runs))
	}
	return out
}

func dumpGroups(v *fsm.View) (out []string) {
	for g := range v.Groups() {
		wanted, members := []string(nil), []string(nil)
		for w := range g.Workloads("") {
			wanted = append(wanted, w.Key)
		}
		for m := range g.Members() {
			members = append(members, m.SessionID)
		}
		out = append(out, fmt.Sprintf("group %s %s put=%v inputs=%d planned=%d wanted=%v", g.Name, g.Settings.Assigner, g.Put, g.Inputs, g.PlannedInputs, wanted))
		out = append(out, fmt.Sprintf("members %v", members))
		for w := range g.Workloads("") {
			row := twinWorkload{group: g.Name, key: w.Key, status: w.Status.String()}
			if w.Pin != nil {
				row.pin, row.pinned = w.Pin.InstanceID, w.Pin.Revision
			}
			if w.Pause != nil {
				row.paused = w.Pause.Revision
			}
			if w.Failure != nil {
				row.failed, row.failures = w.Failure.InstanceID, w.Failure.Count
			}
			if w.Last != nil {
				row.last = w.Last.InstanceID + "," + w.Last.Reason.String()
			}
			out = append(out, fmt.Sprintf("%+v", row))
		}
	}
	for j := range v.Jobs("", "") {
		var runs []twinRun
		for r := range j.Recent() {
			runs = append(runs, twinRun{r.Token, r.Who.InstanceID, r.Outcome})
		}
		out = append(out, fmt.Sprintf("job %s %d %s %v", j.Key, j.Total, j.Owner.InstanceID, runs))
	}
	return out
}
