package worker

import (
	"context"
	"maps"
	"slices"
	"strings"
)

// Funcs is the runtime "func": workers are functions of the program, by their
// names. Instances may have different ones.
func Funcs(funcs map[string]func(ctx context.Context, run Run) error) Runtime {
	return funcRuntime(maps.Clone(funcs))
}

type funcRuntime map[string]func(context.Context, Run) error

func (r funcRuntime) Name() string { return RuntimeFunc }

func (r funcRuntime) Provides() []string {
	var all []string
	for name := range r {
		all = append(all, RuntimeFunc+":"+name)
	}
	slices.Sort(all)
	return all
}

func (r funcRuntime) Check(s Spec) error {
	if _, known := r[s.Source]; known {
		return nil
	}
	return Errorf(TypeSourceNotFound, "there is no function %q; there are: %s", s.Source, strings.Join(slices.Sorted(maps.Keys(r)), ", "))
}

func (r funcRuntime) Load(_ context.Context, p Program) (Unit, error) {
	f := r[p.Source]
	if f == nil {
		return nil, r.Check(Spec{Source: p.Source})
	}
	return funcUnit(f), nil
}

type funcUnit func(context.Context, Run) error

func (u funcUnit) Run(ctx context.Context, run Run) error { return u(ctx, run) }

func (u funcUnit) Unload() error { return nil }
