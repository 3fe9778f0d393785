package jepsen

import (
	"embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

//go:embed page
var pageFiles embed.FS

var pageTemplate = template.Must(template.New("page.html").Funcs(template.FuncMap{
	"file": func(name string) (string, error) {
		raw, err := pageFiles.ReadFile("page/" + name)
		return string(raw), err
	},
	"css": func(s string) template.CSS { return template.CSS(s) }, //nolint:gosec // our own file
	"js":  func(s string) template.JS { return template.JS(s) },   //nolint:gosec // our own file
}).ParseFS(pageFiles, "page/page.html"))

// WriteHTML writes the report as one page that needs nothing else.
func (r *Report) WriteHTML(w io.Writer) error {
	return pageTemplate.Execute(w, r.page())
}

// page is what the page shows. Times are in milliseconds where its script uses them.
type page struct {
	Title, Summary string
	OK             bool
	Broken         []string
	Meta           Meta
	Facts          []fact
	Notices        []string
	Counts         Counts
	Verdicts       []pageVerdict
	Calls, Gaps    []pageMeasure
	Schedule       []Step
	Replay         string
	Data           pageData
}

// fact is one line of what was run.
type fact struct{ Name, Value string }

type pageVerdict struct {
	Verdict
	Promise  Promise
	Evidence [][]passage
}

// passage is part of a text; it may be an instant.
type passage struct {
	Text string
	At   float64
	Is   bool // an instant
}

type pageMeasure struct {
	Name, What          string
	N                   int
	P50, P99, Max       string
	Bound               string
	Values              []float64 // ms, at most a few hundred
	P50MS, P99MS, MaxMS float64
	BoundMS             float64
}

// pageData is for the script.
type pageData struct {
	Nodes   []string     `json:"nodes"`
	Length  float64      `json:"length"`
	Keys    []pageKey    `json:"keys"`
	Faults  []pageFault  `json:"faults"`
	Leaders []pageLeader `json:"leaders"`
	Rate    pageRate     `json:"rate"`
	Gauges  []pageGauge  `json:"gauges"`
	Marks   []pageMark   `json:"marks"`
}

type pageKey struct {
	Name   string    `json:"name"`
	Wanted bool      `json:"wanted"`
	Runs   []pageRun `json:"runs"`
}

type pageRun struct {
	Node  int     `json:"n"` // -1: a program of its own
	Proc  string  `json:"p"`
	Token uint64  `json:"t"`
	From  float64 `json:"a"`
	To    float64 `json:"b"`
	End   string  `json:"e"`
}

type pageFault struct {
	Name  string   `json:"name"`
	Nodes []int    `json:"nodes"`
	Keys  []string `json:"keys,omitempty"`
	From  float64  `json:"a"`
	To    float64  `json:"b"`
	Text  string   `json:"text"`
	Order bool     `json:"order"` // no fault: nothing may be late for it
}

type pageLeader struct {
	Node int     `json:"n"`
	At   float64 `json:"a"`
}

// pageRate are counts of calls by when they ended, or would have.
type pageRate struct {
	Step      float64 `json:"step"`
	Done      []int   `json:"done"`
	Refused   []int   `json:"refused"`
	Uncertain []int   `json:"uncertain"`
}

type pageGauge struct {
	Node       int     `json:"n"`
	At         float64 `json:"a"`
	Goroutines int     `json:"g"`
	Handles    int     `json:"h"`
	Memory     float64 `json:"m"` // MiB
}

type pageMark struct {
	At   float64 `json:"a"`
	Key  string  `json:"key"`
	Text string  `json:"text"`
}

func ms(d time.Duration) float64 {
	return float64(d.Round(10*time.Microsecond)) / float64(time.Millisecond)
}

func (r *Report) page() page {
	h := r.History
	p := page{
		Title: fmt.Sprintf("%s, seed %d", h.Meta.Name, h.Meta.Seed), Summary: r.Summary(), OK: r.OK(), Meta: h.Meta,
		Counts: Count(h), Schedule: r.Schedule, Replay: r.Replay, Facts: h.facts(),
	}
	if h.Meta.Setup != nil {
		p.Notices = h.Meta.Setup.notices()
	}
	for _, v := range r.Verdicts {
		pv := pageVerdict{Verdict: v, Promise: PromiseOf(v.Check)}
		for _, f := range v.Faults {
			passages := instants(f)
			pv.Evidence = append(pv.Evidence, passages)
			if i := slices.IndexFunc(passages, func(p passage) bool { return p.Is }); i >= 0 {
				key, _, _ := strings.Cut(f, ": ")
				p.Data.Marks = append(p.Data.Marks, pageMark{At: passages[i].At, Key: key, Text: v.Check + ": " + f})
			}
		}
		if !v.OK {
			p.Broken = append(p.Broken, pv.Promise.Name)
		}
		p.Verdicts = append(p.Verdicts, pv)
	}
	for _, m := range h.Calls() {
		p.Calls = append(p.Calls, pageMeasureOf(m))
	}
	for _, m := range h.Gaps() {
		p.Gaps = append(p.Gaps, pageMeasureOf(m))
	}
	h.fill(&p.Data)
	return p
}

// facts are what was run, and on what.
func (h *History) facts() []fact {
	all := []fact{
		{"nodes", fmt.Sprintf("%d (%s)", len(h.Meta.Nodes), strings.Join(h.Meta.Nodes, ", "))},
		{"seed", fmt.Sprint(h.Meta.Seed)},
		{"observed for", h.Meta.Length.Round(time.Millisecond).String()},
		{"bounds", fmt.Sprintf("TTL %v, election %v, commits and machinery %v", h.Meta.Bounds.TTL, h.Meta.Bounds.Election, h.Meta.Bounds.Slack)},
	}
	s := h.Meta.Setup
	if s == nil {
		return all
	}
	var timing []string
	for _, name := range slices.Sorted(maps.Keys(s.Timing)) {
		timing = append(timing, "--"+name+" "+s.Timing[name])
	}
	all = append(all,
		fact{"begun", s.Began.Format(time.RFC3339)},
		fact{"nemesis", strings.Join(s.Nemesis, ", ")},
		fact{"network", s.Network},
		fact{"machine", s.Machine},
		fact{"tested", s.Tested},
		fact{"binary", s.Binary},
		fact{"tormented by", s.Version},
		fact{"nodes' settings", strings.Join(timing, " ")},
		fact{"command", strings.Join(s.Command, " ")},
	)
	if s.Stopped {
		all = append(all, fact{"stopped", "before its time"})
	}
	return all
}

// anInstant is how evidence tells one.
var anInstant = regexp.MustCompile(`\b(?:at|from|until|since) ((?:\d+h)?(?:\d+m)?\d+(?:\.\d+)?(?:ms|µs|s))\b`)

// instants splits a text at the instants in it.
func instants(text string) (all []passage) {
	from := 0
	for _, m := range anInstant.FindAllStringSubmatchIndex(text, -1) {
		d, err := time.ParseDuration(text[m[2]:m[3]])
		if err != nil {
			continue
		}
		all = append(all, passage{Text: text[from:m[2]]}, passage{Text: text[m[2]:m[3]], At: ms(d), Is: true})
		from = m[3]
	}
	return append(all, passage{Text: text[from:]})
}

// mostValues is how many of a measure's values the page draws.
const mostValues = 400

func pageMeasureOf(m Measure) pageMeasure {
	last := m.Took[len(m.Took)-1]
	p := pageMeasure{
		Name: m.Name, What: m.What, N: len(m.Took), P50: short(m.Quantile(0.5)), P99: short(m.Quantile(0.99)), Max: short(last),
		P50MS: ms(m.Quantile(0.5)), P99MS: ms(m.Quantile(0.99)), MaxMS: ms(last), BoundMS: ms(m.Bound),
	}
	if m.Bound > 0 {
		p.Bound = short(m.Bound)
	}
	for i := range min(len(m.Took), mostValues) {
		p.Values = append(p.Values, ms(m.Took[i*len(m.Took)/min(len(m.Took), mostValues)]))
	}
	return p
}

// short is a duration in three digits.
func short(d time.Duration) string {
	switch {
	case d >= 100*time.Second:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return fmt.Sprintf("%.3g s", d.Seconds())
	case d >= time.Millisecond:
		return fmt.Sprintf("%.3g ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.3g µs", float64(d)/float64(time.Microsecond))
}

// fill brings the history into the form that the script draws.
func (h *History) fill(d *pageData) {
	d.Nodes, d.Length = h.Meta.Nodes, ms(h.Meta.Length)
	end := func(t time.Duration) float64 { return ms(min(t, h.Meta.Length)) }
	for _, key := range slices.Concat(h.Meta.Bounds.Wanted, h.unwanted()) {
		k := pageKey{Name: key, Wanted: slices.Contains(h.Meta.Bounds.Wanted, key), Runs: []pageRun{}}
		for _, r := range h.runsOf(key) {
			node := slices.Index(d.Nodes, strings.TrimPrefix(r.Node, "exec-"))
			k.Runs = append(k.Runs, pageRun{Node: node, Proc: r.Proc, Token: r.Token, From: ms(r.Start), To: end(r.Stop), End: r.End})
		}
		d.Keys = append(d.Keys, k)
	}
	for _, w := range h.Windows {
		if w.frames() {
			continue
		}
		f := pageFault{Name: w.Fault, Nodes: []int{}, Keys: w.Keys, From: ms(w.From), To: end(w.To), Text: w.Text, Order: !w.disturbs()}
		for _, n := range w.Nodes {
			f.Nodes = append(f.Nodes, slices.Index(d.Nodes, n))
		}
		d.Faults = append(d.Faults, f)
	}
	for _, e := range h.log() {
		if e.Type == eventLeader {
			d.Leaders = append(d.Leaders, pageLeader{Node: slices.Index(d.Nodes, e.Node), At: ms(e.At)})
		}
	}
	for _, g := range h.Gauges {
		d.Gauges = append(d.Gauges, pageGauge{Node: slices.Index(d.Nodes, g.Node), At: ms(g.At), Goroutines: g.Goroutines, Handles: g.Handles, Memory: float64(g.Memory) / (1 << 20)})
	}
	d.Rate = h.rate()
}

// unwanted are the keys that ran and that no node wants for itself, in order.
func (h *History) unwanted() (keys []string) {
	for _, k := range h.keys() {
		if !slices.Contains(h.Meta.Bounds.Wanted, k) && len(h.runsOf(k)) > 0 {
			keys = append(keys, k)
		}
	}
	return keys
}

// rate counts calls in steps of a second, or longer ones in a long history.
func (h *History) rate() pageRate {
	step := time.Second
	for h.Meta.Length/step > 600 {
		step *= 2
	}
	n := int(h.Meta.Length/step) + 1
	r := pageRate{Step: ms(step), Done: make([]int, n), Refused: make([]int, n), Uncertain: make([]int, n)}
	for _, o := range h.Ops {
		at := o.Return
		if at == Never {
			at = o.Call
		}
		i := min(int(at/step), n-1)
		switch o.Outcome {
		case OK:
			r.Done[i]++
		case Uncertain:
			r.Uncertain[i]++
		default:
			r.Refused[i]++
		}
	}
	return r
}
