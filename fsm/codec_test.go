package fsm_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/fsm/fsmpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// wireOps is one command of each kind, with every field set.
func wireOps() map[string]fsm.Op {
	return map[string]fsm.Op{
		"init_cluster":   &fsm.InitCluster{ClusterId: "c1", Version: 1, MaxSessionTtlMs: 30_000},
		"set_version":    &fsm.SetVersion{Version: 1},
		"record_leader":  &fsm.RecordLeader{NodeId: "n1", Term: 7},
		"record_member":  &fsm.RecordMember{NodeId: "n1", Change: fsm.MemberPromoted, Reason: "caught up"},
		"open_session":   &fsm.OpenSession{SessionId: "s1", TtlMs: 10_000, Name: "web", Labels: fsm.LabelsOf(map[string]string{"b": "2", "a": "1"}), NodeId: "n1", Boot: 3, Nonce: "x", RestartProved: true, InstanceId: "h:1:u", Zone: "z1", ViaNodeId: "n2"},
		"close_session":  &fsm.CloseSession{SessionId: "s1", Reason: fsm.CloseCrashed},
		"expire_session": &fsm.ExpireSession{SessionId: "s1", Term: 7},
		"acquire":        &fsm.Acquire{Key: "k1", SessionId: "s1", Holder: "h", Wait: true, LockDelayMs: 5000, Ask: 9},
		"cancel_wait":    &fsm.CancelWait{Key: "k1", SessionId: "s1", Holder: "h", Ask: 9},
		"release":        &fsm.Release{Key: "k1", Token: 1<<40 + 1, SessionId: "s1"},
		"transfer":       &fsm.Transfer{Key: "k1", Token: 1<<40 + 1, ToInstance: "h:2:u", By: "ann", Reason: "balance"},
		"revoke":         &fsm.Revoke{Key: "k1", Token: 1<<40 + 1, Reason: "stuck", By: "ann"},
		"free_revoked":   &fsm.FreeRevoked{Key: "k1", Token: 1<<40 + 1, Term: 7},
		"lift_bar":       &fsm.LiftBar{Key: "k1", Token: 1<<40 + 1, Term: 7},
		"mark_instance":  &fsm.MarkInstance{InstanceId: "h:1:u", Mark: fsm.MarkUndrain, Reason: "done", By: "ann", ExpiresInMs: 60_000, MarkedRevision: 5, Term: 7},

		"put_catalog":    &fsm.PutCatalog{Hash: strings.Repeat("0a", 32), Part: 1, Parts: 2, Workloads: []*fsm.WorkloadSpec{{Key: "a", DisplayName: "A", Weight: 2.5, Labels: fsm.LabelsOf(map[string]string{"zone": "z1"})}}},
		"put_group":      &fsm.PutGroup{Group: "g", Settings: &fsm.GroupSettings{Assigner: "primary", Rebalance: "graceful", MaxMoves: 5}, CatalogHash: strings.Repeat("0a", 32), By: "ann"},
		"join_group":     &fsm.JoinGroup{Group: "g", SessionId: "s1", CatalogHash: strings.Repeat("0a", 32), Keys: []string{"a", "b"}, All: true, Capacity: 1.5, Embedded: true, Prepares: true, Settings: &fsm.GroupSettings{Assigner: "balanced"}},
		"leave_group":    &fsm.LeaveGroup{Group: "g", SessionId: "s1"},
		"plan_group":     &fsm.PlanGroup{Group: "g", Inputs: 7, PlannerToken: 1<<40 + 1, Instances: []string{"h:1:u", "h:2:u"}, Assignments: []*fsm.Assignment{{Workload: "a", Instance: 1, Reason: 1}}, Reasons: []string{"join"}, More: true},
		"move_workload":  &fsm.MoveWorkload{Group: "g", Workload: "a", ToInstance: "h:2:u", By: "ann", Reason: "disk"},
		"set_pin":        &fsm.SetPin{Group: "g", Workload: "a", InstanceId: "h:2:u", Reason: "disk", By: "ann", ExpiresInMs: 60_000, MarkedRevision: 5, Term: 7},
		"set_pause":      &fsm.SetPause{Group: "g", Workload: "a", Paused: true, Reason: "disk", By: "ann", ExpiresInMs: 60_000, MarkedRevision: 5, Term: 7},
		"prepared":       &fsm.Prepared{Group: "g", Workload: "a", Token: 1<<40 + 1, SessionId: "s1", Ok: true, Message: "warm"},
		"forget_failure": &fsm.ForgetFailure{Group: "g", Workload: "a", Token: 1<<40 + 1, SessionId: "s1"},
		"record_job":     &fsm.RecordJob{Key: "j", LeaseKey: "g/a", Token: 1<<40 + 1, Outcome: "done", Detail: "12 rows", InstanceId: "h:1:u"},
		"record_overlap": &fsm.RecordOverlap{Key: "g/a", TokenA: 1<<40 + 1, TokenB: 1<<40 + 2, InstanceA: "h:1:u", InstanceB: "h:2:u", CertainNs: 5, UncertaintyNs: 3, Term: 7},
		"record_stuck":   &fsm.RecordStuck{Key: "g/a", Token: 1<<40 + 1, SessionId: "s1", Detail: "goroutine 1\n"},
		"record_sleep":   &fsm.RecordSleep{Key: "g/a", Token: 1<<40 + 1, InstanceId: "h:1:u", SleptNs: 30 * second},
		"delete_group":   &fsm.DeleteGroup{Group: "g", By: "ann"},

		"create_worker": &fsm.CreateWorker{
			WorkerId: workerID("x"), Name: "mailer", Runtime: "exec", Source: "https://x.example/mail", Sha256: strings.Repeat("0b", 32), Args: []string{"-v", ""},
			Env: fsm.LabelsOf(map[string]string{"A": "1", "B": ""}), Config: []byte(`{"a":1}`), Tags: fsm.LabelsOf(map[string]string{"team": "mail"}),
			Restart: "always", Start: true, By: "ann",
		},
		"start_worker":    &fsm.StartWorker{WorkerId: workerID("x"), Etag: 3, By: "ann"},
		"stop_worker":     &fsm.StopWorker{WorkerId: workerID("x"), Etag: 3, By: "ann"},
		"reload_worker":   &fsm.ReloadWorker{WorkerId: workerID("x"), Source: "./mail", Sha256: strings.Repeat("0b", 32), Etag: 3, By: "ann"},
		"delete_worker":   &fsm.DeleteWorker{WorkerId: workerID("x"), Etag: 3, By: "ann"},
		"set_worker_tags": &fsm.SetWorkerTags{WorkerId: workerID("x"), Tags: fsm.LabelsOf(map[string]string{"team": "mail"}), Etag: 3, By: "ann"},
		"begin_load":      &fsm.BeginLoad{WorkerId: workerID("x"), Token: 1<<40 + 1},
		"finish_load":     &fsm.FinishLoad{WorkerId: workerID("x"), Attempt: 2, Ok: true, Sha256: strings.Repeat("0b", 32), Size: 512, Tries: 3, ErrorType: "too_large", Message: "no"},
		"finish_run":      &fsm.FinishRun{WorkerId: workerID("x"), Token: 1<<40 + 1, Ok: true, ErrorType: "exited", Message: "with 1", Attempt: 2},
	}
}

