package fsm_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/fsm/fsmpb"
	"google.golang.org/protobuf/proto"
)

// Each limit of workers from both sides, before proposing and in apply.
func TestWorkerLimits(t *testing.T) {
	long := func(n int) string { return strings.Repeat("k", n) }
	digest := strings.Repeat("0b", 32)
	labels := func(n, key, value int) (out []*fsmpb.Label) {
		for i := range n {
			out = append(out, &fsmpb.Label{Key: fmt.Sprintf("%0*d", key, i), Value: long(value)})
		}
		return out
	}
	create := func(change func(*fsm.CreateWorker)) fsm.Op {
		op := &fsm.CreateWorker{WorkerId: workerID("new"), Name: "new", Runtime: "exec", Source: "./new"}
		change(op)
		return op
	}
	finish := func(change func(*fsm.FinishLoad)) fsm.Op {
		op := &fsm.FinishLoad{WorkerId: workerID("x"), Attempt: 1, Ok: true}
		change(op)
		return op
	}
	join := func(runtimes ...string) fsm.Op {
		return &fsm.JoinGroup{Group: fsm.WorkersGroup, SessionId: "a", Runtimes: runtimes}
	}
	id := workerID("x")
	cases := []struct {
		name string
		op   fsm.Op
		want string // in the message, "" = accepted
	}{
		{"the least", create(func(*fsm.CreateWorker) {}), ""},
		{"ID of digits that base32 has", create(func(o *fsm.CreateWorker) { o.WorkerId = "w" + strings.Repeat("z7", 13) }), ""},
		{"ID of 26", create(func(o *fsm.CreateWorker) { o.WorkerId = o.WorkerId[1:] }), "worker_id must be w and 26 characters"},
		{"ID of 28", create(func(o *fsm.CreateWorker) { o.WorkerId += "a" }), "worker_id must be w and 26 characters"},
		{"ID without a w", create(func(o *fsm.CreateWorker) { o.WorkerId = "x" + o.WorkerId[1:] }), "worker_id must be"},
		{"ID in upper case", create(func(o *fsm.CreateWorker) { o.WorkerId = "w" + strings.Repeat("A", 26) }), "worker_id must be"},
		{"ID with a 1", create(func(o *fsm.CreateWorker) { o.WorkerId = "w" + strings.Repeat("1", 26) }), "worker_id must be"},
		{"ID with a slash", create(func(o *fsm.CreateWorker) { o.WorkerId = "w" + strings.Repeat("a", 25) + "/" }), "worker_id must be"},
		{"name of 256", create(func(o *fsm.CreateWorker) { o.Name = long(256) }), ""},
		{"name of 257", create(func(o *fsm.CreateWorker) { o.Name = long(257) }), "name has 257 bytes"},
		{"blank name", create(func(o *fsm.CreateWorker) { o.Name = " " }), "name must not be blank"},
		{"runtime of another", create(func(o *fsm.CreateWorker) { o.Runtime = "lua_5-4" }), ""},
		{"no runtime", create(func(o *fsm.CreateWorker) { o.Runtime = "" }), "runtime must not be empty"},
		{"runtime of 65", create(func(o *fsm.CreateWorker) { o.Runtime = long(65) }), "runtime has 65 bytes"},
		{"runtime with a colon", create(func(o *fsm.CreateWorker) { o.Runtime = "func:a" }), "runtime must be of the characters"},
		{"no source", create(func(o *fsm.CreateWorker) { o.Source = "" }), "source must not be empty"},
		{"source of 2048", create(func(o *fsm.CreateWorker) { o.Source = long(2048) }), ""},
		{"source of 2049", create(func(o *fsm.CreateWorker) { o.Source = long(2049) }), "source has 2049 bytes"},
		{"source with a digest", create(func(o *fsm.CreateWorker) { o.Sha256 = digest }), ""},
		{"digest in upper case", create(func(o *fsm.CreateWorker) { o.Sha256 = strings.ToUpper(digest) }), "sha256 must be 64 hexadecimal digits"},
		{"source that is a digest", create(func(o *fsm.CreateWorker) { o.Source = "sha256:" + digest }), ""},
		{"source that is a short digest", create(func(o *fsm.CreateWorker) { o.Source = "sha256:0b" }), "source must have 64 hexadecimal digits"},
		{"source that is another digest", create(func(o *fsm.CreateWorker) { o.Source, o.Sha256 = "sha256:"+digest, strings.Repeat("0c", 32) }), "sha256 is not that of the source"},
		{"256 arguments", create(func(o *fsm.CreateWorker) { o.Args = make([]string, 256) }), ""},
		{"257 arguments", create(func(o *fsm.CreateWorker) { o.Args = make([]string, 257) }), "args are 257, at most 256"},
		{"argument of several lines", create(func(o *fsm.CreateWorker) { o.Args = []string{"a\n\tb"} }), ""},
		{"argument with NUL", create(func(o *fsm.CreateWorker) { o.Args = []string{"a\x00"} }), "args has the control character U+0000"},
		{"arguments of 64 KiB", create(func(o *fsm.CreateWorker) { o.Args = []string{long(32 << 10), long(32 << 10)} }), ""},
		{"arguments and environment of more", create(func(o *fsm.CreateWorker) {
			o.Args, o.Env = []string{long(64<<10 - 2)}, []*fsmpb.Label{{Key: "A", Value: "12"}}
		}), "args and env have 65537 bytes together, at most 65536"},
		{"256 variables", create(func(o *fsm.CreateWorker) { o.Env = labels(256, 3, 9) }), ""},
		{"257 variables", create(func(o *fsm.CreateWorker) { o.Env = labels(257, 3, 9) }), "env has 257 variables, at most 256"},
		{"variable without a name", create(func(o *fsm.CreateWorker) { o.Env = []*fsmpb.Label{{Value: "v"}} }), "env key must not be empty"},
		{"variable with an equals sign", create(func(o *fsm.CreateWorker) { o.Env = []*fsmpb.Label{{Key: "A=B"}} }), "env key must not contain an equals sign"},
		{"variable twice", create(func(o *fsm.CreateWorker) { o.Env = []*fsmpb.Label{{Key: "A"}, {Key: "A"}} }), "env must be sorted by key, each key once"},
		{"variable with NUL", create(func(o *fsm.CreateWorker) { o.Env = []*fsmpb.Label{{Key: "A", Value: "\x00"}} }), "env A has the control character"},
		{"configuration of 64 KiB", create(func(o *fsm.CreateWorker) { o.Config = []byte(`"` + long(64<<10-2) + `"`) }), ""},
		{"configuration of more", create(func(o *fsm.CreateWorker) { o.Config = []byte(`"` + long(64<<10-1) + `"`) }), "config has 65537 bytes"},
		{"configuration that is none", create(func(o *fsm.CreateWorker) { o.Config = []byte(`{"a":}`) }), "config is not valid JSON"},
		{"configuration in another encoding", create(func(o *fsm.CreateWorker) { o.Config = []byte("\"\xff\"") }), "config is not valid UTF-8"},
		{"50 tags", create(func(o *fsm.CreateWorker) { o.Tags = labels(50, 128, 1024) }), ""},
		{"51 tags", create(func(o *fsm.CreateWorker) { o.Tags = labels(51, 8, 8) }), "tags are 51, at most 50"},
		{"tag key of 129", create(func(o *fsm.CreateWorker) { o.Tags = labels(1, 129, 8) }), "tag key has 129 bytes"},
		{"tag value of 1025", create(func(o *fsm.CreateWorker) { o.Tags = labels(1, 1, 1025) }), "tag 0 has 1025 bytes"},
		{"tags unsorted", create(func(o *fsm.CreateWorker) { o.Tags = []*fsmpb.Label{{Key: "b"}, {Key: "a"}} }), "tags must be sorted by key"},
		{"restart never", create(func(o *fsm.CreateWorker) { o.Restart = "never" }), ""},
		{"restart sometimes", create(func(o *fsm.CreateWorker) { o.Restart = "sometimes" }), "restart is unknown, must be on_failure, always or never"},
		{"author of 129", create(func(o *fsm.CreateWorker) { o.By = long(129) }), "by has 129 bytes"},

		{"start of no ID", &fsm.StartWorker{}, "worker_id must be"},
		{"stop by 129", &fsm.StopWorker{WorkerId: id, By: long(129)}, "by has 129 bytes"},
		{"reload with a digest only", &fsm.ReloadWorker{WorkerId: id, Sha256: digest}, "sha256 is for another source"},
		{"reload of a bad source", &fsm.ReloadWorker{WorkerId: id, Source: "a\nb"}, "source has the control character"},
		{"delete of no ID", &fsm.DeleteWorker{WorkerId: "x"}, "worker_id must be"},
		{"51 tags set", &fsm.SetWorkerTags{WorkerId: id, Tags: labels(51, 8, 8)}, "tags are 51"},
		{"load without a token", &fsm.BeginLoad{WorkerId: id}, "token must not be 0"},
		{"loaded", finish(func(o *fsm.FinishLoad) { o.Sha256, o.Size, o.Tries = digest, 1<<40, 3 }), ""},
		{"loaded without an attempt", finish(func(o *fsm.FinishLoad) { o.Attempt = 0 }), "attempt must not be 0"},
		{"loaded less than nothing", finish(func(o *fsm.FinishLoad) { o.Size = -1 }), "size is -1, must not be below 0"},
		{"loaded with an error", finish(func(o *fsm.FinishLoad) { o.Message = "no" }), "error_type and message are for failures"},
		{"failed without a word", finish(func(o *fsm.FinishLoad) { o.Ok = false }), "error_type must not be empty"},
		{"failed with a digest", finish(func(o *fsm.FinishLoad) { o.Ok, o.ErrorType, o.Sha256 = false, "x", digest }), "sha256 and size are for what was loaded"},
		{"failed with a word of 65", finish(func(o *fsm.FinishLoad) { o.Ok, o.ErrorType = false, long(65) }), "error_type has 65 bytes"},
		{"failed with 1024 in lines", finish(func(o *fsm.FinishLoad) { o.Ok, o.ErrorType, o.Message = false, "x", long(1023)+"\n" }), ""},
		{"failed with 1025", finish(func(o *fsm.FinishLoad) { o.Ok, o.ErrorType, o.Message = false, "x", long(1025) }), "message has 1025 bytes"},
		{"ended without a token", &fsm.FinishRun{WorkerId: id, Attempt: 1, Ok: true}, "token must not be 0"},
		{"ended without an attempt", &fsm.FinishRun{WorkerId: id, Token: 1, Ok: true}, "attempt must not be 0"},
		{"ended well with a word", &fsm.FinishRun{WorkerId: id, Token: 1, Attempt: 1, Ok: true, ErrorType: "exited"}, "are for failures"},
		{"ended badly without one", &fsm.FinishRun{WorkerId: id, Token: 1, Attempt: 1}, "error_type must not be empty"},

		{"runtimes", join("exec", "func:mail", "func:mail:all", "wasm"), ""},
		{"function without a name", join("func:"), "runtimes: function must not be empty"},
		{"func without a function", join("func"), "must be names of runtimes, or func:<name>"},
		{"exec with a name", join("exec:a"), "must be names of runtimes, or func:<name>"},
		{"runtimes unsorted", join("wasm", "exec"), "runtimes must be sorted, each once"},
		{"runtime twice", join("exec", "exec"), "runtimes must be sorted, each once"},
		{"1,000 functions", join(functions(1000)...), ""},
		{"1,001 functions", join(functions(1001)...), "runtimes are 1001, at most 1000"},
		{"functions of a megabyte", join(func() (out []string) {
			for i := range 600 {
				out = append(out, fmt.Sprintf("func:%03d%s", i, long(1900)))
			}
			return out
		}()...), "bytes and more together"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			l := newWorkerLog(t)
			l.open("a")
			l.create("x", false)
			err := fsm.ResultErr(l.do(c.op))
			if c.want == "" {
				if err != nil || fsm.Check(c.op, 3) != nil {
					t.Errorf("apply: %v, Check: %v", err, fsm.Check(c.op, 3))
				}
				reload(t, l.state)
				return
			}
			if before := fsm.Check(c.op, 3); !isErr(err, fsm.ErrInvalidArgument) || !strings.Contains(err.Error(), c.want) || before == nil {
				t.Errorf("apply: got %v, Check: %v, want %q", err, before, c.want)
			}
		})
	}
}

