package worker

import (
	"fmt"
	"slices"
	"strings"

	"github.com/miwnode/miwnode/fsm"
)

// shownMembers and shownRuntimes are how much Worker.Lacks tells of.
const (
	shownMembers  = 8
	shownRuntimes = 8
)

// lacks says why no instance can load or run a worker that is to be, "" if one can.
func lacks(v *fsm.View, w Worker) string {
	src := w.Current
	switch {
	case w.State == fsm.WorkerLoading:
		if _, driven := v.Lease(fsm.LoadKey(w.ID)); driven {
			return ""
		}
		src = w.Next
	case !w.Wanted() || w.Token != 0:
		return ""
	}
	need := w.Needs(src)
	g, known := v.Group(fsm.WorkersGroup)
	if !known || g.MemberCount() == 0 {
		return fmt.Sprintf("no node runs workers: it waits for one that does and provides %s", need)
	}
	var have, away []string
	for m, s := range g.Members() {
		who := s.NodeID
		if who == "" {
			who = s.InstanceID
		}
		switch {
		case !m.Provides(need):
			have = append(have, who+" has "+listed(m.Runtimes, shownRuntimes))
		case s.Draining():
			away = append(away, who+" drains")
		case s.Cordoned():
			away = append(away, who+" is cordoned")
		default:
			return ""
		}
	}
	if len(away) > 0 {
		return fmt.Sprintf("every node that provides %s takes no work: %s", need, listed(away, shownMembers))
	}
	return fmt.Sprintf("no node provides %s, it waits for one that does: %s", need, listed(have, shownMembers))
}

// listed are words in a sentence, most of them at least.
func listed(words []string, most int) string {
	if more := len(words) - most; more > 0 {
		words = append(slices.Clone(words[:most]), fmt.Sprintf("%d more", more))
	}
	if last := len(words) - 1; last > 0 {
		return strings.Join(words[:last], ", ") + " and " + words[last]
	}
	return strings.Join(words, "")
}