// laterFields are commands of before with what was appended to them since.
func laterFields() map[string]fsm.Op {
	return map[string]fsm.Op{
		"release_failure":     &fsm.Release{Key: "k1", Token: 1<<40 + 1, SessionId: "s1", Failure: "no disk"},
		"join_group_runtimes": &fsm.JoinGroup{Group: "workers", SessionId: "s1", Runtimes: []string{"exec", "func:mail"}},
	}
}

func wireBatch(op fsm.Op) *fsm.Batch {
	c := fsm.NewCommand(op)
	c.Seq, c.IdempotencyKey, c.IdempotencyHash = 12, "key-1", bytes.Repeat([]byte{7}, 32)
	return &fsm.Batch{Proposals: []*fsm.Proposal{{NodeId: "n1", Boot: 3, LowWater: 10, Commands: []*fsm.Command{c}}}, Stamp: 1_700_000_000 * second}
}

// Every command that was ever shipped is read as it was written, and written as it was.
func TestWire(t *testing.T) {
	ops, covered := wireOps(), map[protoreflect.FullName]bool{}
	all := laterFields()
	maps.Copy(all, ops)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		op := all[name]
		t.Run(name, func(t *testing.T) {
			collectFields(op.ProtoReflect(), covered)
			b := wireBatch(op)
			data, err := fsm.EncodeBatch(b)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, filepath.Join("wire", name+".golden"), []byte(hex.Dump(data)))
			got, err := fsm.DecodeBatch(data)
			if err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(got, b) {
				t.Errorf("got %v, want %v", got, b)
			}
		})
	}
	t.Run("every op is here", func(t *testing.T) {
		fields := (&fsm.Command{}).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields()
		if fields.Len() != len(ops) {
			t.Errorf("%d ops on the wire, %d tested", fields.Len(), len(ops))
		}
		for i := range fields.Len() {
			op := ops[string(fields.Get(i).Name())]
			if op == nil || fsm.OpOf(fsm.NewCommand(op)) != op {
				t.Errorf("%s: not tested, or lost by NewCommand and OpOf", fields.Get(i).Name())
			}
		}
	})
	// Files of former forms stay here under another name.
	t.Run("every file is read", func(t *testing.T) {
		for file, data := range dumps(t, "testdata/wire/*.golden") {
			if b, err := fsm.DecodeBatch(data); err != nil || len(b.Proposals) != 1 {
				t.Errorf("%s: %v", file, err)
			}
		}
	})
}

