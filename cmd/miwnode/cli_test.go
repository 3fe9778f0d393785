package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/fsm"
)

func eachCommand(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, sub := range cmd.Commands() {
		if !sub.Hidden && sub.Name() != "help" {
			eachCommand(sub, visit)
		}
	}
}

// The help of every command has an example, and is what the golden file says.
func TestHelp(t *testing.T) {
	a := &app{process: process{lookupEnv: os.LookupEnv}}
	var all bytes.Buffer
	eachCommand(a.root(), func(cmd *cobra.Command) {
		if cmd.Example == "" || !strings.Contains(cmd.Example, cmd.CommandPath()) {
			t.Errorf("%s: no example of it in its help", cmd.CommandPath())
		}
		if cmd.Short == "" || cmd.GroupID == "" && cmd.HasParent() && !cmd.Parent().HasParent() {
			t.Errorf("%s: no short text or no group", cmd.CommandPath())
		}
		for _, line := range strings.Split(cmd.Long+"\n"+cmd.Example, "\n") {
			if len(line) > 110 {
				t.Errorf("%s: a line of its help has %d characters: %s", cmd.CommandPath(), len(line), line)
			}
		}
		if strings.HasPrefix(cmd.CommandPath(), "miwnode bench") {
			return // its cells are its own matter
		}
		var out bytes.Buffer
		cmd.SetOut(&out)
		if err := cmd.Help(); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, "==== %s --help\n%s\n", cmd.CommandPath(), out.String())
	})
	golden := filepath.Join("testdata", "help.golden")
	if *update {
		if err := os.WriteFile(golden, all.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(all.Bytes(), want) {
		t.Errorf("the help is not that of %s; run the test with -update and look at the difference", golden)
	}
}

// Bad input: one line that says what, why and what to do, exit code 2.
func TestBadInput(t *testing.T) {
	c := newCLI(t)
	for _, b := range []struct {
		args  []string
		code  int
		words []string
	}{
		{[]string{"leases", "--nope"}, 2, []string{"unknown flag", "--nope", "miwnode leases --help"}},
		{[]string{"leases", "-x"}, 2, []string{"unknown shorthand flag"}},
		{[]string{"laeses"}, 2, []string{`unknown command "laeses"`, "leases"}},
		{[]string{"cert", "co"}, 2, []string{`unknown command "co"`}},
		{[]string{"leases", "extra"}, 2, []string{`unexpected argument "extra"`}},
		{[]string{"leases", "--timeout", "soon"}, 2, []string{"--timeout", "soon", "a duration such as 10s"}},
		{[]string{"leases", "--addr", "127.0.0.1:7461"}, 2, []string{"did you mean http://127.0.0.1:7461"}},
		{[]string{"leases", "--timeout", "-1s"}, 2, []string{"--timeout", "positive"}},
		{[]string{"leases", "--limit", "many"}, 2, []string{"--limit", "many"}},
		{[]string{"leases", "--limit", "0"}, 2, []string{"--limit", `"0"`, "a whole number from 1"}},
		{[]string{"workers", "--limit", "-1"}, 2, []string{"--limit", `"-1"`, "a whole number from 1"}},
		{[]string{"worker", "stop", "w", "--etag", "0"}, 2, []string{"--etag", `"0"`, "a whole number from 1"}},
		{[]string{"leases", "-o", "yaml"}, 2, []string{"-o", "json"}},
		{[]string{"leases", "--addr", "ftp://x"}, 2, []string{"--addr", "http(s)"}},
		{[]string{"leases", "--api-token-file", "none"}, 2, []string{"--api-token-file", "none"}},
		{[]string{"leases"}, 69, []string{"no node answers at", "miw.sock", "no socket", "miwnode start"}},
		{[]string{"status", "--addr", "http://127.0.0.1:1"}, 69, []string{"http://127.0.0.1:1", "refused", "--addr"}},
		{[]string{"drain"}, 2, []string{"INSTANCE", "missing"}},
		{[]string{"drain", ""}, 2, []string{"INSTANCE", "is empty"}},
		{[]string{"undrain", ""}, 2, []string{"INSTANCE", "is empty"}},
		{[]string{"cordon", ""}, 2, []string{"INSTANCE", "is empty"}},
		{[]string{"uncordon", ""}, 2, []string{"INSTANCE", "is empty"}},
		{[]string{"drain", " "}, 2, []string{"an instance's name is empty"}},
		{[]string{"plan", "g", "--without", ""}, 2, []string{"an instance's name is empty"}},
		{[]string{"plan", ""}, 2, []string{"GROUP is empty"}},
		{[]string{"move", "a", "--to", ""}, 2, []string{"--to is missing"}},
		{[]string{"pin", "a", "--to", ""}, 2, []string{"--to is missing"}},
		{[]string{"why", ""}, 2, []string{"WORKLOAD", "is empty"}},
		{[]string{"groups", ""}, 2, []string{"the argument is empty"}},
		{[]string{"cordon", "x", "--by", "\xff"}, 2, []string{"--by", "UTF-8"}},
		{[]string{"cordon", "x", "--reason", "\xff"}, 2, []string{"--reason", "UTF-8"}},
		{[]string{"pause", "x", "--by", "a\nb"}, 2, []string{"--by", "control character"}},
		{[]string{"revoke", "x", "--by", "a\x1bb"}, 2, []string{"--by", "control character"}},
		{[]string{"groups", "delete", "x", "--by", "a\x1bb"}, 2, []string{"--by", "control character"}},
		{[]string{"drain", "x", "--wait", "5s"}, 2, []string{`unexpected argument "5s"`, "write --wait=5s"}},
		{[]string{"drain", "x", "y"}, 2, []string{`unexpected argument "y"`}},
		{[]string{"drain", "x", "--wait=soon"}, 2, []string{"--wait", "soon"}},
		{[]string{"drain", "x", "--expires-in", "5"}, 2, []string{"--expires-in"}},
		{[]string{"revoke"}, 2, []string{"KEY is missing"}},
		{[]string{"revoke", ""}, 2, []string{"KEY is empty"}},
		{[]string{"revoke", "k", "--token", "abc"}, 2, []string{"--token", "abc", "a whole number"}},
		{[]string{"exec", "--key", "k"}, 2, []string{"command is missing"}},
		{[]string{"exec", "--", "true"}, 2, []string{"--key", "empty"}},
		{[]string{"exec", "--key", strings.Repeat("k", 513), "--", "true"}, 2, []string{"--key", "513"}},
		{[]string{"exec", "--key", "\xff", "--", "true"}, 2, []string{"--key", "UTF-8"}},
		{[]string{"exec", "--key", "a\nb", "--", "true"}, 2, []string{"--key", "control"}},
		{[]string{"exec", "--key", "miw/x", "--", "true"}, 2, []string{"--key", "own"}},
		{[]string{"exec", "--key", " ", "--", "true"}, 2, []string{"--key", "blank"}},
		{[]string{"exec", "--key", "k", "--ttl", "1s", "--", "true"}, 2, []string{"--ttl", "2s"}},
		{[]string{"exec", "--key", "k", "--ttl", "10", "--", "true"}, 2, []string{"--ttl"}},
		{[]string{"exec", "--key", "k", "--wait", "-1s", "--", "true"}, 2, []string{"--wait"}},
		{[]string{"exec", "--key", "k", "--", "no-such-command"}, 127, []string{"no-such-command", "not found"}},
		{[]string{"exec", "--key", "k", "--", "./no-such-command"}, 127, []string{"./no-such-command", "no such file"}},
		{[]string{"exec", "--key", "k", "--", "/etc/passwd"}, 126, []string{"/etc/passwd", "permission denied"}},
		{[]string{"exec", "--key", "k", "--", "/tmp"}, 126, []string{"/tmp", "is a directory"}},
		{[]string{"exec", "--key", "k", "--", "/etc/passwd/x"}, 126, []string{"/etc/passwd/x", "not a directory"}},
		{[]string{"exec", "--key", "k", "--wait", "0s", "--", "true"}, 69, []string{"no node answers"}},
		{[]string{"demo", "--for", "5s", "--kill-after", "6s"}, 2, []string{"--kill-after", "--for"}},
		{[]string{"completion", "tcsh"}, 2, []string{"tcsh", "bash"}},
		{[]string{"cert", "ca"}, 2, []string{"--out is missing"}},
		{[]string{"cert", "node", "--ca", "x", "--id", "a b/c", "--host", "h", "--out", "y"}, 2, []string{"--id", "white space"}},
		{[]string{"cert", "node", "--ca", "x", "--id", "n", "--out", "y"}, 2, []string{"--host is missing"}},
		{[]string{"cert", "node", "--ca", "none", "--id", "n", "--host", "h", "--out", "y"}, 1, []string{"none"}},
		{[]string{"events", "--since", "-1x"}, 2, []string{"--since"}},
		{[]string{"start", "--session-ttl", "soon"}, 2, []string{"--session-ttl", `"soon"`}},
		{[]string{"start", "--voters", "2"}, 2, []string{"--voters", "1, 3, 5 or 7"}},
		{[]string{"start", "--bootstrap-expect", "0"}, 2, []string{"--bootstrap-expect", "1 or more"}},
		{[]string{"start", "--singleton", " =true"}, 2, []string{"--singleton", "blank"}},
		{[]string{"start", "--bind", "nowhere"}, 2, []string{"--bind", "host:port"}},
		{[]string{"start", "--bind", "0.0.0.0:7400"}, 2, []string{"--bind", "--insecure"}},
		{[]string{"start", "--api", "0.0.0.0:7480"}, 2, []string{"--api", "--api-token-file", "--insecure"}},
		{[]string{"start", "--config", "none.yaml"}, 2, []string{"--config", "none.yaml"}},
		{[]string{"start", "--singleton", "nothing"}, 2, []string{"--singleton", "key=CMD"}},
		{[]string{"start", "--singleton", "a=x | y"}, 2, []string{"--singleton", "sh -c"}},
		{[]string{"start", "--singleton", "a="}, 2, []string{"--singleton", "no command"}},
		{[]string{"start", "--singleton", "miw/a=true"}, 2, []string{"--singleton", "own"}},
		{[]string{"start", "--tls-ca", "x"}, 2, []string{"--tls-cert", "go together"}},
		{[]string{"start", "--gossip-key-file", "none"}, 2, []string{"--gossip-key-file", "none"}},
		{[]string{"start", "--log-level", "loud"}, 2, []string{"--log-level", "loud"}},
		{[]string{"start", "--label", "novalue"}, 2, []string{"--label", "k=v"}},
		{[]string{"start", "--id", "a b"}, 2, []string{"--id"}},
	} {
		t.Run(strings.ToValidUTF8(strings.Join(b.args, "_"), "?"), func(t *testing.T) {
			c.in(t).run(b.args...).ends(b.code).complains(b.words...)
		})
	}
}

func TestCompletion(t *testing.T) {
	c := newCLI(t)
	for shell, word := range map[string]string{"bash": "__start_miwnode", "zsh": "#compdef miwnode", "fish": "complete -c miwnode", "powershell": "Register-ArgumentCompleter"} {
		c.run("completion", shell).ends(0).shows(word)
	}
	c.run("__complete", "un").ends(0).shows("undrain", "uncordon")
}

func TestVersion(t *testing.T) {
	newCLI(t).run("version").ends(0).shows("miwnode", "state version 3")
}

func TestKeygen(t *testing.T) {
	c := newCLI(t)
	one, two := c.run("keygen").ends(0), c.run("keygen").ends(0)
	if len(strings.TrimSpace(one.out)) != 44 || one.out == two.out {
		t.Errorf("got %q and %q, want 32 random bytes in base64", one.out, two.out)
	}
	c.run("keygen", "--out", "gossip.key").ends(0)
	st, err := os.Stat(c.path("gossip.key"))
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, want 0600", st.Mode().Perm())
	}
	c.run("keygen", "--out", "gossip.key").ends(1).complains("gossip.key")
}

