package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/fsm"
)

const workerArg = "WORKER (its ID, the beginning of one, or its name)"

func (a *app) workerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "worker", Short: "Create, start, stop, reload and delete workers: code that the cluster loads and runs",
		Long: `Workers are code that the cluster keeps, loads and runs, each on one node at a time:
commands (runtime exec) and WASI modules (runtime wasm). A worker is loaded first,
which finds out whether its code is good, and runs once it is started: on whichever
node the cluster chooses, and on another one when that is gone. Nodes fetch the code
from each other.`,
		Example: `  miwnode worker create mailer --source ./mailer.sh --start --wait
  miwnode worker show mailer
  miwnode worker reload mailer --source ./mailer2.sh
  miwnode worker stop mailer
  miwnode worker delete mailer`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		a.workerCreateCommand(), a.workerStartCommand(), a.workerStopCommand(), a.workerReloadCommand(), a.workerTagCommand(), a.workerDeleteCommand(),
		a.workersCommand("list", "  miwnode worker list"), a.workerShowCommand(),
	)
	return cmd
}

// workersCommand is the list of workers, which has two names.
func (a *app) workersCommand(use, command string) *cobra.Command {
	var page paging
	var state, runtime string
	var tags []string
	return a.reading(readCommand{
		use: use, short: "List the workers, what they do and where",
		example: command + "\n" + command + " --state load_failed\n" + command + " --tag team=mail --tag zone=1 -o json",
		path:    "/v1/workers",
		flags: func(cmd *cobra.Command) {
			page.flags(cmd)
			cmd.Flags().StringVar(&state, "state", "", "only those in this state")
			cmd.Flags().StringVar(&runtime, "runtime", "", "only those of this runtime")
			cmd.Flags().StringArrayVar(&tags, "tag", nil, "only those with this tag, as k=v (repeatable: with all of them)")
			completeWords(cmd, "state", "loading", "stopped", "running", "load_failed", "failed")
			completeWords(cmd, "runtime", "exec", "wasm", "func")
		},
		query: func([]string) url.Values {
			q := page.query()
			if state != "" {
				q.Set("state", state)
			}
			if runtime != "" {
				q.Set("runtime", runtime)
			}
			if len(tags) > 0 {
				q["tag"] = tags
			}
			return q
		},
		show: func(raw []byte) error {
			var answer api.Workers
			if err := json.Unmarshal(raw, &answer); err != nil {
				return err
			}
			switch {
			case len(answer.Workers) == 0 && page.after != "":
				return a.nothingAfter(page)
			case len(answer.Workers) == 0 && (state != "" || runtime != "" || len(tags) > 0):
				return a.empty("No worker is like that.")
			case len(answer.Workers) == 0:
				return a.empty("No workers. Try: miwnode worker create%s demo --source ./demo.sh --start", a.where())
			}
			t := newTable(a.stdout, "NAME", "STATE", "RUNTIME", "NODE", "CHANGED", "SOURCE", "TAGS", "BECAUSE", "ID")
			for _, w := range answer.Workers {
				t.row(w.Name, w.State, w.Runtime, w.NodeID, age(w.ChangedAt), w.Source, w.Tags, workerRemark(w), w.WorkerID)
			}
			if err := t.flush(); err != nil {
				return err
			}
			a.more(answer.Next)
			return nil
		},
	})
}

// workerRemark is what there is to say of a worker.
func workerRemark(w api.Worker) string {
	var parts []string
	switch {
	case w.State == "loading" && w.KeepsRunning:
		parts = append(parts, "goes on with the old code meanwhile")
	case w.State == "loading" && w.StartRequested:
		parts = append(parts, "starts once it is loaded")
	case w.State == "load_failed" && w.StartRequested:
		parts = append(parts, "starts once a reload succeeds")
	case w.State == "running" && w.InstanceID == "" && w.Lacks == "":
		parts = append(parts, "no node has it yet")
	case w.State == "stopped" && w.InstanceID != "":
		parts = append(parts, "is being stopped")
	}
	if w.Lacks != "" {
		parts = append(parts, w.Lacks)
	}
	if w.Failing != nil {
		parts = append(parts, failingRemark(*w.Failing, time.Now()))
	}
	if w.Error != nil {
		what := ""
		if w.State == "running" || w.KeepsRunning {
			what = "reload failed: "
		}
		parts = append(parts, what+w.Error.Type+": "+w.Error.Message)
	}
	return strings.Join(parts, "; ")
}