// dumps returns the bytes of files that hold hex dumps.
func dumps(t *testing.T, pattern string) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no files, %v", pattern, err)
	}
	out := map[string][]byte{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var digits strings.Builder
		for line := range strings.Lines(string(text)) {
			line, _, _ = strings.Cut(line, "|")
			_, line, _ = strings.Cut(line, " ") // after the offset
			digits.WriteString(strings.ReplaceAll(line, " ", ""))
		}
		if out[file], err = hex.DecodeString(strings.TrimSpace(digits.String())); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	return out
}

func TestDecodeBatch_Concatenated(t *testing.T) {
	one, _ := fsm.EncodeBatch(&fsm.Batch{Proposals: []*fsm.Proposal{{NodeId: "n1", Boot: 1, Commands: []*fsm.Command{fsm.NewCommand(&fsm.SetVersion{Version: 1})}}}})
	two, _ := fsm.EncodeBatch(&fsm.Batch{Proposals: []*fsm.Proposal{{NodeId: "n2", Boot: 2}}, Stamp: 5})
	got, err := fsm.DecodeBatch(fsm.AppendStamp(append(one, two...), -9))
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Proposals) != 2 || got.Proposals[0].NodeId != "n1" || got.Proposals[1].NodeId != "n2" || got.Stamp != -9 {
		t.Errorf("got %v", got)
	}
}

func field(n protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), content)
}

