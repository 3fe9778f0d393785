package api

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// history lists grants, the newest last. Pages go back in time: after is the
// token that the next page must stay below.
func (c *call) history() (any, int, error) {
	limit, err := c.limit()
	if err != nil {
		return nil, 0, err
	}
	since, err := c.uint("since")
	if err != nil {
		return nil, 0, err
	}
	before := uint64(math.MaxUint64)
	if _, given := c.query["after"]; given {
		if before, err = c.uint("after"); err != nil {
			return nil, 0, err
		}
	}
	view, age, err := c.read()
	if err != nil {
		return nil, 0, err
	}
	query := fsm.HistoryQuery{Key: c.query["key"], Since: since, Limit: limit + 1}
	if before != math.MaxUint64 {
		query.Limit = math.MaxInt32
	}
	entries := view.History(query)
	entries = slices.DeleteFunc(entries, func(e *fsm.LedgerEntry) bool { return e.Token >= before })
	answer := History{Revision: view.Revision(), Age: age, Entries: []HistoryEntry{}}
	if len(entries) > limit {
		entries = entries[len(entries)-limit:]
		answer.Next = strconv.FormatUint(entries[0].Token, 10)
	}
	for _, e := range entries {
		answer.Entries = append(answer.Entries, historyEntryOf(e))
	}
	return answer, http.StatusOK, nil
}

func historyEntryOf(e *fsm.LedgerEntry) HistoryEntry {
	entry := HistoryEntry{
		Key: e.Key, Token: e.Token, InstanceID: e.Who.InstanceID, NodeID: e.Who.NodeID, Name: e.Who.Name,
		GrantedAt: stamp(e.GrantedAt), GrantedRevision: e.GrantedRevision,
		EndedAt: stamp(e.EndedAt), EndedRevision: e.EndedRevision, EndReason: e.EndReason.String(),
		Gap: Duration(e.Gap.Round(time.Microsecond)), FormerToken: e.Former,
	}
	if e.Note != nil {
		entry.By, entry.Reason = e.Note.By, e.Note.Reason
	}
	return entry
}