// failingRemark says how the runs of a worker fail.
func failingRemark(f api.WorkerFailing, now time.Time) string {
	times := "once"
	if f.Count > 1 {
		times = fmt.Sprintf("%d times in a row", f.Count)
	}
	why := f.Error.Type + ": " + f.Error.Message
	switch {
	case f.NextTry == nil:
		return fmt.Sprintf("could not be loaded where it was to run, on node %s, %s, last %s ago: %s", f.NodeID, times, age(f.At), why)
	case now.Before(*f.NextTry):
		return fmt.Sprintf("is failing: its run failed %s, the next is in %s: %s", times, short(f.NextTry.Sub(now).Round(100*time.Millisecond)), why)
	}
	return fmt.Sprintf("is failing: its run failed %s, last %s ago, and was begun again: %s", times, age(f.At), why)
}

func (a *app) workerShowCommand() *cobra.Command {
	var client *api.Client
	var ctx context.Context
	cmd := a.reading(readCommand{
		use: "show WORKER", short: "Show a worker, its sources, where it ran, and its last events",
		example: `  miwnode worker show mailer
  miwnode worker show mailer -o json`,
		args: nArgs(1, workerArg),
		find: func(asking context.Context, c *api.Client, args []string) (string, url.Values, error) {
			client, ctx = c, asking
			w, err := a.worker(asking, c, args[0])
			return workerPath(w.WorkerID), url.Values{}, err
		},
		show: func(raw []byte) error {
			var w api.Worker
			if err := json.Unmarshal(raw, &w); err != nil {
				return err
			}
			return a.showWorker(ctx, client, w)
		},
	})
	cmd.ValidArgsFunction = a.completeWorkers
	return cmd
}

func workerPath(id string) string { return "/v1/workers/" + api.PathEscape(id) }

func (a *app) showWorker(ctx context.Context, c *api.Client, w api.Worker) error {
	head := newTable(a.stdout, "worker", w.Name)
	add := func(name string, value any) {
		if text := cell(value); text != "-" {
			head.row(name, text)
		}
	}
	add("id", w.WorkerID)
	add("state", w.State)
	add("because", workerRemark(w))
	add("runtime", w.Runtime)
	add("node", w.NodeID)
	if w.Token != 0 {
		add("token", w.Token)
	}
	add("restart", w.Restart)
	if len(w.Args) > 0 {
		add("args", strings.Join(w.Args, " "))
	}
	add("env", w.Env)
	add("config", string(w.Config))
	add("tags", w.Tags)
	add("created", w.CreatedAt)
	add("etag", w.Etag)
	if err := head.flush(); err != nil {
		return err
	}
	fmt.Fprintln(a.stdout)
	t := newTable(a.stdout, "SOURCE", "ADDED", "BY", "SIZE", "SHA256")
	for _, s := range slices.Backward(w.History) {
		size := ""
		if s.Size > 0 {
			size = fmt.Sprint(s.Size)
		}
		t.row(s.Source, s.At, s.By, size, s.SHA256)
	}
	if err := t.flush(); err != nil {
		return err
	}
	if err := a.showWorkerRuns(ctx, c, w); err != nil {
		return err
	}
	return a.showWorkerEvents(ctx, c, w)
}

func workerKey(w api.Worker) string { return fsm.WorkerKey(w.WorkerID) }

// shownRuns and shownEvents are how many of them worker show has.
const (
	shownRuns   = 5
	shownEvents = 15
)

// showWorkerRuns tells where the worker was, the last first.
func (a *app) showWorkerRuns(ctx context.Context, c *api.Client, w api.Worker) error {
	var h api.History
	q := url.Values{"key": {workerKey(w)}, "limit": {fmt.Sprint(shownRuns)}}
	if _, err := a.call(ctx, c, api.Request{Method: "GET", Path: "/v1/history", Query: q}, &h); err != nil {
		return err
	}
	if len(h.Entries) == 0 {
		return nil
	}
	fmt.Fprintln(a.stdout)
	t := newTable(a.stdout, "RAN ON", "FROM", "UNTIL", "ENDED", "TOKEN")
	for _, e := range slices.Backward(h.Entries) {
		t.row(e.NodeID, e.GrantedAt, e.EndedAt, e.EndReason, e.Token)
	}
	return t.flush()
}

