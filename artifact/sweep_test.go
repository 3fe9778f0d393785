package artifact_test

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miwnode/miwnode/artifact"
)

// A sweep removes what is old and not wanted, parts too, and nothing that is not
// an artifact's or is being received.
func TestStore_Sweep(t *testing.T) {
	s, dir := open(t)
	now := time.Now()
	aged := func(name string, age time.Duration) {
		t.Helper()
		if err := os.Chtimes(filepath.Join(dir, name), now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	put := func(content string, age time.Duration) artifact.Digest {
		t.Helper()
		d, _, err := s.Put(strings.NewReader(content), artifact.MaxUpload)
		if err != nil {
			t.Fatal(err)
		}
		aged(d.String(), age)
		return d
	}
	wanted, old, young := put("wanted", 3*time.Hour), put("old", 2*time.Hour), put("young", 59*time.Minute)
	half, foreign := strings.Repeat("ab", 32)+".part", strings.Repeat("AB", 32)
	for _, name := range []string{half, foreign, "put-1.tmp", "notes"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		aged(name, 2*time.Hour)
	}
	coming := digest(t, helloDigest)
	err := s.Fill(t.Context(), coming, 100, func(p *artifact.Part) error {
		aged(coming.String()+".part", 2*time.Hour)
		removed, err := s.Sweep(now.Add(-time.Hour), func(d artifact.Digest) bool { return d == wanted })
		if removed != 1 || err != nil {
			t.Errorf("removed %d, %v", removed, err)
		}
		_, err = io.WriteString(p, hello)
		return err
	})
	if err != nil {
		t.Error(err)
	}
	var got []string
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		got = append(got, e.Name())
	}
	want := []string{wanted.String(), young.String(), coming.String(), foreign, "put-1.tmp", "notes"}
	slices.Sort(want)
	if !slices.Equal(got, want) || s.Has(old) {
		t.Errorf("left: %q, want %q", got, want)
	}
}
