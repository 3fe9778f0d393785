package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What changes by itself is no copy; what tells two files apart is.
func TestCopies_Elsewhere(t *testing.T) {
	was := identityRecord{KernelBoot: "k1", lockMark: lockMark{Device: 2049, Inode: 12, Born: time.Unix(1_700_000_000, 123_456_789).UTC()}}
	for _, c := range []struct {
		name string
		edit func(before, now *identityRecord)
		want string
	}{
		{"the same", func(_, _ *identityRecord) {}, ""},
		{"reboot", func(_, now *identityRecord) { now.KernelBoot = "k2" }, ""},
		{"reboot, the disk has another number", func(_, now *identityRecord) { now.KernelBoot, now.Device = "k2", 2065 }, ""},
		{"the volume came to another machine", func(_, now *identityRecord) { now.KernelBoot, now.Device = "k2", 66 }, ""},
		{"no boot ID, another number", func(before, now *identityRecord) { before.KernelBoot, now.KernelBoot, now.Device = "", "", 2065 }, ""},
		{
			"snapshot mounted beside the original", func(_, now *identityRecord) { now.Device = 2065 },
			"its lock file was inode 12 on device 2049, made 2023-11-14T22:13:20.123456789Z, and is inode 12 on device 2065, made 2023-11-14T22:13:20.123456789Z",
		},
		{"copied beside the original", func(_, now *identityRecord) { now.Inode = 13 }, "was inode 12 on device 2049, made 2023-11-14T22:13:20.123456789Z, and is inode 13 on"},
		{"copied to another machine", func(_, now *identityRecord) { now.KernelBoot, now.Device, now.Inode = "k2", 66, 13 }, "and is inode 13 on device 66"},
		{
			"copied to a new disk that gave the same inode", func(_, now *identityRecord) {
				now.KernelBoot, now.Device, now.Born = "k2", 66, was.Born.Add(time.Second)
			},
			"and is inode 12 on device 66, made 2023-11-14T22:13:21.123456789Z",
		},
		{"restored in place, the inode was free", func(_, now *identityRecord) { now.Born = was.Born.Add(time.Second) }, "and is inode 12 on device 2049, made 2023-11-14T22:13:21"},
		{"no birth", func(before, _ *identityRecord) { before.Born = time.Time{} }, ""},
		{"no birth, another inode", func(before, now *identityRecord) { before.Born, now.Inode = time.Time{}, 13 }, "its lock file was inode 12 on device 2049, and is inode 13 on"},
		{"nothing known of the former start", func(before, _ *identityRecord) { before.lockMark = lockMark{} }, ""},
		{"nothing known of this one", func(_, now *identityRecord) { now.lockMark = lockMark{} }, ""},
	} {
		before, now := was, was
		c.edit(&before, &now)
		got := elsewhere(before, now)
		if got == "" != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// A copied folder is refused and left as it is, until it is said that it was
// moved; then it is the
// original, but proves nothing of the former start.
func TestCopies_Refused(t *testing.T) {
	start := func(dir string, moved bool) (*identity, error) {
		t.Helper()
		f, err := openFolder(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer f.release()
		return openIdentity(f, "", "k1", moved)
	}
	original, copied := t.TempDir(), t.TempDir()
	first, err := start(original, false)
	if err != nil {
		t.Fatal(err)
	}
	record, err := os.ReadFile(filepath.Join(original, identityFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(copied, identityFile), record, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = start(copied, false)
	if !errors.Is(err, ErrFolderCopied) {
		t.Fatalf("on a copy: %v", err)
	}
	for _, says := range []string{
		"data folder " + copied + ": it is not the folder on which node " + first.id + " was last started but a copy, or it was moved, restored or mounted anew: its lock file was inode ",
		"one voter twice", "start it once with --moved (node.Config.Moved)", "an empty folder joins as a new node",
	} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("error %q does not say %q", err, says)
		}
	}
	if after, _ := os.ReadFile(filepath.Join(copied, identityFile)); string(after) != string(record) {
		t.Errorf("the refused start changed %s to %q", identityFile, after)
	}
	moved, err := start(copied, true)
	if err != nil || moved.id != first.id || moved.boot() != 2 || moved.moved == "" {
		t.Fatalf("moved: %v, boot %d, ID %s, %q", err, moved.boot(), moved.id, moved.moved)
	}
	if ok, why := moved.sameHost(); ok || why != "the folder was moved or restored" {
		t.Errorf("a moved folder proves a restart: %t %s", ok, why)
	}
	again, err := start(copied, false)
	if err != nil || again.moved != "" {
		t.Fatalf("after the start with moved: %v, %q", err, again.moved)
	}
	if ok, why := again.sameHost(); !ok {
		t.Errorf("a restart where it was moved to proves nothing: %s", why)
	}
}
