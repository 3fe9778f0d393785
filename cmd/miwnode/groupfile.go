package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/miwnode/miwnode/fsm"
)

// groupFile is a group whose workloads are commands, as a file of --group says it.
type groupFile struct {
	path      string
	name      string
	assigner  string
	rebalance string
	maxMoves  int
	capacity  float64
	workloads []groupWorkload
}

// groupWorkload is a command that runs on one of the nodes that name it.
type groupWorkload struct {
	key         string
	displayName string
	weight      float64
	labels      map[string]string
	argv        []string
}

// readGroupFile reads a file strictly; every fault is told at once, with its line.
func readGroupFile(path string) (groupFile, error) {
	g := groupFile{path: path}
	b, err := os.ReadFile(path)
	if err != nil {
		return g, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return g, fmt.Errorf("%s is no YAML: %s", path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	r := &groupReader{path: path}
	if len(doc.Content) == 0 {
		return g, fmt.Errorf("%s is empty: it must name a group and its workloads", path)
	}
	r.read(doc.Content[0], &g)
	return g, errors.Join(r.errs...)
}

// groupReader collects faults.
type groupReader struct {
	path string
	errs []error
}

func (r *groupReader) fault(n *yaml.Node, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s line %d: %w", r.path, n.Line, fmt.Errorf(format, args...)))
}

// fields calls set for each key of a map, once each; others are faults.
func (r *groupReader) fields(n *yaml.Node, what string, set map[string]func(*yaml.Node)) (given map[string]bool) {
	given = map[string]bool{}
	n = alias(n)
	if n.Kind != yaml.MappingNode {
		r.fault(n, "%s must be a map", what)
		return given
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], alias(n.Content[i+1])
		f, known := set[key.Value]
		switch {
		case !known:
			r.fault(key, "%s has an unknown key %q; known are %s", what, key.Value, strings.Join(sortedNames(set), ", "))
		case given[key.Value]:
			r.fault(key, "%s gives %q twice", what, key.Value)
		default:
			given[key.Value] = true
			f(value)
		}
	}
	return given
}

func sortedNames[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func alias(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func (r *groupReader) text(name string, into *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			r.fault(n, "%s must be a text", name)
			return
		}
		*into = n.Value
	}
}

func (r *groupReader) number(name string, into *float64) func(*yaml.Node) {
	return func(n *yaml.Node) {
		x, err := strconv.ParseFloat(n.Value, 64)
		if n.Kind != yaml.ScalarNode || err != nil || !(x > 0) || math.IsInf(x, 0) {
			r.fault(n, "%s is %q: it must be a number above 0", name, n.Value)
			return
		}
		*into = x
	}
}

func (r *groupReader) oneOf(name string, into *string, allowed ...string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if !slices.Contains(allowed, n.Value) {
			r.fault(n, "%s is %q: it must be %s or %s", name, n.Value, strings.Join(allowed[:len(allowed)-1], ", "), allowed[len(allowed)-1])
			return
		}
		*into = n.Value
	}
}

func (r *groupReader) read(n *yaml.Node, g *groupFile) {
	given := r.fields(n, "the file", map[string]func(*yaml.Node){
		"group": func(n *yaml.Node) {
			r.text("group", &g.name)(n)
			if err := fsm.Check(&fsm.PutGroup{Group: g.name}, fsm.Version); err != nil && n.Kind == yaml.ScalarNode {
				r.fault(n, "%s", refusalText(err))
			}
		},
		"assigner":  r.oneOf("assigner", &g.assigner, "sticky", "balanced", "primary"),
		"rebalance": r.oneOf("rebalance", &g.rebalance, "immediate", "graceful"),
		"max_moves": func(n *yaml.Node) {
			moves, err := strconv.Atoi(n.Value)
			if err != nil || moves < 1 || moves > fsm.MaxWorkloads {
				r.fault(n, "max_moves is %q: it must be a whole number from 1 to %d", n.Value, fsm.MaxWorkloads)
			}
			g.maxMoves = moves
		},
		"capacity":  r.number("capacity", &g.capacity),
		"workloads": func(n *yaml.Node) { r.workloads(n, g) },
	})
	for _, name := range []string{"group", "workloads"} {
		if !given[name] && n.Kind == yaml.MappingNode {
			r.fault(n, "%s is missing", name)
		}
	}
}

