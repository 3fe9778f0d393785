package fsm_test

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/fsm/fsmpb"
)

func TestGroupSnapshot_Golden(t *testing.T) {
	l := richGroupLog(t)
	golden(t, "snapshot/v2.golden", []byte(hex.Dump(snapshotBytes(t, l.state.View()))))
	back := reload(t, l.state).View()
	checkInvariants(t, back)
	var before, after strings.Builder
	showGroups(l.state.View(), &before)
	showGroups(back, &after)
	equalLines(t, "groups", strings.Split(after.String(), "\n"), strings.Split(before.String(), "\n"))
}

// A snapshot that contradicts itself in its groups is an error.
func TestGroupSnapshot_Broken(t *testing.T) {
	// The kinds of records in the order of the snapshot, with the numbers of
	// their fields in it.
	find := func(records []*fsmpb.Record, ok func(*fsmpb.Record) bool) int {
		for i, r := range records {
			if ok(r) {
				return i
			}
		}
		t.Fatal("no such record")
		return 0
	}
	catalog := func(records []*fsmpb.Record) *fsmpb.CatalogRecord {
		return records[find(records, func(r *fsmpb.Record) bool { return r.GetCatalog() != nil && r.GetCatalog().IdleRevision == 0 })].GetCatalog()
	}
	group := func(records []*fsmpb.Record) *fsmpb.GroupRecord {
		return records[find(records, func(r *fsmpb.Record) bool { return r.GetGroup() != nil })].GetGroup()
	}
	member := func(records []*fsmpb.Record) *fsmpb.MemberRecord {
		return records[find(records, func(r *fsmpb.Record) bool { return r.GetMember() != nil })].GetMember()
	}
	lease := func(records []*fsmpb.Record, key string) *fsmpb.LeaseRecord {
		return records[find(records, func(r *fsmpb.Record) bool { return r.GetLease().GetKey() == key })].GetLease()
	}
	cases := []struct {
		name   string
		change func([]*fsmpb.Record) []*fsmpb.Record
		want   string
	}{
		{"fine", func(r []*fsmpb.Record) []*fsmpb.Record { return r }, ""},
		{"catalog with another hash", func(r []*fsmpb.Record) []*fsmpb.Record {
			catalog(r).Put.Workloads[0].Weight = 7
			return r
		}, "but its parts have"},
		{"catalog of an idle one in use", func(r []*fsmpb.Record) []*fsmpb.Record {
			c := catalog(r)
			for _, rec := range r {
				if o := rec.GetCatalog(); o != nil && o.Put.Hash == c.Put.Hash {
					o.IdleRevision = 3
				}
			}
			return r
		}, "referrers and is idle since"},
		{"parts that contradict each other", func(r []*fsmpb.Record) []*fsmpb.Record {
			i := find(r, func(r *fsmpb.Record) bool {
				return r.GetCatalog().GetPut().GetPart() == 1 && r.GetCatalog().IdleRevision == 0
			})
			r[i].GetCatalog().MadeRevision++
			return r
		}, "contradict each other"},
		{"group of an unknown catalog", func(r []*fsmpb.Record) []*fsmpb.Record {
			group(r).CatalogHash = strings.Repeat("0b", 32)
			return r
		}, "no whole catalog"},
		{"group with a bad name", func(r []*fsmpb.Record) []*fsmpb.Record {
			group(r).Name = "a/b"
			return r
		}, "slash"},
		{"group with an unknown assigner", func(r []*fsmpb.Record) []*fsmpb.Record {
			group(r).Settings.Assigner = "x"
			return r
		}, "assigner is unknown"},
		{"group twice", func(r []*fsmpb.Record) []*fsmpb.Record {
			i := find(r, func(r *fsmpb.Record) bool { return r.GetJob() != nil })
			return append(append(append([]*fsmpb.Record{}, r[:i]...), &fsmpb.Record{Record: &fsmpb.Record_Group{Group: group(r)}}), r[i:]...)
		}, "out of order"},
		{"member of a dead session", func(r []*fsmpb.Record) []*fsmpb.Record {
			member(r).Join.SessionId = "nobody"
			return r
		}, "not live"},
		{"member without a joining", func(r []*fsmpb.Record) []*fsmpb.Record {
			member(r).Join = nil
			return r
		}, "not live"},
		{"member of an unknown catalog", func(r []*fsmpb.Record) []*fsmpb.Record {
			member(r).Join.CatalogHash = strings.Repeat("0b", 32)
			return r
		}, "no whole catalog"},
		{"member twice", func(r []*fsmpb.Record) []*fsmpb.Record {
			i := find(r, func(r *fsmpb.Record) bool { return r.GetMember() != nil })
			return append(append(append([]*fsmpb.Record{}, r[:i+1]...), r[i]), r[i+1:]...)
		}, "out of order"},
		{"member of no group", func(r []*fsmpb.Record) []*fsmpb.Record {
			i := find(r, func(r *fsmpb.Record) bool { return r.GetGroup() != nil })
			return append(append([]*fsmpb.Record{}, r[:i]...), r[i+1:]...)
		}, "out of order"},
		{"workload of which nothing is kept", func(r []*fsmpb.Record) []*fsmpb.Record {
			i := find(r, func(r *fsmpb.Record) bool { return r.GetWorkload() != nil })
			r[i].GetWorkload().Reset()
			r[i].GetWorkload().Key = "w0"
			return r
		}, "nothing is kept"},
		{"workload for an unknown reason", func(r []*fsmpb.Record) []*fsmpb.Record {
			i := find(r, func(r *fsmpb.Record) bool { return r.GetWorkload().GetLast() != nil })
			r[i].GetWorkload().Last.Reason = 99
			return r
		}, "end reason 99"},
		{"workloads unsorted", func(r []*fsmpb.Record) []*fsmpb.Record {
			i := find(r, func(r *fsmpb.Record) bool { return r.GetWorkload() != nil })
			r[i], r[i+1] = r[i+1], r[i]
			return r
		}, "out of order"},
		{"lease of a group that is not there", func(r []*fsmpb.Record) []*fsmpb.Record {
			l := lease(r, "cron")
			l.Key, l.Group = "a/x", "a"
			return r
		}, "of a group that is not there"},
		{"lease with another group's key", func(r []*fsmpb.Record) []*fsmpb.Record {
			lease(r, "g/w1").Group = "h"
			return r
		}, "of no workload of the group"},
		{"barred lease of a group", func(r []*fsmpb.Record) []*fsmpb.Record {
			lease(r, "g/w1").State = fsmpb.LeaseState_LEASE_STATE_BARRED
			return r
		}, "of no workload of the group"},
		{"successor that is not live", func(r []*fsmpb.Record) []*fsmpb.Record {
			lease(r, "g/w1").Successor = "nobody"
			return r
		}, "the successor nobody is not live"},
		{"job of no age", func(r []*fsmpb.Record) []*fsmpb.Record {
			i := find(r, func(r *fsmpb.Record) bool { return r.GetJob() != nil })
			r[i].GetJob().LastRevision = 0
			return r
		}, "out of order"},
		{"two jobs of one age", func(r []*fsmpb.Record) []*fsmpb.Record {
			i := find(r, func(r *fsmpb.Record) bool { return r.GetJob() != nil })
			a, b := r[i].GetJob(), r[i+1].GetJob()
			a.LastRevision, a.LastPosition = b.LastRevision, b.LastPosition
			return r
		}, "out of order"},
		{"job with 33 runs", func(r []*fsmpb.Record) []*fsmpb.Record {
			i := find(r, func(r *fsmpb.Record) bool { return r.GetJob() != nil })
			for range 33 {
				r[i].GetJob().Recent = append(r[i].GetJob().Recent, &fsmpb.JobRunRecord{})
			}
			return r
		}, "out of order"},
		{"17 idle catalogs", func(r []*fsmpb.Record) []*fsmpb.Record {
			i := find(r, func(r *fsmpb.Record) bool { return r.GetGroup() != nil })
			var out []*fsmpb.Record
			for n := range uint64(17) {
				out = append(out, &fsmpb.Record{Record: &fsmpb.Record_Catalog{Catalog: &fsmpb.CatalogRecord{
					Put: &fsm.PutCatalog{Hash: fmt.Sprintf("%064x", 1<<63+n), Parts: 2}, MadeRevision: n + 1, IdleRevision: n + 1,
				}}})
			}
			// They sort before the others: their hashes begin with zeros.
			first := find(r, func(r *fsmpb.Record) bool { return r.GetCatalog() != nil })
			return append(append(append([]*fsmpb.Record{}, r[:first]...), out...), append(append([]*fsmpb.Record{}, r[first:i]...), r[i:]...)...)
		}, "catalogs are idle"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			records := splitSnapshot(t, snapshotBytes(t, richGroupLog(t).state.View()))
			records = c.change(records[:len(records)-1])
			var all []any
			for _, r := range records {
				all = append(all, r)
			}
			err := read(joinSnapshot(t, append(all, end(uint64(len(records))))...))
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
