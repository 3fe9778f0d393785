package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miwnode/miwnode/api"
)

// Flag beats environment beats file beats default, and --print-config says which.
func TestStart_PrintConfig(t *testing.T) {
	c := newCLI(t)
	file := c.write("miw.yaml", `
bind: 127.0.0.1:7411
session-ttl: 12s
zone: west
join: [10.0.0.1:7400, "srv:_miw._udp.example.org"]
label: {disk: ssd}
singleton:
  mailer: ./mailer --queue 'main one'
`)
	c = c.with("MIW_SESSION_TTL=14s", "MIW_ZONE=east", "MIW_LABEL=a=b, c=d")
	r := c.run("start", "--config", file, "--zone", "north", "--print-config").ends(0)
	for _, line := range []string{
		`bind: "127.0.0.1:7411" # ` + file + `: bind`,
		`session-ttl: "14s" # MIW_SESSION_TTL`,
		`zone: "north" # --zone`,
		`join: ["10.0.0.1:7400", "srv:_miw._udp.example.org"] # ` + file + `: join`,
		`label: ["a=b", "c=d"] # MIW_LABEL`,
		`singleton: ["mailer=./mailer --queue 'main one'"] # ` + file + `: singleton`,
		`renew-interval: "2s" # default`,
		`insecure: false # default`,
	} {
		found := false
		for _, got := range strings.Split(r.out, "\n") {
			found = found || strings.Join(strings.Fields(got), " ") == strings.Join(strings.Fields(line), " ")
		}
		if !found {
			t.Errorf("no line %s in\n%s", line, r.out)
		}
	}
	// What is printed is a file that gives the same.
	printed := c.write("printed.yaml", r.out)
	again := newCLI(t).run("start", "--config", printed, "--print-config").ends(0)
	for _, name := range []string{"bind", "session-ttl", "zone", "join", "label", "singleton", "renew-interval"} {
		if a, b := valueOf(r.out, name), valueOf(again.out, name); a != b {
			t.Errorf("%s: %s was printed and read back as %s", name, a, b)
		}
	}
}