func (r *groupReader) workloads(n *yaml.Node, g *groupFile) {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		r.fault(n, "workloads must be a list, of one at least")
		return
	}
	if len(n.Content) > fsm.MaxWorkloads {
		r.fault(n, "workloads are %d, a group has at most %d", len(n.Content), fsm.MaxWorkloads)
	}
	lines := map[string]int{}
	for _, item := range n.Content {
		item = alias(item)
		w := r.workload(item)
		if first, twice := lines[w.key]; twice && w.key != "" {
			r.fault(item, "key %q is that of line %d, too", w.key, first)
			continue
		}
		lines[w.key] = item.Line
		g.workloads = append(g.workloads, w)
	}
}

func (r *groupReader) workload(n *yaml.Node) (w groupWorkload) {
	w.weight = 1
	faults := len(r.errs)
	given := r.fields(n, "a workload", map[string]func(*yaml.Node){
		"key":          r.text("key", &w.key),
		"display_name": r.text("display_name", &w.displayName),
		"weight":       r.number("weight", &w.weight),
		"labels":       func(n *yaml.Node) { w.labels = r.labels(n) },
		"run":          func(n *yaml.Node) { w.argv = r.command(n) },
	})
	if n.Kind != yaml.MappingNode {
		return w
	}
	for _, name := range []string{"key", "run"} {
		if !given[name] {
			r.fault(n, "a workload has no %s", name)
		}
	}
	if given["key"] && len(r.errs) == faults {
		// What else there is to say of one workload, the state says.
		if _, _, err := fsm.NewCatalog([]fsm.Spec{w.spec()}); err != nil {
			r.fault(n, "%s", refusalText(err))
		}
	}
	return w
}

func (w groupWorkload) spec() fsm.Spec {
	s := fsm.Spec{Key: w.key, DisplayName: w.displayName, Weight: w.weight}
	for _, k := range sortedNames(w.labels) {
		s.Labels = append(s.Labels, fsm.Label{Key: k, Value: w.labels[k]})
	}
	return s
}

func (r *groupReader) labels(n *yaml.Node) map[string]string {
	labels := map[string]string{}
	if n.Kind != yaml.MappingNode {
		r.fault(n, "labels must be a map of texts")
		return labels
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], alias(n.Content[i+1])
		if _, twice := labels[key.Value]; twice {
			r.fault(key, "labels give %q twice", key.Value)
		}
		var text string
		r.text("label "+key.Value, &text)(value)
		labels[key.Value] = text
	}
	return labels
}

// command is a list of words, or one line that is split as a POSIX shell would.
func (r *groupReader) command(n *yaml.Node) (argv []string) {
	switch n.Kind {
	case yaml.ScalarNode:
		var err error
		if argv, err = splitWords(n.Value); err != nil {
			r.fault(n, "run: %w", err)
			return argv
		}
	case yaml.SequenceNode:
		for _, word := range n.Content {
			var text string
			r.text("a word of run", &text)(alias(word))
			argv = append(argv, text)
		}
	default:
		r.fault(n, "run must be a list of words, or one line")
		return argv
	}
	if len(argv) == 0 || argv[0] == "" {
		r.fault(n, "run names no command")
	}
	return argv
}

// refusalText is a refusal without its code.
func refusalText(err error) string {
	if e, ok := errors.AsType[*fsm.Error](err); ok {
		return e.Message
	}
	return err.Error()
}

// groups reads the files of --group.
func (b *builder) groups() []groupFile {
	var all []groupFile
	paths := map[string]string{}
	for _, path := range b.settings["group"].values {
		g, err := readGroupFile(path)
		for _, e := range flatten(err) {
			if e != nil {
				b.fault("group", "%w", e)
			}
		}
		if first, twice := paths[g.name]; twice && g.name != "" {
			b.fault("group", "names the group %q in %s and in %s", g.name, first, path)
		}
		paths[g.name] = path
		all = append(all, g)
	}
	return all
}