// showWorkerEvents tells what became of it, as far as that is remembered.
func (a *app) showWorkerEvents(ctx context.Context, c *api.Client, w api.Worker) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	q := url.Values{"key": {workerKey(w)}, "type": {"worker.*"}, "since": {"0"}}
	events, err := c.PastEvents(ctx, q)
	if err == nil && len(events) > 0 && events[0].Type == "resync" {
		// What is older than the memory of the cluster is gone: the latest, then.
		q.Set("since", fmt.Sprint(max(0, int64(w.Revision)-recentRevisions)))
		events, err = c.PastEvents(ctx, q)
	}
	if err != nil || len(events) == 0 {
		return err
	}
	fmt.Fprintln(a.stdout)
	t := newTable(a.stdout, "WHEN", "EVENT", "BY", "NODE", "BECAUSE")
	for _, e := range events[max(0, len(events)-shownEvents):] {
		var v api.Event
		if json.Unmarshal(e.Data, &v) != nil || e.Type == "resync" {
			continue
		}
		because := ""
		if v.Error != nil {
			because = v.Error.Type + ": " + v.Error.Message
		}
		t.row(v.At, v.Type, v.By, v.NodeID, because)
	}
	return t.flush()
}

// recentRevisions are as many as the memory of events surely covers.
const recentRevisions = 10_000

// worker finds what a person means by an ID, the beginning of one, or a name that
// one worker only has.
func (a *app) worker(ctx context.Context, c *api.Client, name string) (api.Worker, error) {
	list := func(q url.Values) ([]api.Worker, error) {
		var page api.Workers
		_, err := a.call(ctx, c, api.Request{Method: "GET", Path: "/v1/workers", Query: q}, &page)
		return page.Workers, err
	}
	named, err := list(url.Values{"name": {name}})
	if err != nil {
		return api.Worker{}, err
	}
	if len(name) > 1 {
		// IDs that begin so come right behind what they begin with.
		before := name[:len(name)-1] + string(name[len(name)-1]-1) + "\x7f"
		begun, err := list(url.Values{"after": {before}, "limit": {"2"}})
		if err != nil {
			return api.Worker{}, err
		}
		for _, w := range begun {
			if w.WorkerID == name {
				return w, nil
			}
			if strings.HasPrefix(w.WorkerID, name) {
				named = append(named, w)
			}
		}
	}
	switch len(named) {
	case 1:
		return named[0], nil
	case 0:
		return api.Worker{}, fsm.Errorf(fsm.CodeNotFound, "there is no worker %q; miwnode workers lists them", name)
	}
	var ids []string
	for _, w := range named {
		ids = append(ids, w.WorkerID)
	}
	return api.Worker{}, fsm.Errorf(fsm.CodeInvalidArgument, "%q means any of %s; write the ID", name, strings.Join(ids, ", "))
}

// completeWorkers completes names.
func (a *app) completeWorkers(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var page api.Workers
	if !a.completed(cmd, args, api.Request{Method: "GET", Path: "/v1/workers"}, &page) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, w := range page.Workers {
		names = append(names, w.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// waitFlag is --wait[=D] of a command that asks for something that takes a while.
type waitFlag struct{ text string }

func (w *waitFlag) declare(cmd *cobra.Command, usage string) {
	cmd.Flags().StringVar(&w.text, "wait", "", usage)
	cmd.Flags().Lookup("wait").NoOptDefVal = "forever"
}

func (w *waitFlag) check(cmd *cobra.Command) error {
	if w.text == "" || w.text == "forever" {
		return nil
	}
	if d, err := time.ParseDuration(w.text); err != nil || d <= 0 {
		return usage(cmd, "--wait is %q: it must be a duration such as 2m", w.text)
	}
	return nil
}

// limit bounds ctx by what --wait says.
func (w *waitFlag) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if d, err := time.ParseDuration(w.text); err == nil {
		return context.WithTimeoutCause(ctx, d, errWaitedEnough)
	}
	return context.WithCancel(ctx)
}