func valueOf(printed, name string) string {
	for _, line := range strings.Split(printed, "\n") {
		if value, ok := strings.CutPrefix(line, name+": "); ok {
			value, _, _ = strings.Cut(value, "  #")
			value, _, _ = strings.Cut(value, " # ")
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// --check-config reports all faults, each with where it comes from.
func TestStart_CheckConfig(t *testing.T) {
	c := newCLI(t)
	c.run("start", "--check-config").ends(0).shows("good")
	file := c.write("miw.yaml", "sesion-ttl: 10s\nbind: [a, b]\nvoters: 4\nmargin: x\n")
	r := c.with("MIW_LOG_FORMAT=xml").run("start", "--config", file, "--check-config", "--kill-timeout", "0s", "--join", "a:b:c", "--api", "0.0.0.0:1").ends(2)
	for _, words := range [][]string{
		{"line 1", `unknown setting "sesion-ttl"`},
		{"line 2", "bind", "one value"},
		{"miw.yaml: voters", "4", "1, 3, 5 or 7"},
		{"miw.yaml: margin", `"x"`},
		{"MIW_LOG_FORMAT", "xml"},
		{"--kill-timeout", "0s"},
		{"--join", "a:b:c"},
		{"--api", "--insecure"},
	} {
		found := false
		for _, line := range strings.Split(r.errOut, "\n") {
			all := true
			for _, w := range words {
				all = all && strings.Contains(line, w)
			}
			found = found || all
		}
		if !found {
			t.Errorf("no line with %v in\n%s", words, r.errOut)
		}
	}
	c.run("start", "--check-config", "--drain-timeout", "-1s").ends(2).complains("--drain-timeout")
	c.run("start", "--check-config", "--bootstrap-expect", "-1").ends(2).complains("--bootstrap-expect")
	c.run("start", "--check-config", "--api", "127.0.0.1:7400").ends(2).complains("--api", "--bind")
	c.run("start", "--check-config", "--singleton", "a=/nonexistent/cmd").ends(2).complains("--singleton a", "/nonexistent/cmd", "no such file")
	c.run("start", "--check-config", "--bootstrap-expect", "3").ends(0).shows("note: --bootstrap-expect", "without --join", "good")
	c.run("start", "--config", c.write("tabs.yaml", "a:\n\t- b"), "--check-config").ends(2).complains("--config", "no YAML")
	c.run("start", "--config", c.write("list.yaml", "- a"), "--check-config").ends(2).complains("a map of settings")
	c.run("start", "--config", c.write("twice.yaml", "zone: a\nzone: b"), "--check-config").ends(2).complains("zone")
	c.run("start", "--config", c.dir, "--check-config").ends(2).complains("--config")
	c.run("start", "--config", c.write("case.yaml", "session_ttl: 10s"), "--check-config").ends(2).complains(`did you mean "session-ttl"`)
	// The size rule names the values that would do.
	c.run("start", "--session-ttl", "4s", "--check-config").ends(2).complains("--session-ttl", "--renew-interval", "--margin", "--stop-budget", "--raft-timeout")
}

// A folder that can't be used is one clear error, and nothing in it changes.
func TestStart_Folder(t *testing.T) {
	c := newCLI(t)
	n := c.startNode("a", "--bind", "127.0.0.1:0")
	c.run("start", "--data-dir", "a", "--api", "off", "--bind", "127.0.0.1:0").ends(1).complains("data folder a", "in use")
	n.cli.run("status").ends(0) // the socket is still the first one's
	n.signal(syscall.SIGTERM)
	n.ends(0)
	if _, err := os.Lstat(n.dir + "/" + api.SocketName); !os.IsNotExist(err) {
		t.Errorf("the socket is left behind: %v", err)
	}
	c.run("start", "--data-dir", "a", "--api", "off", "--bind", "127.0.0.1:0", "--id", "other").ends(1).complains("belongs to node", "other")

	if err := os.WriteFile(n.dir+"/node.json", []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.run("start", "--data-dir", "a", "--api", "off", "--bind", "127.0.0.1:0").ends(1).complains("data folder a", "node.json")
	if b, _ := os.ReadFile(n.dir + "/node.json"); string(b) != "{" {
		t.Error("the damaged file was changed")
	}
	c.write("file", "x")
	c.run("start", "--data-dir", "file", "--api", "off", "--bind", "127.0.0.1:0").ends(1).complains("file")
}

// A copy of a folder is refused until it is said that it was moved, by flag,
// environment or file.
func TestStart_MovedFolder(t *testing.T) {
	c := newCLI(t)
	n := c.startNode("a", "--bind", "127.0.0.1:0")
	n.signal(syscall.SIGTERM)
	n.ends(0)
	if err := os.CopyFS(c.dir+"/b", os.DirFS(n.dir)); err != nil {
		t.Fatal(err)
	}
	c.run("start", "--data-dir", "b", "--api", "off", "--bind", "127.0.0.1:0").ends(1).
		complains("data folder b: it is not the folder on which node", "its lock file was inode", "one voter twice", "start it once with --moved")
	c.with("MIW_MOVED=perhaps").run("start", "--data-dir", "b", "--check-config").ends(2).complains(`MIW_MOVED is "perhaps": it must be true or false`)
	if got := valueOf(c.with("MIW_MOVED=true").run("start", "--print-config").ends(0).out, "moved"); got != "true" {
		t.Errorf("--print-config shows moved: %s", got)
	}
	for _, arg := range []string{"--moved", "--moved=false"} {
		n = c.startNode("b", "--bind", "127.0.0.1:0", arg)
		n.signal(syscall.SIGTERM)
		n.ends(0)
	}
}

// Garbage in the log is an error that says what to do, not a stack.
func TestStart_DamagedLog(t *testing.T) {
	c := newCLI(t)
	n := c.startNode("a", "--bind", "127.0.0.1:0")
	n.signal(syscall.SIGTERM)
	n.ends(0)
	file := n.dir + "/raft.db"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	copy(b[2*4096:], strings.Repeat("garbage ", 20*512))
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	r := c.run("start", "--data-dir", "a", "--api", "off", "--bind", "127.0.0.1:0").ends(1).
		complains("data folder a: raft.db: page", "this node's log is lost: remove the folder and join again as a new node")
	if strings.Contains(r.errOut, "goroutine") {
		t.Errorf("there is a stack:\n%s", r.errOut)
	}
}

// The second signal ends the process at once, whatever still runs.
func TestStart_SecondSignal(t *testing.T) {
	c := newCLI(t)
	n := c.startNode("a", "--bind", "127.0.0.1:0", "--singleton", `stubborn=sh -c 'trap "" TERM; echo be"gan"; while :; do sleep 1; done'`)
	n.says("began")
	n.signal(syscall.SIGTERM)
	n.says("a second signal ends the process")
	n.signal(syscall.SIGTERM) // as timeout(1) does: the same once more
	select {
	case <-n.done:
		t.Error("a signal that came twice at once was taken for two")
	case <-time.After(sameSignal / 2):
	}
	eventually(t, "the second signal ends it", func() bool {
		_ = n.cmd.Process.Signal(syscall.SIGTERM) // it may be gone
		select {
		case <-n.done:
			return true
		default:
			return false
		}
	})
	n.ends(128 + int(syscall.SIGTERM))
}

// TestChecklist: registration of work on the command line.
func TestChecklist(t *testing.T) {
	c := newCLI(t)
	t.Run("079_several_singletons_coexist_and_faults_come_early", func(t *testing.T) {
		c := c.in(t)
		c.run("start", "--singleton", "a=true", "--singleton", "a=false", "--check-config").ends(2).complains(`"a" twice`)
		n := c.startNode("a", "--bind", "127.0.0.1:0", "--singleton", "one=sh -c 'echo one-began; exec sleep 100'", "--singleton", "two=sh -c 'echo two-began; exec sleep 100'")
		n.says("msg=one-began")
		n.says("msg=two-began")
		for _, key := range []string{"one", "two"} {
			if node, token := n.holder(key); node == "" || token == 0 {
				t.Errorf("nobody holds %s", key)
			}
		}
	})
	t.Run("080_a_worker_stands_alone", func(t *testing.T) {
		c := c.in(t)
		// No group, no coordinator, no heartbeat of its own: the node's session carries it.
		n := c.startNode("b", "--bind", "127.0.0.1:0", "--singleton", `alone=sh -c 'echo "token $MIW_TOKEN key $MIW_KEY at $MIW_ADDR"; exec sleep 100'`)
		var token uint64
		eventually(t, "it is held", func() bool { _, token = n.holder("alone"); return token != 0 })
		n.says(fmt.Sprintf("token %d key alone at %s", token, n.dir+"/"+api.SocketName))
		n.cli.in(t).run("instances").ends(0).shows("active")
	})
}

// The session of the README: a fresh folder, no flags but the ports.
func TestSession(t *testing.T) {
	c := newCLI(t)
	n := c.startNode("miw-data", "--bind", "127.0.0.1:0")
	c = c.with() // commands find the socket in ./miw-data
	c.run("status").ends(0).shows("role", "leader", "ready", "yes", "1 of 1 voters alive")
	c.run("members").ends(0).shows("NODE", "ADDRESS", "alive")
	c.run("leases").ends(0).shows("No leases are held")
	c.run("history").ends(0).shows("No history")
	c.run("leases", "--key", "k").ends(0).shows(`"k" is free.`)
	c.run("leases", "--prefix", "k").ends(0).shows(`No key that begins with "k"`)
	e := c.start("exec", "--key", "k", "--", "sh", "-c", `echo "has $MIW_KEY $MIW_TOKEN"; exec sleep 100`)
	e.says("has k 1099511627777")
	c.run("leases").ends(0).shows("KEY", "k", "1099511627777", "held", "exec:sh")
	raw := c.run("leases", "-o", "json").ends(0)
	if !strings.HasPrefix(raw.out, `{"revision":`) || strings.Count(raw.out, "\n") != 1 {
		t.Errorf("-o json is not the answer as it came: %q", raw.out)
	}
	c.run("revoke", "free").ends(1).complains("not found", "free")
	c.run("revoke", "k", "--reason", "test", "--by", "op").ends(0).shows("revoked")
	e.ends(75)
	e.says("revoked")
	c.run("exec", "--key", "k", "--", "true").ends(0)
	var rows []string // from the end of the first grant on
	for line := range strings.Lines(c.run("history", "--key", "k").ends(0).out) {
		cells := strings.Fields(line)
		rows = append(rows, strings.Join(cells[len(cells)-4:], " "))
	}
	if len(rows) != 3 || rows[0] != "LEASE GAP BY REASON" || rows[1] != "revoked - op test" || !regexp.MustCompile(`^released [0-9.]+m?s - -$`).MatchString(rows[2]) {
		t.Errorf("the history ends with %q", rows)
	}
	c.run("events", "--since", "0", "--count", "6").ends(0).shows("leader.changed", "session.opened")
	c.run("events", "--since", "0", "--type", "lease.*", "--key", "k", "--count", "2", "-o", "json").ends(0).shows(`"type":"lease.granted"`, `"key":"k"`)
	inst := firstCell(c.run("instances").ends(0).out)
	c.run("cordon", inst, "--reason", "disk", "--expires-in", "1h").ends(0).shows("cordoned")
	c.run("instances").ends(0).shows("cordoned", "disk")
	c.run("uncordon", inst[:len(inst)-3]).ends(0).shows("uncordoned")
	c.run("drain", inst).ends(0).shows("drains")
	c.run("undrain", inst).ends(0).shows("undrained")
	c.run("drain", inst, "--wait").ends(0).shows("held nothing")
	c.run("undrain", inst).ends(0)
	c.run("undrain", inst).ends(0).shows("was not draining")
	c.run("uncordon", inst).ends(0).shows("was not cordoned")
	c.run("history", "--key", "nope").ends(0).shows(`No history of "nope"`)
	c.run("events", "--type", "nonsense").ends(2).complains("--type", "lease.*", "member.*")
	c.run("events", "--since", "100000").ends(2).complains("--since", "revision is")
	c.run("events", "--count", "-1").ends(2).complains("--count")
	c.run("step-down", "--to", "nope").ends(1).complains("no node", "miwnode members")
	stays := c.start("exec", "--key", "mine", "--", "sh", "-c", "echo has it; exec sleep 100")
	stays.says("has it")
	c.run("drain", inst, "--wait").ends(0).shows("held nothing", "1 lease of another session came in through this node and stays")
	c.run("undrain", inst).ends(0).shows("undrained")
	stays.signal(syscall.SIGTERM)
	stays.ends(143)
	c.run("__complete", "revoke", "").ends(0)
	c.run("drain", "nobody").ends(1).complains("no instance", "miwnode instances")
	c.run("step-down").ends(1).complains("no other voter")
	c.run("__complete", "drain", "").ends(0).shows(inst)
	n.signal(syscall.SIGINT)
	n.ends(0)
	c.run("status").ends(69).complains("no node answers")
}

// firstCell is the first cell of the first row under the heading.
func firstCell(table string) string {
	lines := strings.Split(table, "\n")
	return strings.Fields(lines[1])[0]
}
