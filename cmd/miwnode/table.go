package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// table writes aligned columns; the first row is the heading.
type table struct {
	w    *tabwriter.Writer
	rows int
}

func newTable(out io.Writer, heading ...string) *table {
	t := &table{w: tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)}
	fmt.Fprintln(t.w, strings.Join(heading, "\t"))
	return t
}

func (t *table) row(cells ...any) {
	t.rows++
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = cell(c)
	}
	fmt.Fprintln(t.w, strings.Join(texts, "\t"))
}

func (t *table) flush() error { return t.w.Flush() }

// cell shows a value; what is empty is a dash, so that columns can be counted.
func cell(v any) string {
	switch v := v.(type) {
	case string:
		if v == "" {
			return "-"
		}
		return v
	case bool:
		if v {
			return "yes"
		}
		return "-"
	case time.Time:
		if v.IsZero() {
			return "-"
		}
		return v.UTC().Format("2006-01-02 15:04:05.000Z")
	case time.Duration:
		return short(v)
	case map[string]string:
		pairs := make([]string, 0, len(v))
		for k, value := range v {
			pairs = append(pairs, k+"="+value)
		}
		slices.Sort(pairs)
		return cell(strings.Join(pairs, ","))
	}
	return fmt.Sprint(v)
}

// short rounds a duration to what a person wants to know.
func short(d time.Duration) string {
	switch {
	case d >= time.Minute || d <= -time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second || d <= -time.Second:
		return d.Round(10 * time.Millisecond).String()
	default:
		return d.Round(10 * time.Microsecond).String()
	}
}

// count is a number and what it counts: 1 lease, 2 leases.
func count(n uint64, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// uuidTail is the random end of an instance's ID after its first eight digits.
var uuidTail = regexp.MustCompile(`([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// shortID is the beginning of an instance's ID: enough for a person, and for the
// commands that take one. JSON has it all.
func shortID(id string) string { return uuidTail.ReplaceAllString(id, "$1") }
