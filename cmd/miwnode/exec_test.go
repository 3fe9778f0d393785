package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miwnode/miwnode/api"
)

// pidIn reads a process number that a command has written to a file.
func (c *cli) pidIn(name string) int {
	c.t.Helper()
	pid := 0
	eventually(c.t, "a process number in "+name, func() bool {
		b, err := os.ReadFile(c.path(name))
		if err != nil || !strings.HasSuffix(string(b), "\n") {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
		return err == nil
	})
	return pid
}

func gone(pid int) bool { return syscall.Kill(pid, 0) == syscall.ESRCH }

func TestExec(t *testing.T) {
	c := newCLI(t)
	n := c.startNode("miw-data", "--bind", "127.0.0.1:0")

	t.Run("gives the command its lease", func(t *testing.T) {
		r := c.in(t).run("exec", "--key", "k", "--", "sh", "-c", `echo "$MIW_KEY $MIW_TOKEN $MIW_ADDR"`).ends(0)
		if got := strings.Fields(r.out); len(got) != 3 || got[0] != "k" || got[1] != "1099511627777" || got[2] != n.dir+"/"+api.SocketName {
			t.Errorf("got %q", r.out)
		}
		if node, _ := n.holder("k"); node != "" {
			t.Error("the lease is kept after the end")
		}
		var h api.History
		n.get("/v1/history?key=k", &h)
		if len(h.Entries) != 1 || h.Entries[0].EndReason != "released" {
			t.Errorf("history %+v, want one grant that was released", h.Entries)
		}
	})
	t.Run("gives back the command's code", func(t *testing.T) {
		for script, code := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -9 $$": 137, "kill -15 $$": 143} {
			r := c.in(t).run("exec", "--key", "k", "--", "sh", "-c", script).ends(code)
			if r.errOut != "" {
				t.Errorf("%s: stderr %q", script, r.errOut)
			}
		}
	})
	t.Run("hands its input through", func(t *testing.T) {
		c := c.in(t)
		cmd := c.command(t.Context(), "exec", "--key", "k", "--", "cat")
		in, err := os.Open(c.write("input", "text\n"))
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		cmd.Stdin = in
		if out, err := cmd.Output(); err != nil || string(out) != "text\n" {
			t.Errorf("got %q, %v", out, err)
		}
	})
	t.Run("waits no longer than told", func(t *testing.T) {
		c := c.in(t)
		e := c.start("exec", "--key", "k", "--", "sh", "-c", "echo began; exec sleep 100")
		e.says("began")
		r := c.run("exec", "--key", "k", "--wait", "300ms", "--", "true").ends(124).complains(`"k"`, "300ms")
		if r.took < 300*time.Millisecond {
			t.Errorf("took %v", r.took)
		}
		c.run("exec", "--key", "k", "--wait", "0s", "--", "true").ends(124).complains(`"k"`)

		// A signal ends the wait and the place in the queue.
		w := c.start("exec", "--key", "k", "--", "true")
		waiting := func(count int) func() bool {
			return func() bool {
				var l api.Leases
				n.get("/v1/leases?key=k", &l)
				return len(l.Leases) == 1 && l.Leases[0].Waiters == count
			}
		}
		eventually(t, "it waits", waiting(1))
		w.signal(syscall.SIGINT)
		w.ends(130)
		eventually(t, "it has left the queue", waiting(0))

		// A signal is the command's: it decides.
		e.signal(syscall.SIGTERM)
		e.ends(143)
	})
	t.Run("passes on in order", func(t *testing.T) {
		c := c.in(t)
		first := c.start("exec", "--key", "k", "--", "sh", "-c", "echo first $MIW_TOKEN; read x", "<")
		first.says("first")
		_, token := n.holder("k")
		first.ends(1) // its input is empty
		c.run("exec", "--key", "k", "--", "sh", "-c", `test "$MIW_TOKEN" -gt `+fmt.Sprint(token)).ends(0)
	})
}

// An exec waits out what is missing, and --wait bounds it all.
func TestExec_Outage(t *testing.T) {
	c := newCLI(t)
	e := c.start("exec", "--key", "k", "--", "sh", "-c", "echo first; exec sleep 100")
	e.says(`waiting for "k": no node answers`)
	if r := c.run("exec", "--key", "k", "--wait", "300ms", "--", "true").ends(69).says("no node answers", "300ms"); r.took > 2300*time.Millisecond {
		t.Errorf("took %v", r.took)
	}
	n := c.startNode("miw-data", "--bind", "127.0.0.1:0")
	e.says("first")
	w := c.start("exec", "--key", "k", "--ttl", "2s", "--", "sh", "-c", "echo second")
	w.says(`waiting for "k": exec:sh:`)
	n.signal(syscall.SIGKILL)
	<-n.done
	e.ends(75) // nothing renews its lease
	w.says("no node answers")
	n.again()
	w.says("second")
	w.ends(0)
	if n := strings.Count(w.text(), "no node answers"); n != 1 {
		t.Errorf("it says %d times what it waits for:\n%s", n, w.text())
	}

	// A node that is there and says nothing.
	n.ready()
	n.signal(syscall.SIGSTOP)
	for _, wait := range []string{"0s", "1s"} {
		limit, _ := time.ParseDuration(wait)
		r := c.run("exec", "--key", "k", "--wait", wait, "--", "true").ends(69).says("no node answers")
		if r.took > limit+4*time.Second { // two, and two for a busy machine
			t.Errorf("--wait %s took %v", wait, r.took)
		}
	}
	n.signal(syscall.SIGCONT)
}

