//go:build linux

package guard_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/miwnode/miwnode/guard"
)

// killBoth kills a node and its guard so that neither can do anything about the other.
func killBoth(t *testing.T, n *node) {
	t.Helper()
	n.kill(t, syscall.SIGSTOP)
	n.guard.kill(t, syscall.SIGKILL)
	n.guard.awaitGone(t, "guard")
	n.kill(t, syscall.SIGKILL)
	n.awaitGone(t, "node")
}

// Ensure a restart after the loss of node and guard ends what they left, in the group and out of it, and proves it.
func TestProcess_BothKilled(t *testing.T) {
	dir := t.TempDir()
	srv := newCloserServer(t, "closed")
	n := startNode(t, dir)
	n.tell(t, srv.feed(10*time.Second))
	n.tell(t, order{Spawn: childArgv("ignore-term", "+", "name=group", "ignore-term", "+", "name=session", "setsid", "+", "name=orphan", "orphan", "setsid", "ignore-term")})
	all := n.out.ups(t, 4)
	n.tell(t, order{Spawn: []string{"sh", "-c", "trap '' TERM; exec 2>/dev/null; echo up shell $$; while :; do read x </dev/zero; done"}})
	all["shell"] = n.out.up(t)
	// The watcher too, before the guard can have another.
	watcher := n.watcher(t)
	n.guard.kill(t, syscall.SIGSTOP)
	watcher.kill(t, syscall.SIGKILL)
	watcher.awaitGone(t, "watcher")
	killBoth(t, n)
	if all["session"].gone(0) || all["group"].gone(0) {
		t.Fatal("grandchildren are gone already: the test shows nothing")
	}
	began := guard.BootTime()
	left, err := guard.Leftovers(dir, patience)
	if err != nil || len(left) > 0 {
		t.Errorf("Leftovers: %v, %v; want nothing left", left, err)
	}
	t.Logf("ended what was left in %v", guard.BootTime()-began)
	for name, p := range all {
		if !p.gone(0) {
			t.Errorf("%s lives", name)
		}
	}
	srv.none(t)
	n.out.ended(t)
	// A second look finds nothing, and quickly; so does a start.
	if left, err := guard.Leftovers(dir, 0); err != nil || len(left) > 0 {
		t.Errorf("second Leftovers: %v, %v", left, err)
	}
	g := start(t, guard.Config{Dir: dir})
	wait(t, spawn(t, g, guard.Spec{Argv: []string{"true"}}))
	if left, err := guard.Leftovers(dir, 0); err != nil || len(left) > 0 {
		t.Errorf("Leftovers under an own guard: %v, %v", left, err)
	}
	if g.PID() == 0 || syscall.Kill(g.PID(), 0) != nil {
		t.Error("Leftovers killed the process's own guard")
	}
}

// Ensure a restart waits for a guard that is still at work, and ends one that is stuck.
func TestProcess_Restart_OldGuard(t *testing.T) {
	t.Run("closing", func(t *testing.T) {
		// The old guard reaches nobody and goes on trying. It holds the folder no more, since no run is left.
		dir := t.TempDir()
		srv := newCloserServer(t, "no quorum")
		n := startNode(t, dir)
		n.tell(t, srv.feed(time.Minute))
		child := n.child(t)
		n.kill(t, syscall.SIGKILL)
		n.awaitGone(t, "node")
		left, err := guard.Leftovers(dir, patience)
		if err != nil || len(left) > 0 || !child.gone(0) {
			t.Errorf("Leftovers: %v, %v; command gone: %v", left, err, child.gone(0))
		}
		g := start(t, guard.Config{Dir: dir})
		wait(t, spawn(t, g, guard.Spec{Argv: []string{"true"}}))
		if n.guard.gone(0) {
			t.Error("the old guard was ended, though it was in nobody's way")
		}
	})
	t.Run("stuck", func(t *testing.T) {
		dir := t.TempDir()
		n := startNode(t, dir)
		n.tell(t, order{Feed: &feedOrder{Stop: time.Minute, Kill: time.Minute}})
		n.tell(t, order{Spawn: childArgv("+", "name=kin", "setsid")})
		all := n.out.ups(t, 2)
		n.guard.kill(t, syscall.SIGSTOP)
		n.kill(t, syscall.SIGKILL)
		n.awaitGone(t, "node")
		if left, err := guard.Leftovers(dir, time.Second); err != nil || len(left) > 0 {
			t.Errorf("Leftovers: %v, %v; want nothing left", left, err)
		}
		n.guard.awaitGone(t, "guard")
		for name, p := range all {
			if !p.gone(0) {
				t.Errorf("%s lives", name)
			}
		}
	})
}

// Ensure nobody takes a folder, or kills the commands, of a guard whose node lives.
func TestProcess_FolderInUse(t *testing.T) {
	dir := t.TempDir()
	n := startNode(t, dir)
	n.tell(t, order{Feed: &feedOrder{Stop: time.Minute, Kill: time.Minute}})
	child := n.child(t)
	if _, err := guard.Leftovers(dir, time.Minute); !errors.Is(err, guard.ErrFolderInUse) {
		t.Errorf("Leftovers: %v, want ErrFolderInUse", err)
	}
	if _, err := guard.Start(guard.Config{Dir: dir}); !errors.Is(err, guard.ErrFolderInUse) {
		t.Errorf("Start: %v, want ErrFolderInUse", err)
	}
	if child.gone(0) || n.guard.gone(0) {
		t.Error("something was killed")
	}
}

