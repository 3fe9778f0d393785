package worker_test

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/miwnode/miwnode/coord/worker"
)

// TestOutput: each line is a record, however it was written.
func TestOutput(t *testing.T) {
	long := strings.Repeat("x", 16<<10)
	for _, c := range []struct {
		name   string
		writes []string
		want   []string
	}{
		{"lines", []string{"one\ntwo\n"}, []string{"one", "two"}},
		{"in pieces", []string{"o", "n", "e\nt", "wo", "\n"}, []string{"one", "two"}},
		{"carriage returns", []string{"one\r\ntwo\r\n"}, []string{"one", "two"}},
		{"empty lines", []string{"\n\none\n"}, []string{"", "", "one"}},
		{"no end", []string{"one\ntwo"}, []string{"one", "two"}},
		{"nothing", []string{""}, nil},
		{"not UTF-8", []string{"a\xffb\n"}, []string{"a\uFFFDb"}},
		{"as long as may be", []string{long + "\nnext\n"}, []string{long, "next"}},
		{"longer", []string{long + "yz\nnext\n"}, []string{long, "yz", "next"}},
		{"longer, in pieces", []string{long[1:], "xyz", "\n"}, []string{long, "yz"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b bytes.Buffer
			log := slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.MessageKey || a.Key == "stream" || a.Key == "worker" {
					return a
				}
				return slog.Attr{}
			}}))
			o := worker.NewOutput(log.With("worker", "w"), "stdout")
			for _, w := range c.writes {
				if n, err := o.Write([]byte(w)); n != len(w) || err != nil {
					t.Fatalf("Write = %d, %v", n, err)
				}
			}
			if err := o.Close(); err != nil {
				t.Fatal(err)
			}
			var got []string
			for line := range strings.Lines(b.String()) {
				msg := strings.TrimSuffix(strings.TrimPrefix(line, "msg="), " worker=w stream=stdout\n")
				got = append(got, strings.Trim(msg, `"`))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %.100q, want %.100q", got, c.want)
			}
		})
	}
}