// A lease that is lost ends the command, with all it started, before the key
// can pass on.
func TestProcess_ExecLost(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for TTLs; runs without -short")
	}
	c := newCLI(t)
	n := c.startNode("miw-data", "--bind", "127.0.0.1:0")
	stubborn := `trap "" TERM; sh -c 'trap "" TERM; echo $$ > grandchild; exec sleep 1000' & echo $$ > child; while :; do wait; done`

	t.Run("revoked", func(t *testing.T) {
		c := c.in(t)
		e := c.start("exec", "--key", "k", "--ttl", "4s", "--", "sh", "-c", stubborn)
		child, grandchild := c.pidIn("child"), c.pidIn("grandchild")
		c.run("revoke", "k", "--reason", "test").ends(0)
		next := c.run("exec", "--key", "k", "--", "true").ends(0)
		if !gone(child) || !gone(grandchild) {
			t.Error("the key passed on while the command or its child lived")
		}
		if next.took > 6*time.Second {
			t.Errorf("the next one waited %v", next.took)
		}
		e.ends(75)
		e.says("revoked")
	})
	t.Run("B-33_cut_off", func(t *testing.T) {
		c := c.in(t)
		os.Remove(c.path("child"))
		os.Remove(c.path("grandchild"))
		e := c.start("exec", "--key", "k", "--ttl", "2s", "--", "sh", "-c", stubborn)
		child, grandchild := c.pidIn("child"), c.pidIn("grandchild")
		began := time.Now()
		n.signal(syscall.SIGSTOP) // the node is there and says nothing
		e.ends(75)
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("the command ended %v after the cut, with a TTL of 2s", took)
		}
		if !gone(child) || !gone(grandchild) {
			t.Error("something of the command lives")
		}
		n.signal(syscall.SIGCONT)
		c.run("exec", "--key", "k", "--", "true").ends(0)
	})
	t.Run("B-33_killed", func(t *testing.T) {
		c := c.in(t)
		os.Remove(c.path("child"))
		os.Remove(c.path("grandchild"))
		e := c.start("exec", "--key", "k", "--ttl", "30s", "--", "sh", "-c", stubborn)
		child, grandchild := c.pidIn("child"), c.pidIn("grandchild")
		e.signal(syscall.SIGKILL)
		e.ends(-1)
		// The guard kills what is left, then closes the session: no TTL to wait for.
		next := c.run("exec", "--key", "k", "--", "true").ends(0)
		if next.took > 10*time.Second {
			t.Errorf("the next one waited %v", next.took)
		}
		if !gone(child) || !gone(grandchild) {
			t.Error("the key passed on while the command or its child lived")
		}
	})
	t.Run("the node restarts", func(t *testing.T) {
		c := c.in(t)
		e := c.start("exec", "--key", "k", "--", "sh", "-c", "echo began; while ! test -e done; do sleep 0.1; done; exit 3")
		e.says("began")
		_, token := n.holder("k")
		n.signal(syscall.SIGKILL)
		<-n.done
		n.again()
		n.ready()
		// Its keep-alives are tried until its own deadline, so it loses nothing.
		c.write("done", "")
		e.ends(3)
		var h api.History
		n.get("/v1/history?key=k", &h)
		if last := h.Entries[len(h.Entries)-1]; last.Token != token || last.EndReason != "released" {
			t.Errorf("the last grant is %+v, want token %d, released", last, token)
		}
	})
	t.Run("handed over", func(t *testing.T) {
		c := c.in(t)
		e := c.start("exec", "--key", "k", "--", "sh", "-c", "trap 'echo finishing; exit 0' TERM; echo began; while :; do sleep 0.1; done")
		e.says("began")
		client := n.client()
		var to api.Session
		if _, err := client.Do(t.Context(), api.Request{Method: "POST", Path: "/v1/sessions", Body: api.OpenSessionRequest{TTL: api.Duration(30 * time.Second), Instance: true}}, &to); err != nil {
			t.Fatal(err)
		}
		granted := make(chan error, 1)
		go func() {
			_, err := client.Do(t.Context(), api.Request{Method: "POST", Path: "/v1/leases/acquire", Body: api.AcquireRequest{Key: "k", SessionID: to.SessionID, Wait: api.Duration(time.Minute)}}, nil)
			granted <- err
		}()
		eventually(t, "it waits", func() bool {
			var l api.Leases
			n.get("/v1/leases?key=k", &l)
			return len(l.Leases) == 1 && l.Leases[0].Waiters == 1
		})
		_, token := n.holder("k")
		if _, err := client.Do(t.Context(), api.Request{Method: "POST", Path: "/v1/leases/transfer", Body: api.TransferRequest{Key: "k", Token: token, To: to.InstanceID}}, nil); err != nil {
			t.Fatal(err)
		}
		e.says("finishing")
		e.ends(75)
		if err := <-granted; err != nil {
			t.Error(err)
		}
	})
}