// Ensure a copied folder claims nothing of the original's.
func TestProcess_CopiedFolder(t *testing.T) {
	dir, twin := t.TempDir(), t.TempDir()
	n := startNode(t, dir)
	n.tell(t, order{Feed: &feedOrder{Stop: time.Minute, Kill: time.Minute}})
	child := n.child(t)
	for _, name := range []string{"guard.lock", "runs"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(twin, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := guard.Leftovers(twin, time.Second); err != nil || len(left) > 0 {
		t.Errorf("Leftovers of the copy: %v, %v", left, err)
	}
	if child.gone(0) {
		t.Error("the original's command was killed")
	}
}

// Ensure that what can't be proved to be gone is said to be left: records of another pid namespace, and a damaged file.
func TestLeftovers_NoProof(t *testing.T) {
	dir := t.TempDir()
	if left, err := guard.Leftovers(dir, 0); err != nil || len(left) > 0 {
		t.Errorf("a folder without a guard: %v, %v", left, err)
	}
	g := start(t, guard.Config{Dir: dir})
	g.Close(context.Background())
	runs := filepath.Join(dir, "runs")
	head, err := os.ReadFile(runs)
	if err != nil {
		t.Fatal(err)
	}
	write := func(lines string) {
		t.Helper()
		if err := os.WriteFile(runs, []byte(string(head)+lines), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	look := func() []guard.Leftover {
		t.Helper()
		left, err := guard.Leftovers(dir, 0)
		if err != nil {
			t.Fatal(err)
		}
		return left
	}
	foreign := `{"run":1,"namespace":1,"pgid":77,"start":5,"sid":70,"key":"k","token":9}` + "\n"
	write(foreign)
	for range 2 { // it stays so
		left := look()
		if len(left) != 1 || left[0].Key != "k" || left[0].Token != 9 || left[0].PGID != 77 {
			t.Errorf("foreign record: %v", left)
		}
	}
	// Not for ever: no session of its time can be left.
	write(fmt.Sprintf(`{"run":1,"namespace":1,"pgid":77,"start":5,"unseen":%d}`+"\n", max(1, guard.BootTime()-11*time.Minute)))
	if left := look(); guard.BootTime() > 12*time.Minute && len(left) != 0 {
		t.Errorf("old foreign record: %v", left)
	}
	write(foreign + `{"end":1}` + "\n")
	if left := look(); len(left) != 0 {
		t.Errorf("ended run: %v", left)
	}
	write(`{"run":1,"namespace":1,"pg`)
	if left := look(); len(left) != 0 {
		t.Errorf("torn last line: %v", left)
	}
	write("rubbish\n" + foreign)
	if left := look(); len(left) != 1 || !strings.Contains(left[0].Reason, "damaged") {
		t.Errorf("damaged file: %v", left)
	}
}

// Ensure a number that has become another process's is left alone.
func TestLeftovers_ReusedNumber(t *testing.T) {
	dir := t.TempDir()
	g := start(t, guard.Config{Dir: dir})
	g.Close(context.Background())
	cmd := exec.Command("/proc/self/exe", "stand-in", "child")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	bystander := watch(t, cmd.Process.Pid)
	defer func() { bystander.kill(t, syscall.SIGKILL); cmd.Wait() }()
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		t.Fatal(err)
	}
	sid, err := unix.Getsid(0)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "runs"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(f, `{"run":1,"namespace":%d,"pgid":%d,"start":5,"sid":%d}`+"\n", st.Ino, bystander.pid, sid)
	f.Close()
	if left, err := guard.Leftovers(dir, time.Second); err != nil || len(left) > 0 {
		t.Errorf("Leftovers: %v, %v", left, err)
	}
	if bystander.gone(0) {
		t.Error("a bystander was killed")
	}
}

// Ensure a command runs only with its record on disk, and that the record goes with it.
func TestProcess_RunsFile(t *testing.T) {
	dir := t.TempDir()
	g := start(t, guard.Config{Dir: dir})
	runs := filepath.Join(dir, "runs")
	out := newOutput(t)
	p := spawn(t, g, guard.Spec{Argv: []string{"sh", "-c", "cat " + runs + "; echo end"}, Stdout: out.w, Key: "singleton:mail", Token: 12})
	out.line(t) // header
	if got, want := out.line(t), fmt.Sprintf(`"pgid":%d,`, p.PID()); !strings.Contains(got, want) || !strings.Contains(got, `"key":"singleton:mail","token":12`) {
		t.Errorf("the command read %s in the runs file, want %s", got, want)
	}
	wait(t, p)
	g.Close(t.Context())
	b, err := os.ReadFile(runs)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Count(b, []byte("\n")) > 3 {
		t.Errorf("the runs file keeps what is over: %s", b)
	}
	if left, err := guard.Leftovers(dir, 0); err != nil || len(left) > 0 {
		t.Errorf("Leftovers after Close: %v, %v", left, err)
	}
}

// Ensure a disk that takes no record starts no command.
func TestProcess_FullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("mount: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	g := start(t, guard.Config{Dir: dir})
	if err := os.WriteFile(filepath.Join(dir, "ballast"), make([]byte, 1<<20), 0o600); err == nil {
		t.Skip("the small file system is not small")
	}
	// What is left of the file's page takes a few records.
	var alive []*guard.Process
	var err error
	for range 40 {
		var p *guard.Process
		if p, err = g.Spawn(t.Context(), guard.Spec{Argv: childArgv(), Key: strings.Repeat("k", 400)}); err != nil {
			break
		}
		alive = append(alive, p)
	}
	for _, p := range alive {
		p.Stop(-1)
		wait(t, p)
	}
	if !errors.Is(err, guard.ErrRecord) {
		t.Fatalf("Spawn on a full disk: %v, want ErrRecord", err)
	}
	os.Remove(filepath.Join(dir, "ballast"))
	wait(t, spawn(t, g, guard.Spec{Argv: []string{"true"}}))
}