func varint(n protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, n, protowire.VarintType), v)
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func marshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// What this binary doesn't know is refused at any depth, with the version that knows it.
func TestDecodeBatch_Strict(t *testing.T) {
	op := func(n protowire.Number, content []byte) []byte { return field(1, field(4, field(n, content))) }
	acquire := marshal(t, &fsm.Acquire{Key: "k"})
	cases := []struct {
		name string
		data []byte
		want string
		need uint32 // of the VersionError, 0 = none
	}{
		{"unknown in batch", varint(3, 1), "unknown field 3", 4},
		{"unknown in proposal", field(1, varint(6, 1)), "unknown field 6", 4},
		{"unknown in command", field(1, field(4, join(varint(4, 1), field(30, acquire)))), "unknown field 4", 4},
		{"unknown op", op(99, nil), "unknown field 99", 4},
		{"unknown op, version named", field(1, join(field(4, field(99, nil)), varint(5, 7))), "version 7", 7},
		{"unknown in acquire", op(30, join(acquire, varint(77, 1))), "unknown field 77", 4},
		{"unknown in cancel", op(31, varint(77, 1)), "unknown field 77", 4},
		{"unknown in release", op(32, varint(77, 1)), "unknown field 77", 4},
		{"unknown in revoke", op(34, varint(77, 1)), "unknown field 77", 4},
		{"unknown in label", op(20, field(4, varint(77, 1))), "unknown field 77", 4},
		{"another wire type", op(30, field(5, nil)), "unknown field 5", 4},
		{"known commands, newer meaning", field(1, join(field(4, field(30, acquire)), varint(5, 4))), "version 4", 4},
		{"version beyond ours", op(11, varint(1, 4)), "version 4", 4},
		{"cluster beyond ours", op(10, varint(2, 4)), "version 4", 4},
		{"no op", field(1, field(4, varint(1, 5))), "without an op", 0},
		{"two ops", field(1, field(4, join(field(30, acquire), field(32, nil)))), "two ops", 0},
		{"bad UTF-8", op(30, field(1, []byte{0xff})), "UTF-8", 0},
		{"bad UTF-8 in revoke", op(34, field(1, []byte{0xff})), "UTF-8", 0},
		{"field 0", []byte{0x00, 0x01}, "not valid", 0},
		{"long varint", append(varint(2, 0)[:1], bytes.Repeat([]byte{0xff}, 11)...), "too long", 0},
		{"truncated", []byte{0x0a, 5, 1}, "truncated", 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b, err := fsm.DecodeBatch(c.data)
			if err == nil {
				t.Fatalf("decoded to %v", b)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %q, want it to say %q", err, c.want)
			}
			v, ok := errors.AsType[*fsm.VersionError](err)
			if ok != (c.need != 0) || ok && v.Need != c.need {
				t.Errorf("got %#v, want the version %d", v, c.need)
			}
		})
	}
}

func TestDecodeBatch_Truncated(t *testing.T) {
	all := wireOps()
	maps.Copy(all, laterFields())
	for name, op := range all {
		data, err := fsm.EncodeBatch(&fsm.Batch{Proposals: []*fsm.Proposal{{NodeId: "n1", Commands: []*fsm.Command{fsm.NewCommand(op)}}}})
		if err != nil {
			t.Fatal(err)
		}
		for n := 1; n < len(data); n++ {
			if b, err := fsm.DecodeBatch(data[:n]); err == nil {
				t.Errorf("%s: the first %d of %d bytes decode to %v", name, n, len(data), b)
			}
		}
	}
}

func TestEncodeBatch_TooLarge(t *testing.T) {
	b := &fsm.Batch{Proposals: []*fsm.Proposal{{}}}
	labels := map[string]string{}
	for i := range fsm.MaxLabels {
		labels[fmt.Sprintf("%0*d", fsm.MaxLabelKeyBytes, i)] = strings.Repeat("v", fsm.MaxLabelValueBytes)
	}
	// The largest command there is stays far below the limit of one.
	c := fsm.NewCommand(&fsm.OpenSession{SessionId: "s", TtlMs: 10_000, Labels: fsm.LabelsOf(labels)})
	if err := fsm.CheckCommand(c, fsm.Version); err != nil {
		t.Fatal(err)
	}
	if size := proto.Size(c); size > fsm.MaxCommandBytes/8 {
		t.Errorf("a command may have %d bytes", size)
	}
	for range 64 {
		b.Proposals[0].Commands = append(b.Proposals[0].Commands, c)
	}
	if _, err := fsm.EncodeBatch(b); !isErr(err, fsm.ErrInvalidArgument) {
		t.Errorf("got %v, want invalid_argument", err)
	}
}

