package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
)

// Every fault of a data folder is one clear error of its kind that names the folder.
func TestFolder_Faults(t *testing.T) {
	write := func(name, content string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	const sound = `{"format":1,"node_id":"n1","boot":3,"cluster_id":"X"}`
	for _, c := range []struct {
		name  string
		setup func(t *testing.T, dir string)
		id    string
		want  error
		says  string
	}{
		{"sound", write(identityFile, sound), "", nil, ""},
		{"another ID", write(identityFile, sound), "n2", ErrOtherID, "belongs to node n1, not to n2"},
		{"truncated", write(identityFile, sound[:20]), "", ErrFolderDamaged, "cut short"},
		{"empty", write(identityFile, ""), "", ErrFolderDamaged, "cut short"},
		{"newer", write(identityFile, `{"format":2,"node":"?"}`), "", ErrFolderNewer, "run the newer version"},
		{"no node in it", write(identityFile, `{"format":1}`), "", ErrFolderDamaged, "names no node"},
		{"unreadable", func(t *testing.T, dir string) { _ = os.Mkdir(filepath.Join(dir, identityFile), 0o700) }, "", ErrFolderDamaged, "can't be read"},
		{"log without identity", write(raftFile, "x"), "", ErrFolderDamaged, "node.json is missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			c.setup(t, dir)
			f, err := openFolder(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer f.release()
			before, _ := os.ReadFile(filepath.Join(dir, identityFile))
			_, err = openIdentity(f, c.id, "k", false)
			if !errors.Is(err, c.want) {
				t.Fatalf("error %v, want %v", err, c.want)
			}
			if err == nil {
				return
			}
			if !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), dir) {
				t.Errorf("error %q does not say %q and the folder", err, c.says)
			}
			if after, _ := os.ReadFile(filepath.Join(dir, identityFile)); string(after) != string(before) {
				t.Errorf("the refused start changed %s to %q", identityFile, after)
			}
		})
	}
}

func TestFolder_InUse(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	f, err := openFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the folder has mode %v", st.Mode())
	}
	_, err = openFolder(dir)
	if !errors.Is(err, ErrFolderInUse) || !strings.Contains(err.Error(), "in use by process") {
		t.Errorf("second lock: %v", err)
	}
	f.release()
	f.release()
	again, err := openFolder(dir)
	if err != nil {
		t.Fatalf("after the release: %v", err)
	}
	again.release()
}

// The boot number grows with every start, and the proof of a restart needs the
// same kernel.
func TestIdentity_Boots(t *testing.T) {
	dir := t.TempDir()
	start := func(dir, kernel string) *identity {
		t.Helper()
		f, err := openFolder(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer f.release()
		id, err := openIdentity(f, "", kernel, false)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	first := start(dir, "k1")
	if first.boot() != 1 || !first.fresh {
		t.Errorf("first start: boot %d, fresh %t", first.boot(), first.fresh)
	}
	if ok, why := first.sameHost(); ok {
		t.Errorf("a first start proves something: %s", why)
	}
	second := start(dir, "k1")
	if second.boot() != 2 || second.id != first.id || second.nonce == first.nonce || second.instanceID == first.instanceID {
		t.Errorf("second start: boot %d, ID %s then %s", second.boot(), first.id, second.id)
	}
	if ok, why := second.sameHost(); !ok {
		t.Errorf("a restart proves nothing: %s", why)
	}
	if ok, why := start(dir, "k2").sameHost(); ok || why != "the machine was started anew" {
		t.Errorf("after a reboot: %t %s", ok, why)
	}
}

func TestIdentity_OneCluster(t *testing.T) {
	f, err := openFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.release()
	id, err := openIdentity(f, "", "k", false)
	if err != nil {
		t.Fatal(err)
	}
	if err := id.adopt("X"); err != nil {
		t.Fatal(err)
	}
	if err := id.adopt("X"); err != nil {
		t.Errorf("the same cluster again: %v", err)
	}
	if err := id.adopt("Y"); !errors.Is(err, ErrOtherCluster) {
		t.Errorf("another cluster: %v", err)
	}
}

// A log that is cut short, empty or garbage is refused before bolt maps it: a
// page that is not there would end the process with SIGBUS.
func TestStore_Truncated(t *testing.T) {
	f := &folder{dir: t.TempDir()}
	path := f.path(raftFile)
	s, err := openStore(f, false, &Seams{}, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); i < 200; i++ {
		if err := s.StoreLog(&raft.Log{Index: i, Term: 1, Data: make([]byte, 4096)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := checkBolt(path); err != nil {
		t.Fatalf("a sound file: %v", err)
	}
	for _, size := range []int{0, 100, 4096, 8192, 16384, 100_000, 400_000} {
		if err := os.WriteFile(path, whole[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openStore(f, true, &Seams{}, func(error) {}); !errors.Is(err, ErrFolderDamaged) {
			t.Errorf("cut to %d bytes: %v", size, err)
		}
	}
	if err := os.WriteFile(path, []byte(strings.Repeat("garbage ", 10000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openStore(f, true, &Seams{}, func(error) {}); !errors.Is(err, ErrFolderDamaged) {
		t.Errorf("garbage: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := openStore(f, true, &Seams{}, func(error) {}); !errors.Is(err, ErrFolderDamaged) {
		t.Errorf("missing though the node has state: %v", err)
	}
}