func functions(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("func:%04d", i))
	}
	return out
}

// Before every member knows workers, nothing of them gets into the log, and the
// name of their group is anybody's.
func TestWorkerLimits_Version(t *testing.T) {
	l := newGroupLog(t)
	l.open("a")
	for name, op := range wireOps() {
		switch op.(type) {
		case *fsm.CreateWorker, *fsm.StartWorker, *fsm.StopWorker, *fsm.ReloadWorker, *fsm.DeleteWorker, *fsm.SetWorkerTags, *fsm.BeginLoad, *fsm.FinishLoad, *fsm.FinishRun:
			if err := fsm.ResultErr(l.do(op)); !isErr(err, fsm.ErrWrongState) || !strings.Contains(err.Error(), "state version 2, the command needs 3") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	l.refused(&fsm.JoinGroup{Group: fsm.WorkersGroup, SessionId: "a", Runtimes: []string{"exec"}}, fsm.ErrWrongState)
	l.refused(&fsm.JoinGroup{Group: fsm.WorkersGroup, SessionId: "a", All: true}, fsm.ErrNotFound)
	l.done(&fsm.PutGroup{Group: fsm.WorkersGroup})
	l.done(&fsm.JoinGroup{Group: fsm.WorkersGroup, SessionId: "a", All: true})
	if data := snapshotBytes(t, l.state.View()); data[11] != 2 {
		t.Errorf("the snapshot is of version %d", data[11])
	}
}

// The loaded code must be the code that was asked for.
func TestWorkerLimits_Digest(t *testing.T) {
	l := newWorkerLog(t)
	digest := strings.Repeat("0b", 32)
	l.done(&fsm.CreateWorker{WorkerId: workerID("x"), Name: "x", Runtime: "exec", Source: "sha256:" + digest})
	for _, other := range []string{"", strings.Repeat("0c", 32)} {
		l.refused(&fsm.FinishLoad{WorkerId: workerID("x"), Attempt: 1, Ok: true, Sha256: other}, fsm.ErrInvalidArgument)
	}
	l.done(&fsm.FinishLoad{WorkerId: workerID("x"), Attempt: 1, Ok: true, Sha256: digest})
}

// The tables are bounded: 10,000 workers, 32 sources of each, 64 MiB of all.
func TestWorkerLimits_Tables(t *testing.T) {
	name := func(i int) string {
		return string([]byte{'a' + byte(i/676%26), 'a' + byte(i/26%26), 'a' + byte(i%26)})
	}
	t.Run("workers", func(t *testing.T) {
		l := newWorkerLog(t)
		for from := 0; from < fsm.MaxWorkers; from += 500 {
			p := &fsm.Proposal{}
			for i := from; i < from+500; i++ {
				p.Commands = append(p.Commands, fsm.NewCommand(&fsm.CreateWorker{WorkerId: workerID(name(i)), Name: "w", Runtime: "exec", Source: "./w", Start: true}))
			}
			l.batch(p)
		}
		if n := l.state.View().WorkerCount(); n != fsm.MaxWorkers {
			t.Fatalf("%d workers", n)
		}
		l.refused(&fsm.CreateWorker{WorkerId: workerID("one2more"), Name: "w", Runtime: "exec", Source: "./w"}, fsm.ErrOverloaded)
		// All of them may run: a group wants as many.
		for from := 0; from < fsm.MaxWorkers; from += 500 {
			p := &fsm.Proposal{}
			for i := from; i < from+500; i++ {
				p.Commands = append(p.Commands, fsm.NewCommand(&fsm.FinishLoad{WorkerId: workerID(name(i)), Attempt: 1, Ok: true}))
			}
			l.batch(p)
		}
		if n := len(l.wanted()); n != fsm.MaxWorkers {
			t.Errorf("%d are wanted", n)
		}
		l.done(&fsm.DeleteWorker{WorkerId: workerID(name(7))})
		l.done(&fsm.CreateWorker{WorkerId: workerID("one2more"), Name: "w", Runtime: "exec", Source: "./w"})
		checkWorkers(t, reload(t, l.state).View())
	})
	t.Run("sources", func(t *testing.T) {
		l := newWorkerLog(t)
		l.create("x", false)
		l.finish("x", true)
		for i := range 40 {
			l.done(&fsm.ReloadWorker{WorkerId: workerID("x"), Source: fmt.Sprint("./", i)})
			l.finish("x", i%3 != 0)
		}
		l.done(&fsm.ReloadWorker{WorkerId: workerID("x")}) // the same again is no source more
		h := l.worker("x").History
		if len(h) != 32 || h[0].Text != "./8" || h[31].Text != "./39" || l.worker("x").Next.Text != "./39" {
			t.Errorf("%d sources, from %s to %s", len(h), h[0].Text, h[len(h)-1].Text)
		}
	})
	t.Run("bytes", func(t *testing.T) {
		l := newWorkerLog(t)
		big := []byte(`"` + strings.Repeat("x", fsm.MaxWorkerConfigBytes-2) + `"`)
		args := []string{strings.Repeat("y", fsm.MaxWorkerArgBytes)}
		tags := &fsm.SetWorkerTags{WorkerId: workerID(name(0))}
		for i := range fsm.MaxWorkerTags {
			tags.Tags = append(tags.Tags, &fsmpb.Label{Key: fmt.Sprintf("%03d", i), Value: strings.Repeat("v", fsm.MaxLabelValueBytes)})
		}
		n := 0
		for ; n < 1000; n++ {
			r := l.do(&fsm.CreateWorker{WorkerId: workerID(name(n)), Name: "w", Runtime: "exec", Source: "./w", Config: big, Args: args})
			if isErr(fsm.ResultErr(r), fsm.ErrOverloaded) {
				break
			}
		}
		// Each has 128 KiB and a little.
		if n < 500 || n > 512 {
			t.Errorf("%d workers", n)
		}
		for size := fsm.MaxWorkerArgBytes; size > 16<<10; size /= 2 { // the rest, but for less
			l.do(&fsm.CreateWorker{WorkerId: workerID(map[int]string{64 << 10: "large", 32 << 10: "small"}[size]), Name: "w", Runtime: "exec", Source: "./w", Args: []string{strings.Repeat("y", size)}})
		}
		l.state = reload(t, l.state)
		if err := fsm.ResultErr(l.do(tags)); !isErr(err, fsm.ErrOverloaded) {
			t.Errorf("tags: %v", err)
		}
		l.done(&fsm.DeleteWorker{WorkerId: workerID(name(1))})
		l.done(tags)
	})
}

// The largest record fits into a record of the snapshot, and the largest command
// into an entry.
func TestWorkerLimits_Largest(t *testing.T) {
	long := func(n int) string { return strings.Repeat("é", n/2) }
	op := &fsm.CreateWorker{
		WorkerId: workerID("x"), Name: long(256), Runtime: strings.Repeat("r", 64), Source: long(2048), Sha256: strings.Repeat("0b", 32),
		Config: []byte(`"` + long(fsm.MaxWorkerConfigBytes-2) + `"`), Start: true, By: long(128),
	}
	for range fsm.MaxWorkerArgs {
		op.Args = append(op.Args, long(fsm.MaxWorkerArgBytes/fsm.MaxWorkerArgs))
	}
	for i := range fsm.MaxWorkerTags {
		op.Tags = append(op.Tags, &fsmpb.Label{Key: fmt.Sprintf("%03d%s", i, long(124)), Value: long(1024)})
	}
	if n := proto.Size(op); n > fsm.MaxCommandBytes/2 {
		t.Errorf("the command has %d bytes", n)
	}
	l := newWorkerLog(t)
	l.done(op)
	for i := range 40 {
		l.done(&fsm.FinishLoad{WorkerId: op.WorkerId, Attempt: l.worker("x").Attempt, ErrorType: long(64), Message: long(1024)})
		l.done(&fsm.ReloadWorker{WorkerId: op.WorkerId, Source: fmt.Sprintf("%02d%s", i, long(2046)), Sha256: strings.Repeat("0b", 32), By: long(128)})
	}
	for _, rec := range splitSnapshot(t, snapshotBytes(t, l.state.View())) {
		if n := proto.Size(rec); n > fsm.MaxCommandBytes/2 {
			t.Errorf("the record has %d bytes", n)
		}
	}
	reload(t, l.state)
}

var jsonTexts = []string{
	"", " ", "{}", "[]", `""`, "0", "-0", "-", "01", "1.", ".5", "1.5e+10", "1e", "1E-7", "+1", "true", "tru", "nullx", "null null", "[1,]", "[,1]", "[1,2]", `{"a":1}`,
	`{"a":1,}`, `{a:1}`, `{"a"}`, `{"a":}`, `{,}`, `{"a":1,"a":2}`, `{"a" : [ {} , null ] }`, `"\u00e9"`, `"\u00eg"`, `"\u12"`, `"\x"`, `"\"`, `"\\"`, "\"\x01\"", "\"\x7f\"", "\"é\"", "[1 2]",
	"\ufeff{}", "\t\r\n1\n", `{"a":{"b":[1,2,{"c":"d"}]}}`, "[[[[]]]]", "]", "}", `"a`, `{"a":1`, "[", "{", "NaN", "1 ", "\v1", "-1.0E+0", "1e1.5", `"\ud800"`, "/* */1",
}

// A configuration is JSON exactly if encoding/json says so, up to how deep it is
// nested.
func FuzzWorkerConfig(f *testing.F) {
	for _, s := range jsonTexts {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 || len(data) > 1_000 || !utf8.Valid(data) {
			return
		}
		op := &fsm.CreateWorker{WorkerId: workerID("x"), Name: "x", Runtime: "exec", Source: "./x", Config: data}
		if err := fsm.Check(op, 3); (err == nil) != json.Valid(data) {
			t.Errorf("%q: got %v, encoding/json says %v", data, err, json.Valid(data))
		}
	})
}

func TestWorkerLimits_Depth(t *testing.T) {
	for depth, want := range map[int]bool{1001: true, 1002: false, 30_000: false} {
		config := []byte(strings.Repeat("[", depth) + strings.Repeat("]", depth))
		op := &fsm.CreateWorker{WorkerId: workerID("x"), Name: "x", Runtime: "exec", Source: "./x", Config: config}
		if err := fsm.Check(op, 3); (err == nil) != want {
			t.Errorf("depth %d: %v", depth, err)
		}
	}
}
