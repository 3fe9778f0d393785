package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/fsm"
)

// workerOp is one of the commands that change a worker.
type workerOp struct {
	verb, short, long, example string
	args                       cobra.PositionalArgs
	use                        string
	flags                      func(cmd *cobra.Command)
	// request makes the call; only method, path and body are its own.
	request func(ctx context.Context, c *api.Client, w api.Worker, by string) (api.Request, error)
	// waits says what --wait waits for; "" that there is no such flag.
	waits string
	// there tells whether it has come to that, or an error that it never will.
	there func(w api.Worker) (bool, error)
	done  func(w api.Worker) string
}

func (a *app) workerOp(o workerOp) *cobra.Command {
	var by string
	var etag positive
	var wait waitFlag
	cmd := &cobra.Command{
		Use: cmpOr(o.use, o.verb+" WORKER"), Short: o.short, Long: o.long, Example: o.example, Args: o.args, ValidArgsFunction: a.completeWorkers,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := wait.check(cmd); err != nil {
				return err
			}
			c, err := a.client(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			ctx := cmd.Context()
			w, err := a.worker(ctx, c, args[0])
			if err != nil {
				return err
			}
			req, err := o.request(ctx, c, w, cmpOr(by, a.author()))
			if err != nil {
				return err
			}
			req.IfMatch = uint64(etag)
			var answer api.WorkerChanged
			if _, err := a.call(ctx, c, req, &answer); err != nil {
				return err
			}
			w.State, w.StartRequested = answer.State, answer.StartRequested
			if wait.text != "" {
				if w, err = a.awaitWorker(ctx, c, w, wait, o.there); err != nil {
					return err
				}
			}
			return a.empty("%s: %s", w.Name, o.done(w))
		},
	}
	if cmd.Args == nil {
		cmd.Args = nArgs(1, workerArg)
	}
	cmd.Flags().StringVar(&by, "by", "", "who asks (default: user@host)")
	cmd.Flags().Var(&etag, "etag", "only if the worker's record is at this etag")
	if o.waits != "" {
		wait.declare(cmd, o.waits)
	}
	if o.flags != nil {
		o.flags(cmd)
	}
	return cmd
}

// byWord is the request of a call that needs no more than who asks.
func byWord(method, call string) func(context.Context, *api.Client, api.Worker, string) (api.Request, error) {
	return func(_ context.Context, _ *api.Client, w api.Worker, by string) (api.Request, error) {
		return api.Request{Method: method, Path: workerPath(w.WorkerID) + call, Body: api.WorkerRequest{By: by}}, nil
	}
}

func (a *app) workerStartCommand() *cobra.Command {
	return a.workerOp(workerOp{
		verb: "start", short: "Have a worker run, at once or as soon as it is loaded",
		example: `  miwnode worker start mailer
  miwnode worker start mailer --wait=30s`,
		request: byWord("POST", "/start"), waits: "wait until a node has it, at most so long", there: runs, done: standing,
	})
}

func (a *app) workerStopCommand() *cobra.Command {
	return a.workerOp(workerOp{
		verb: "stop", short: "Have a worker stop, and not start once it is loaded",
		long: `Have a worker stop: its run is asked to finish, and made to when the drain timeout
is over. One that is loading is not started afterwards.`,
		example: `  miwnode worker stop mailer
  miwnode worker stop mailer --wait`,
		request: byWord("POST", "/stop"), waits: "wait until nothing of it runs, at most so long",
		there: func(w api.Worker) (bool, error) { return w.InstanceID == "" && !w.KeepsRunning, nil }, done: standing,
	})
}

func (a *app) workerReloadCommand() *cobra.Command {
	var source, digest string
	return a.workerOp(workerOp{
		verb: "reload", short: "Load the code of a worker anew, or other code",
		long: `Load the code of a worker anew, or other code. A worker that runs goes on with what
it has until the new code is ready, and if that can't be loaded. One whose load had
failed is started if that was asked for.`,
		example: `  miwnode worker reload mailer
  miwnode worker reload mailer --source ./mailer2.sh --wait`,
		flags: func(cmd *cobra.Command) { sourceFlags(cmd, &source, &digest) },
		request: func(ctx context.Context, c *api.Client, w api.Worker, by string) (api.Request, error) {
			req := api.ReloadWorkerRequest{SHA256: digest, By: by}
			var err error
			if source != "" {
				req.Source, err = a.bring(ctx, c, w.Runtime, source)
			}
			return api.Request{Method: "POST", Path: workerPath(w.WorkerID) + "/reload", Body: req}, err
		},
		waits: "wait until it is loaded, at most so long", there: loaded, done: standing,
	})
}

func (a *app) workerDeleteCommand() *cobra.Command {
	return a.workerOp(workerOp{
		verb: "delete", short: "Remove a worker, whatever it does",
		example: "  miwnode worker delete mailer",
		request: byWord("DELETE", ""),
		done: func(w api.Worker) string {
			if w.InstanceID != "" {
				return fmt.Sprintf("deleted; its run on node %s is told to stop", w.NodeID)
			}
			return "deleted"
		},
	})
}

// standing is how it stands with a worker.
func standing(w api.Worker) string {
	text := w.State
	if w.State == "running" && w.NodeID != "" {
		text = fmt.Sprintf("running on node %s, token %d", w.NodeID, w.Token)
	}
	if remark := workerRemark(w); remark != "" {
		text += ", " + remark
	}
	return text
}

