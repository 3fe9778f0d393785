package fsm_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

func isErr(err, target error) bool { return errors.Is(err, target) }

// Transcripts: a line is a command, applied as one entry; the indented lines
// below it are what came of it. "+" at the start of a line puts it into the
// entry of the line before. After each file the state goes through a snapshot.
//
//	term N, at +D      set the term and move the stamp for what follows
//	state, history K   show; restore: go on from a snapshot
//
// Only commit a change of these files if you know what caused it and want it.
func TestTranscript(t *testing.T) {
	files, err := filepath.Glob("testdata/scenario/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := transcribe(t, string(text))
			golden(t, filepath.Join("scenario", filepath.Base(file)), []byte(got))
		})
	}
}

func transcribe(t *testing.T, text string) string {
	l := &logbook{t: t, state: fsm.NewState(), term: 1, stamp: 1_700_000_000 * second}
	l.done(&fsm.InitCluster{ClusterId: "c1", Version: 1})
	var out strings.Builder
	var pending []string
	keys := map[string]bool{}
	flush := func() {
		if len(pending) > 0 {
			runLines(l, pending, &out)
			pending = nil
		}
	}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "    ") {
			continue // what came of it last time
		}
		out.WriteString(line + "\n")
		if i := strings.Index(line, "key="); i >= 0 {
			keys[strings.Fields(line[i+4:])[0]] = true
		}
		verb, rest, _ := strings.Cut(strings.TrimPrefix(line, "+"), " ")
		switch {
		case line == "" || line[0] == '#':
		case verb == "term":
			l.term, _ = strconv.ParseUint(rest, 10, 64)
		case verb == "at":
			d, err := time.ParseDuration(strings.TrimPrefix(rest, "+"))
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			l.stamp += int64(d)
		case verb == "state":
			showState(l.state.View(), keys, &out)
		case verb == "history":
			showHistory(l.state.View(), rest, &out)
		case verb == "restore":
			l.state = reload(t, l.state)
		default:
			pending = append(pending, strings.TrimPrefix(line, "+"))
			if i+1 < len(lines) && nextIsJoined(lines[i+1:]) {
				continue
			}
			flush()
		}
	}
	v := l.state.View()
	checkInvariants(t, v)
	checkQueues(t, v, slices.Collect(maps.Keys(keys)))
	reload(t, l.state)
	return out.String()
}

func nextIsJoined(lines []string) bool {
	for _, line := range lines {
		if !strings.HasPrefix(line, "    ") {
			return strings.HasPrefix(line, "+")
		}
	}
	return false
}

func runLines(l *logbook, lines []string, out *strings.Builder) {
	p := &fsm.Proposal{NodeId: "n1", Boot: 1}
	for _, line := range lines {
		p.Commands = append(p.Commands, parseCommand(l, p, line))
	}
	outcome := l.batch(p)
	for _, r := range outcome.Proposals[0].Results {
		fmt.Fprintf(out, "    %s\n", resultLine(r))
	}
	for _, e := range outcome.Events {
		fmt.Fprintf(out, "    %d.%d %s\n", e.ID.Revision, e.ID.Position, eventLine(e))
	}
}

func resultLine(r *fsm.Result) string {
	if err := fsm.ResultErr(r); err != nil {
		s := err.Error()
		if h := r.HeldBy; h != nil {
			s += fmt.Sprintf(" [token %s, %v]", tokenString(h.Token), fsm.LeaseState(h.State))
		}
		return s
	}
	s := "done"
	if r.SessionId != "" {
		s += " session=" + r.SessionId
	}
	if r.Queued {
		s = "queued"
	}
	if r.Token != 0 {
		s += " token=" + tokenString(r.Token)
	}
	if r.Total != 0 {
		s += fmt.Sprintf(" total=%d", r.Total)
	}
	return s
}

// words of a line: the verb, key=value pairs and flags.
type words struct {
	l     *logbook
	pairs map[string]string
	flags map[string]bool
}

func (w words) ms(name string) int64 {
	if w.pairs[name] == "" {
		return 0
	}
	d, err := time.ParseDuration(w.pairs[name])
	if err != nil {
		w.l.t.Fatalf("%s=%s: %v", name, w.pairs[name], err)
	}
	return d.Milliseconds()
}

func (w words) number(name string, otherwise uint64) uint64 {
	if w.pairs[name] == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(w.pairs[name], 10, 64)
	if err != nil {
		w.l.t.Fatalf("%s=%s: %v", name, w.pairs[name], err)
	}
	return n
}

func (w words) token() uint64 {
	if n := w.number("token", 0); n != 0 {
		return token(n)
	}
	return 0
}

func parseCommand(l *logbook, p *fsm.Proposal, line string) *fsm.Command {
	fields := strings.Fields(line)
	w := words{l: l, pairs: map[string]string{}, flags: map[string]bool{}}
	for _, f := range fields[1:] {
		if k, v, ok := strings.Cut(f, "="); ok {
			w.pairs[k] = v
		} else {
			w.flags[f] = true
		}
	}
	c := fsm.NewCommand(parseOp(w, fields[0]))
	c.Seq = w.number("seq", 0)
	p.LowWater = max(p.LowWater, w.number("low", 0))
	p.Boot = w.number("client", p.Boot)
	if k := w.pairs["idem"]; k != "" {
		c.IdempotencyKey = k
		c.IdempotencyHash = []byte(strings.Repeat(w.pairs["body"]+"-", 32)[:32])
	}
	return c
}

