package artifact_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/miwnode/miwnode/artifact"
)

const (
	hello       = "hello, world\n"
	helloDigest = "853ff93762a06ddbf722c4ebe9ddd66d8f63ddaea97f521c3ecc20da7c976020"
	emptyDigest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

func digest(t *testing.T, text string) artifact.Digest {
	t.Helper()
	d, err := artifact.ParseDigest(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func open(t *testing.T) (s *artifact.Store, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "artifacts")
	s, err := artifact.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s, dir
}

func put(t *testing.T, s *artifact.Store, content string) artifact.Digest {
	t.Helper()
	d, size, err := s.Put(strings.NewReader(content), artifact.MaxUpload)
	if err != nil || size != int64(len(content)) {
		t.Fatalf("Put: size %d, error %v; want %d", size, err, len(content))
	}
	return d
}

// names lists what is in the folder.
func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return strings.Join(list, " ")
}

func read(t *testing.T, s *artifact.Store, d artifact.Digest) string {
	t.Helper()
	f, err := s.Open(d)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestParseDigest(t *testing.T) {
	for _, text := range []string{helloDigest, "sha256:" + helloDigest, strings.ToUpper(helloDigest)} {
		if d, err := artifact.ParseDigest(text); err != nil || d.String() != helloDigest {
			t.Errorf("ParseDigest(%q) = %s, %v", text, d, err)
		}
	}
	for _, text := range []string{"", "sha256:", helloDigest[1:], helloDigest + "00", "md5:" + helloDigest, strings.Repeat("x", 64)} {
		if d, err := artifact.ParseDigest(text); err == nil {
			t.Errorf("ParseDigest(%q) = %s, want an error", text, d)
		}
	}
}

// TestStore_Put: content is found under its digest, once, and nobody else can read it.
func TestStore_Put(t *testing.T) {
	s, dir := open(t)
	for range 2 {
		if d := put(t, s, hello); d.String() != helloDigest {
			t.Fatalf("digest %s, want %s", d, helloDigest)
		}
	}
	d := digest(t, helloDigest)
	if !s.Has(d) || read(t, s, d) != hello {
		t.Errorf("Has %v, content %q", s.Has(d), read(t, s, d))
	}
	if got := names(t, dir); got != helloDigest {
		t.Errorf("folder has %q, want %q", got, helloDigest)
	}
	for path, want := range map[string]fs.FileMode{dir: 0o700 | fs.ModeDir, s.Path(d): 0o600} {
		if st, err := os.Stat(path); err != nil || st.Mode() != want {
			t.Errorf("%s: mode %v, error %v, want %v", path, st.Mode(), err, want)
		}
	}
	if d := put(t, s, ""); d.String() != emptyDigest {
		t.Errorf("empty content has digest %s", d)
	}
}

// TestStore_PutLimit: the limit itself fits, one byte more leaves nothing behind.
func TestStore_PutLimit(t *testing.T) {
	s, dir := open(t)
	if _, size, err := s.Put(strings.NewReader("12345678"), 8); err != nil || size != 8 {
		t.Errorf("8 of 8 bytes: size %d, error %v", size, err)
	}
	before := names(t, dir)
	if _, _, err := s.Put(strings.NewReader("123456789"), 8); !errors.Is(err, artifact.ErrTooLarge) {
		t.Errorf("9 of 8 bytes: error %v, want ErrTooLarge", err)
	}
	if after := names(t, dir); after != before {
		t.Errorf("left behind: %q, before %q", after, before)
	}
	endless := io.LimitReader(zeros{}, 1<<40)
	if _, _, err := s.Put(endless, artifact.MaxUpload); !errors.Is(err, artifact.ErrTooLarge) {
		t.Errorf("a terabyte: error %v, want ErrTooLarge", err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

var errBroken = errors.New("broken")

// TestStore_PutBroken: a reader's error comes back, nothing stays.
func TestStore_PutBroken(t *testing.T) {
	s, dir := open(t)
	_, _, err := s.Put(io.MultiReader(strings.NewReader("half"), failing{}), 100)
	if !errors.Is(err, errBroken) || names(t, dir) != "" {
		t.Errorf("error %v, folder %q", err, names(t, dir))
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errBroken }

func TestStore_Import(t *testing.T) {
	s, _ := open(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "script")
	if err := os.WriteFile(path, []byte(hello), 0o700); err != nil {
		t.Fatal(err)
	}
	if d, size, err := s.Import(path); err != nil || d.String() != helloDigest || size != 13 {
		t.Errorf("Import = %s, %d, %v", d, size, err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	huge := filepath.Join(dir, "huge")
	if err := os.WriteFile(huge, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(huge, artifact.MaxSize+1); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{
		filepath.Join(dir, "none"): artifact.ErrNotFound,
		dir:                        artifact.ErrRefused,
		pipe:                       artifact.ErrRefused,
		huge:                       artifact.ErrTooLarge,
	} {
		if _, _, err := s.Import(path); !errors.Is(err, want) {
			t.Errorf("Import(%s): error %v, want %v", path, err, want)
		}
	}
}

// TestStore_OpenDamaged: content that changed on disk is never handed out, and can be stored anew.
func TestStore_OpenDamaged(t *testing.T) {
	s, dir := open(t)
	d := put(t, s, hello)
	if err := os.WriteFile(s.Path(d), []byte("hellO, world\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := s.Open(d)
	if !errors.Is(err, artifact.ErrNotFound) || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("error %v, want ErrNotFound that says damaged", err)
	}
	if s.Has(d) || names(t, dir) != "" {
		t.Errorf("still there: %q", names(t, dir))
	}
	if _, err := s.Open(d); !errors.Is(err, artifact.ErrNotFound) {
		t.Errorf("error %v, want ErrNotFound", err)
	}
	put(t, s, hello)
	if got := read(t, s, d); got != hello {
		t.Errorf("content %q", got)
	}
}

func TestStore_ReadAt(t *testing.T) {
	s, _ := open(t)
	d := put(t, s, hello)
	for _, c := range []struct {
		offset int64
		want   string
	}{{0, "hello"}, {7, "world"}, {11, "d\n"}, {13, ""}, {1000, ""}} {
		b := make([]byte, 5)
		n, size, err := s.ReadAt(d, b, c.offset)
		if err != nil || string(b[:n]) != c.want || size != 13 {
			t.Errorf("ReadAt(%d) = %q, size %d, error %v; want %q, 13", c.offset, b[:n], size, err, c.want)
		}
	}
	if _, _, err := s.ReadAt(digest(t, emptyDigest), nil, 0); !errors.Is(err, artifact.ErrNotFound) {
		t.Errorf("error %v, want ErrNotFound", err)
	}
}

// TestStore_FillResumes: what was received stays for the next Fill, across a restart too.
func TestStore_FillResumes(t *testing.T) {
	s, dir := open(t)
	d := digest(t, helloDigest)
	err := s.Fill(t.Context(), d, 100, func(p *artifact.Part) error {
		if _, err := p.Write([]byte("hello")); err != nil {
			return err
		}
		return errBroken
	})
	if !errors.Is(err, errBroken) || s.Has(d) || names(t, dir) != helloDigest+".part" {
		t.Fatalf("error %v, has %v, folder %q", err, s.Has(d), names(t, dir))
	}
	if err := os.WriteFile(filepath.Join(dir, "put-1.tmp"), []byte("half a put"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err = artifact.Open(dir); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); got != helloDigest+".part" {
		t.Errorf("after a restart the folder has %q", got)
	}
	err = s.Fill(t.Context(), d, 100, func(p *artifact.Part) error {
		if p.Offset() != 5 {
			t.Errorf("offset %d, want 5", p.Offset())
		}
		_, err := p.Write([]byte(", world\n"))
		return err
	})
	if err != nil || read(t, s, d) != hello || names(t, dir) != helloDigest {
		t.Errorf("error %v, folder %q", err, names(t, dir))
	}
	if err := s.Fill(t.Context(), d, 100, func(*artifact.Part) error { return errBroken }); err != nil {
		t.Errorf("what is there was asked for: %v", err)
	}
}

// TestStore_FillWrong: wrong or too large content leaves nothing, not even a part.
func TestStore_FillWrong(t *testing.T) {
	s, dir := open(t)
	d := digest(t, helloDigest)
	write := func(text string) error {
		return s.Fill(t.Context(), d, 13, func(p *artifact.Part) error {
			_, err := p.Write([]byte(text))
			return err
		})
	}
	if err := write("hello, earth\n"); !errors.Is(err, artifact.ErrMismatch) || names(t, dir) != "" {
		t.Errorf("error %v, want ErrMismatch; folder %q", err, names(t, dir))
	}
	if err := write("hello, world\n\n"); !errors.Is(err, artifact.ErrTooLarge) || names(t, dir) != "" {
		t.Errorf("error %v, want ErrTooLarge; folder %q", err, names(t, dir))
	}
	if err := write(hello); err != nil {
		t.Error(err)
	}
}

// TestStore_FillReset: a part that is no good can be begun anew.
func TestStore_FillReset(t *testing.T) {
	s, _ := open(t)
	d := digest(t, helloDigest)
	err := s.Fill(t.Context(), d, 13, func(p *artifact.Part) error {
		if _, err := p.Write([]byte("rubbish")); err != nil {
			return err
		}
		if err := p.Reset(); err != nil {
			return err
		}
		_, err := p.Write([]byte(hello))
		return err
	})
	if err != nil || read(t, s, d) != hello {
		t.Error(err)
	}
}

// TestStore_FillShared: of many who want one artifact one gets it.
func TestStore_FillShared(t *testing.T) {
	s, _ := open(t)
	d := digest(t, helloDigest)
	entered, goOn := make(chan struct{}), make(chan struct{})
	calls := 0 // of one Fill at a time
	fill := func(p *artifact.Part) error {
		if calls++; calls == 1 {
			close(entered)
			<-goOn
			return errBroken // the next goes on
		}
		_, err := p.Write([]byte(hello))
		return err
	}
	var wg sync.WaitGroup
	errs := make(chan error, 8)
	wg.Go(func() { errs <- s.Fill(context.Background(), d, 100, fill) })
	<-entered
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("nobody waits"))
	if err := s.Fill(gone, d, 100, fill); err == nil || err.Error() != "nobody waits" {
		t.Errorf("error %v, want the cause of the end", err)
	}
	for range 7 {
		wg.Go(func() { errs <- s.Fill(context.Background(), d, 100, fill) })
	}
	close(goOn)
	wg.Wait()
	close(errs)
	failed := 0
	for err := range errs {
		if err != nil {
			failed++
		}
	}
	if calls != 2 || failed != 1 || !s.Has(d) {
		t.Errorf("%d calls and %d failures, want 2 and 1", calls, failed)
	}
}