// FuzzDecodeBatch holds the reader by hand to proto.Unmarshal: what it accepts is
// the same, has no unknown field, and comes back from its encoding.
func FuzzDecodeBatch(f *testing.F) {
	for _, ops := range []map[string]fsm.Op{wireOps(), laterFields()} {
		for _, op := range ops {
			data, _ := fsm.EncodeBatch(wireBatch(op))
			f.Add(data)
		}
	}
	f.Add(field(1, field(4, field(30, varint(4, 300)))))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := fsm.DecodeBatch(data)
		want := &fsm.Batch{}
		protoErr := proto.Unmarshal(data, want)
		if err != nil {
			if protoErr == nil && !strictOnly(err) && !hasUnknown(want.ProtoReflect()) {
				t.Fatalf("refused what protobuf reads: %v", err)
			}
			return
		}
		if protoErr != nil {
			t.Fatalf("read what protobuf refuses: %v", protoErr)
		}
		if !proto.Equal(got, want) {
			t.Fatalf("got %v, protobuf %v", got, want)
		}
		if hasUnknown(want.ProtoReflect()) {
			t.Fatalf("an unknown field got through")
		}
		again, err := fsm.EncodeBatch(got)
		if err != nil {
			return // too large, or a version that it raises
		}
		back, err := fsm.DecodeBatch(again)
		if err != nil || !proto.Equal(back, got) {
			t.Fatalf("encoded anew: %v, %v", back, err)
		}
	})
}

// strictOnly tells the refusals that protobuf doesn't know.
func strictOnly(err error) bool {
	if _, ok := errors.AsType[*fsm.VersionError](err); ok {
		return true
	}
	return strings.Contains(err.Error(), "two ops") || strings.Contains(err.Error(), "without an op")
}

func hasUnknown(m protoreflect.Message) bool {
	if len(m.GetUnknown()) > 0 {
		return true
	}
	found := false
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				found = found || hasUnknown(v.List().Get(i).Message())
			}
		default:
			found = found || hasUnknown(v.Message())
		}
		return !found
	})
	return found
}

// The field numbers of the log and the snapshot only grow: a number once used
// keeps its name and type.
func TestFieldNumbers(t *testing.T) {
	var out strings.Builder
	messages := fsmpb.File_fsm_fsmpb_fsm_proto.Messages()
	for i := range messages.Len() {
		m := messages.Get(i)
		for j := range m.Fields().Len() {
			fd := m.Fields().Get(j)
			kind := fd.Kind().String()
			if fd.Message() != nil {
				kind = string(fd.Message().Name())
			}
			fmt.Fprintf(&out, "%s %d %s %v %s\n", m.Name(), fd.Number(), fd.Name(), fd.Cardinality(), kind)
		}
	}
	enums := fsmpb.File_fsm_fsmpb_fsm_proto.Enums()
	for i := range enums.Len() {
		e := enums.Get(i)
		for j := range e.Values().Len() {
			fmt.Fprintf(&out, "%s %d %s\n", e.Name(), e.Values().Get(j).Number(), e.Values().Get(j).Name())
		}
	}
	for n := 1; ; n++ {
		name := fsm.EventType(n).String()
		if name == "unknown" {
			break
		}
		fmt.Fprintf(&out, "EventType %d %s\n", n, name)
	}
	for c := fsm.Code(0); c <= fsm.CodeInternal; c++ {
		fmt.Fprintf(&out, "Code %d %v\n", c, c)
	}
	path := filepath.Join("testdata", "numbers.golden")
	if old, err := os.ReadFile(path); err == nil {
		for line := range strings.Lines(string(old)) {
			if !strings.Contains(out.String(), line) {
				t.Errorf("gone or changed: %s", line)
			}
		}
	}
	golden(t, "numbers.golden", []byte(out.String()))
}