func parseOp(w words, verb string) fsm.Op {
	p := w.pairs
	switch verb {
	case "init":
		return &fsm.InitCluster{ClusterId: p["id"], Version: 1}
	case "leader":
		return &fsm.RecordLeader{NodeId: p["node"], Term: w.number("term", w.l.term)}
	case "version":
		return &fsm.SetVersion{Version: uint32(w.number("v", 0))}
	case "member":
		return &fsm.RecordMember{NodeId: p["node"], Change: fsm.MemberRemoved, Reason: p["reason"]}
	case "open": // a node's session: its instance is i-<node>-<boot>
		boot := w.number("boot", 1)
		return &fsm.OpenSession{
			SessionId: p["s"], TtlMs: 10_000, NodeId: p["node"], Boot: boot, Nonce: "x",
			InstanceId: fmt.Sprintf("i-%s-%d", p["node"], boot), RestartProved: w.flags["proved"],
		}
	case "client":
		return &fsm.OpenSession{SessionId: p["s"], TtlMs: 10_000, Name: p["name"], InstanceId: p["instance"], ViaNodeId: p["via"]}
	case "close":
		if w.flags["crashed"] {
			return &fsm.CloseSession{SessionId: p["s"], Reason: fsm.CloseCrashed}
		}
		return &fsm.CloseSession{SessionId: p["s"], Reason: fsm.CloseClosed}
	case "expire":
		return &fsm.ExpireSession{SessionId: p["s"], Term: w.number("term", w.l.term)}
	case "acquire":
		return &fsm.Acquire{Key: p["key"], SessionId: p["s"], Holder: p["h"], Wait: w.flags["wait"], LockDelayMs: w.ms("delay")}
	case "cancel":
		return &fsm.CancelWait{Key: p["key"], SessionId: p["s"], Holder: p["h"]}
	case "release":
		return &fsm.Release{Key: p["key"], Token: w.token(), SessionId: p["s"], Failure: p["failure"]}
	case "transfer":
		return &fsm.Transfer{Key: p["key"], Token: w.token(), ToInstance: p["to"], By: p["by"], Reason: p["reason"]}
	case "revoke":
		return &fsm.Revoke{Key: p["key"], Token: w.token(), By: p["by"], Reason: p["reason"]}
	case "free":
		return &fsm.FreeRevoked{Key: p["key"], Token: w.token(), Term: w.number("term", w.l.term)}
	case "lift":
		return &fsm.LiftBar{Key: p["key"], Token: w.token(), Term: w.number("term", w.l.term)}
	case "drain", "undrain", "cordon", "uncordon":
		m := &fsm.MarkInstance{InstanceId: p["instance"], By: p["by"], Reason: p["reason"], ExpiresInMs: w.ms("expires")}
		switch verb {
		case "drain":
			m.Mark = fsm.MarkDrain
		case "undrain":
			m.Mark = fsm.MarkUndrain
		case "cordon":
			m.Mark = fsm.MarkCordon
		case "uncordon":
			m.Mark = fsm.MarkUncordon
		}
		if m.MarkedRevision = w.number("marked", 0); m.MarkedRevision != 0 {
			m.Term = w.number("term", w.l.term)
		}
		return m
	}
	return parseGroupOp(w, verb)
}

func showState(v *fsm.View, keys map[string]bool, out *strings.Builder) {
	for s := range v.Sessions() {
		fmt.Fprintf(out, "    session %s changed=%d leases=%d", s.ID, s.ChangedRevision, s.LeaseCount())
		for _, m := range []struct {
			name string
			mark *fsm.Mark
		}{{"drain", s.Drain}, {"cordon", s.Cordon}} {
			if m.mark != nil {
				fmt.Fprintf(out, " %s(revision=%d by=%s reason=%s expires=%v)", m.name, m.mark.Revision, m.mark.By, m.mark.Reason, m.mark.ExpiresIn)
			}
		}
		out.WriteString("\n")
	}
	for l := range v.Leases("", "") {
		fmt.Fprintf(out, "    lease %s token=%s %v session=%s holder=%s granted=%d changed=%d\n", l.Key, tokenString(l.Token), l.State, l.SessionID, l.Holder, l.AcquiredRevision, l.ChangedRevision)
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		for w := range v.Waiters(key) {
			fmt.Fprintf(out, "    waiter %s session=%s holder=%s\n", w.Key, w.SessionID, w.Holder)
		}
	}
	showGroups(v, out)
	showWorkers(v, out)
}

func showHistory(v *fsm.View, key string, out *strings.Builder) {
	for _, e := range v.History(fsm.HistoryQuery{Key: key}) {
		end := "open"
		if e.EndedRevision != 0 {
			end = fmt.Sprintf("%v at %d after %v", e.EndReason, e.EndedRevision, time.Duration(e.EndedAt-e.GrantedAt))
		}
		fmt.Fprintf(out, "    %s token=%s %s granted at %d, gap %v; %s\n", e.Key, tokenString(e.Token), e.Who.InstanceID, e.GrantedRevision, e.Gap, end)
	}
}
