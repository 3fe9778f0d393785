package worker

import (
	"fmt"
	"testing"
	"time"
)

// orderOf are the instances in the order in which they drive the load of a worker.
func orderOf(id string, members []candidate) []string {
	order := make([]string, len(members))
	for _, m := range members {
		if n := place(id, m.instance, members); n >= 0 {
			order[n] = m.instance
		}
	}
	return order
}

func mate(instance string, takes, provides bool) candidate {
	return candidate{instance: instance, takes: takes, provides: provides}
}

func threeMembers() []candidate {
	return []candidate{mate("a", true, true), mate("b", true, true), mate("c", true, true)}
}

// What the first, the second and the third in line do about a load, by what
// they have seen.
func TestDecide(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	order := orderOf("w1", threeMembers())
	for _, tt := range []struct {
		name string
		s    sighting
		want [3]string
	}{
		{"driven", sighting{driven: true, free: ago(time.Hour)}, [3]string{"await", "await", "await"}},
		{"driven, though asked", sighting{driven: true, ours: true, free: now}, [3]string{"await", "await", "await"}},
		{"found", sighting{free: now}, [3]string{"drive", "await 500ms", "await 1s"}},
		{"created elsewhere", sighting{fresh: true, free: now}, [3]string{"await 100ms", "await 600ms", "await 1.1s"}},
		{"created elsewhere, where nobody took it", sighting{fresh: true, free: ago(100 * time.Millisecond)}, [3]string{"drive", "await 500ms", "await 1s"}},
		{"asked", sighting{ours: true, fresh: true, free: now}, [3]string{"drive", "drive", "drive"}},
		{"free for long", sighting{free: ago(time.Minute)}, [3]string{"drive", "drive", "drive"}},
	} {
		for i, self := range order {
			if got := said(decide("w1", self, threeMembers(), tt.s, now))(now); got != tt.want[i] {
				t.Errorf("%s, number %d: %s, want %s", tt.name, i+1, got, tt.want[i])
			}
		}
	}
}

// said is a decision in words.
func said(m move, at time.Time) func(now time.Time) string {
	return func(now time.Time) string {
		words := [...]string{"await", "drive", "give up"}
		if m == toWait && !at.IsZero() {
			return fmt.Sprint("await ", at.Sub(now))
		}
		return words[m]
	}
}

// Who drives, and who gives up, where not everybody can.
func TestDecide_Members(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	waited := sighting{free: now.Add(-time.Minute), bare: now.Add(-29 * time.Second)}
	enough := sighting{free: now.Add(-time.Minute), bare: now.Add(-30 * time.Second)}
	free := sighting{free: now}
	for _, tt := range []struct {
		name    string
		members []candidate
		self    string
		s       sighting
		want    string
	}{
		{"one provides", []candidate{mate("a", true, false), mate("b", true, true)}, "b", free, "drive"},
		{"the other does not", []candidate{mate("a", true, false), mate("b", true, true)}, "a", free, "await"},
		{"the one that provides drains", []candidate{mate("a", true, false), mate("b", false, true)}, "b", free, "await"},
		{"no member", []candidate{mate("a", true, true)}, "x", free, "await"},
		{"nobody provides: not yet", []candidate{mate("a", true, false), mate("b", true, false)}, "a", waited, "await 1s"},
		{"nobody provides: the first says so", []candidate{mate("a", true, false), mate("b", true, false)}, "a", enough, "give up"},
		{"nobody provides: not the second", []candidate{mate("a", true, false), mate("b", true, false)}, "b", enough, "await"},
		{"nobody provides: the first drains", []candidate{mate("a", false, false), mate("b", true, false)}, "b", enough, "give up"},
		{"nobody provides: all drain", []candidate{mate("a", false, false), mate("b", false, false)}, "a", enough, "give up"},
	} {
		if got := said(decide("w1", tt.self, tt.members, tt.s, now))(now); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// Loads are spread over instances, and each has one order that all agree on.
func TestPlace_Spread(t *testing.T) {
	firsts := make(map[string]int)
	for i := range 3000 {
		order := orderOf(fmt.Sprintf("w%024d", i), threeMembers())
		seen := map[string]bool{order[0]: true, order[1]: true, order[2]: true}
		if len(seen) != 3 || seen[""] {
			t.Fatalf("order %q", order)
		}
		firsts[order[0]]++
	}
	for _, m := range threeMembers() {
		if n := firsts[m.instance]; n < 900 || n > 1100 {
			t.Errorf("%s is first for %d of 3000 workers", m.instance, n)
		}
	}
}
