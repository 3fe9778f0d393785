package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miwnode/miwnode/jepsen"
)

// tortureStatus tells how a torture goes: on a terminal in one line that is
// rewritten, and lines for what happens above it; elsewhere in lines alone.
type tortureStatus struct {
	out  io.Writer
	t    *jepsen.Torture
	live bool
	quit chan struct{}
	wg   sync.WaitGroup

	mu    sync.Mutex
	stage string
	told  int             // faults whose beginning was told
	open  map[int]bool    // of them, those whose end was not
	cried map[string]bool // violations and notices that were told
	plain time.Time       // of the last plain line of figures
	drawn bool            // the line is on the terminal
}

const (
	redrawEvery = 250 * time.Millisecond
	plainEvery  = 15 * time.Second
)

func newTortureStatus(out io.Writer, t *jepsen.Torture) *tortureStatus {
	s := &tortureStatus{out: out, t: t, quit: make(chan struct{}), open: map[int]bool{}, cried: map[string]bool{}}
	if f, ok := out.(*os.File); ok {
		if st, err := f.Stat(); err == nil {
			s.live = st.Mode()&os.ModeCharDevice != 0
		}
	}
	return s
}

func (s *tortureStatus) begin() {
	s.line("%d nodes, %v, seed %d: %s", s.t.Nodes, s.t.Length, s.t.Seed, strings.Join(jepsen.PlagueNames(s.t.Plagues), ", "))
	s.wg.Go(func() {
		tick := time.NewTicker(redrawEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.tell()
			case <-s.quit:
				return
			}
		}
	})
}

func (s *tortureStatus) end() {
	close(s.quit)
	s.wg.Wait()
	s.tell()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wipe()
}

// line writes a line above the live one.
func (s *tortureStatus) line(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.print(format, args...)
}

func (s *tortureStatus) print(format string, args ...any) {
	s.wipe()
	fmt.Fprintf(s.out, format+"\n", args...)
}

func (s *tortureStatus) wipe() {
	if s.drawn {
		fmt.Fprint(s.out, "\r\x1b[K")
		s.drawn = false
	}
}

// tell says what is new, and how things stand.
func (s *tortureStatus) tell() {
	p := s.t.Progress()
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.Stage != s.stage {
		s.stage = p.Stage
		if s.stage != "" {
			s.print("%s  %s", clock(p), s.stage)
		}
	}
	for _, n := range p.Notices {
		if !s.cried[n] {
			s.cried[n] = true
			s.print("%s  note: %s", clock(p), n)
		}
	}
	for i, w := range p.Faults {
		if w.Fault == jepsen.FaultStart || w.Fault == jepsen.FaultEnd {
			continue
		}
		if i >= s.told {
			s.open[i] = true
			s.print("%s  + %s", clock(p), faultText(w))
		}
		if s.open[i] && w.To != jepsen.Never {
			delete(s.open, i)
			s.print("%s  - %s", clock(p), faultText(w))
		}
	}
	s.told = max(s.told, len(p.Faults))
	for _, v := range p.Violations {
		if !s.cried[v] {
			s.cried[v] = true
			s.print("%s  VIOLATION %s", clock(p), v)
		}
	}
	switch {
	case s.live:
		line := figures(p, s.present(p))
		if width := 118; len(line) > width {
			line = line[:width] + "…"
		}
		fmt.Fprint(s.out, "\r"+line+"\x1b[K")
		s.drawn = true
	case time.Since(s.plain) > plainEvery && p.Elapsed > 0 && p.Elapsed < p.Length:
		s.plain = time.Now()
		s.print("%s", figures(p, s.present(p)))
	}
}

func faultText(w jepsen.Window) string {
	text := w.Fault + " " + strings.Join(w.Nodes, " ")
	if w.To != jepsen.Never {
		text += " (" + (w.To - w.From).Round(10*time.Millisecond).String() + ")"
	}
	return text
}

// present names the faults that go on.
func (s *tortureStatus) present(p jepsen.Progress) (names []string) {
	for i := range s.open {
		if i < len(p.Faults) {
			names = append(names, p.Faults[i].Fault+" "+strings.Join(p.Faults[i].Nodes, " "))
		}
	}
	slices.Sort(names)
	return names
}

func clock(p jepsen.Progress) string {
	d := p.Elapsed.Round(time.Second)
	return fmt.Sprintf("%02d:%02d", int(d.Minutes()), int(d.Seconds())%60)
}

func figures(p jepsen.Progress, faults []string) string {
	length := jepsen.Progress{Elapsed: p.Length}
	return fmt.Sprintf("%s/%s  ops %d (%d uncertain)  grants %d  leader %s  faults: %s  violations %d",
		clock(p), clock(length), p.Ops, p.Uncertain, p.Grants, cmpOr(p.Leader, "none"), cmpOr(strings.Join(faults, ", "), "none"), len(p.Violations))
}