// loaded tells whether the load is over.
func loaded(w api.Worker) (bool, error) {
	switch {
	case w.State == "loading":
		return false, nil
	case w.State == "load_failed", w.State == "running" && w.Error != nil:
		return false, fmt.Errorf("%s could not be loaded: %s: %s", w.Name, w.Error.Type, w.Error.Message)
	}
	return true, nil
}

// runs tells whether a node has the worker, or has had it and it is done.
func runs(w api.Worker) (bool, error) {
	switch w.State {
	case "loading":
		return false, nil
	case "load_failed":
		return loaded(w)
	case "failed":
		return false, fmt.Errorf("%s failed: %s: %s", w.Name, w.Error.Type, w.Error.Message)
	case "running":
		return w.Token != 0, nil
	}
	return true, nil
}

// awaitWorker follows a worker until it has come to what is waited for.
func (a *app) awaitWorker(ctx context.Context, c *api.Client, w api.Worker, wait waitFlag, there func(api.Worker) (bool, error)) (api.Worker, error) {
	ctx, cancel := wait.limit(ctx)
	defer cancel()
	ctx, stop := interruptible(ctx)
	defer stop()
	look := func() (bool, error) {
		var now api.Worker
		if _, err := a.call(ctx, c, api.Request{Method: "GET", Path: workerPath(w.WorkerID)}, &now); err != nil {
			return false, err
		}
		w = now
		return there(w)
	}
	for {
		over, err := look()
		if over || err != nil {
			return w, a.waitedFor(ctx, w, err)
		}
		q := url.Values{"key": {workerKey(w)}, "since": {fmt.Sprint(w.Revision)}}
		if err := c.Events(ctx, q, a.timeout, func(api.StreamEvent) bool { return false }); err != nil {
			return w, a.waitedFor(ctx, w, err)
		}
	}
}

// waitedFor is the error of a wait: what ended it, and how it stands by then.
func (a *app) waitedFor(ctx context.Context, w api.Worker, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(context.Cause(ctx), errWaitedEnough) {
		return &exitError{exitWaitTimeout, fmt.Errorf("the wait is over: %s is %s", w.Name, standing(w))}
	}
	if sig, ok := errors.AsType[*signalError](context.Cause(ctx)); ok {
		return &exitError{exitSignal + int(sig.signal), fmt.Errorf("%v: %s is %s", sig, w.Name, standing(w))}
	}
	return err
}

func (a *app) workerTagCommand() *cobra.Command {
	var by string
	cmd := &cobra.Command{
		Use: "tag WORKER KEY=VALUE... KEY-...", Short: "Set tags of a worker, and remove those with a minus behind them",
		Example: `  miwnode worker tag mailer team=mail zone=1
  miwnode worker tag mailer zone-`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usage(cmd, "%s is missing", [...]string{workerArg, "KEY=VALUE"}[len(args)])
			}
			return nil
		},
		ValidArgsFunction: a.completeWorkers,
		RunE: func(cmd *cobra.Command, args []string) error {
			change, err := tagChanges(cmd, args[1:])
			if err != nil {
				return err
			}
			c, err := a.client(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			return a.tagWorker(cmd.Context(), c, args[0], change, cmpOr(by, a.author()))
		},
	}
	cmd.Flags().StringVar(&by, "by", "", "who asks (default: user@host)")
	return cmd
}

// tagChanges reads KEY=VALUE and KEY-.
func tagChanges(cmd *cobra.Command, words []string) (func(tags map[string]string), error) {
	if err := texts(cmd, words...); err != nil {
		return nil, err
	}
	set, drop := map[string]string{}, map[string]bool{}
	for _, word := range words {
		k, v, ok := strings.Cut(word, "=")
		if !ok {
			k = strings.TrimSuffix(word, "-")
		}
		switch before, twice := set[k]; {
		case k == "" || !ok && k == word:
			return nil, usage(cmd, "%q is no tag: it must be KEY=VALUE, or KEY- to remove one", word)
		case twice && !ok, ok && drop[k]:
			return nil, usage(cmd, "tag %q is to be set and removed: one of them", k)
		case twice && before != v:
			return nil, usage(cmd, "tag %q is to be %q and %q: one of them", k, before, v)
		case ok:
			set[k] = v
		default:
			drop[k] = true
		}
	}
	return func(tags map[string]string) {
		for k := range drop {
			delete(tags, k)
		}
		maps.Copy(tags, set)
	}, nil
}

// tagWorker puts all tags of a worker anew; where somebody else came first, again.
func (a *app) tagWorker(ctx context.Context, c *api.Client, name string, change func(map[string]string), by string) error {
	for {
		w, err := a.worker(ctx, c, name)
		if err != nil {
			return err
		}
		change(w.Tags)
		_, err = a.call(ctx, c, api.Request{
			Method: "PUT", Path: workerPath(w.WorkerID) + "/tags", Body: api.WorkerTagsRequest{Tags: w.Tags, By: by}, IfMatch: w.Etag,
		}, nil)
		if errors.Is(err, fsm.ErrETagMismatch) {
			continue
		}
		if err != nil {
			return err
		}
		return a.empty("%s: %s", w.Name, cell(w.Tags))
	}
}