func TestSplitWords(t *testing.T) {
	for line, want := range map[string]string{
		`./mailer --queue main`:              `["./mailer" "--queue" "main"]`,
		"  a\tb\n c  ":                       `["a" "b" "c"]`,
		`sh -c 'echo "$MIW_KEY"; sleep 1'`:   `["sh" "-c" "echo \"$MIW_KEY\"; sleep 1"]`,
		`sh -c "echo \"$A\" \\ \x; sleep 1"`: `["sh" "-c" "echo \"$A\" \\ \\x; sleep 1"]`,
		`a\ b 'c'd"e"`:                       `["a b" "cde"]`,
		`'' ""`:                              `["" ""]`,
		`x\'y`:                               `["x'y"]`,
		"a\\\nb":                             `["ab"]`,
		`$HOME *.go ~ {a,b} #c`:              `["$HOME" "*.go" "~" "{a,b}" "#c"]`,
		``:                                   `[]`,
		`a; b`:                               `error`,
		`a && b`:                             `error`,
		`a > b`:                              `error`,
		`a (b)`:                              `error`,
		"a `b`":                              `error`,
		`a 'b`:                               `error`,
		`a "b`:                               `error`,
		`a \`:                                `error`,
	} {
		words, err := splitWords(line)
		got := fmt.Sprintf("%q", words)
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%s: got %s (%v), want %s", line, got, err, want)
		}
	}
}

// Hints are for what the error does not say itself.
func TestHint(t *testing.T) {
	for text, want := range map[string]string{
		"no leader is known: 1 of 3 voters answer, it takes 2":                                                 "bring back a majority of the voters (miwnode members shows them)",
		"the node belongs to no cluster yet: 2 of 3 founding nodes seen":                                       "",
		"no leader is known: a newer start of this node ID is at 10.0.0.4:7400, boot 3 > 2; if you":            "",
		"no leader is known: another process with boot 2 of this node ID is at 10.0.0.4:7400: there is a copy": "",
	} {
		if got := hintOf(fsm.Errorf(fsm.CodeNoQuorum, "%s", text)); got != want {
			t.Errorf("%s: hint %q, want %q", text, got, want)
		}
	}
}
