package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/artifact"
	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/fsm"
)

// uploadTimeout bounds the upload of a file, where --timeout is less.
const uploadTimeout = 2 * time.Minute

// creation is one worker create.
type creation struct {
	a         *app
	req       api.CreateWorkerRequest
	env, tags []string
	config    string
	wait      waitFlag
}

func (a *app) workerCreateCommand() *cobra.Command {
	k := &creation{a: a}
	cmd := &cobra.Command{
		Use: "create NAME --source SOURCE [flags]", Short: "Create a worker, which is then loaded",
		Long: `Create a worker, which is then loaded, and with --start run. The source is a file
here, which the cluster takes a copy of; an https URL, with --sha256; or sha256:… of
code that the cluster has.

A command (exec) has MIW_WORKER_ID, MIW_KEY, MIW_TOKEN, MIW_ADDR and MIW_CONFIG in
its environment. It is asked to finish by TERM, and killed, with all that it has
started, before another node can have the worker. One that ends with code 0 is done;
any other code is a failure, and it is run again with a growing pause, some ten times
(--restart says otherwise). Its output is in the log of its node.`,
		Example: `  miwnode worker create mailer --source ./mailer.sh --start
  miwnode worker create mailer --source ./mailer.sh --arg=-v --env QUEUE=main --config @mailer.json
  miwnode worker create sums --source ./sums.wasm --restart always --start --wait=1m`,
		Args: nArgs(1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			k.req.Name = args[0]
			if err := k.read(cmd); err != nil {
				return err
			}
			c, err := a.client(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			return k.run(cmd.Context(), c)
		},
	}
	f := cmd.Flags()
	sourceFlags(cmd, &k.req.Source, &k.req.SHA256)
	f.StringVar(&k.req.Runtime, "runtime", "", "exec, wasm, or func of a program that embeds a node (default: wasm for a source that ends so, else exec)")
	f.StringArrayVar(&k.req.Args, "arg", nil, "an argument of its runs (repeatable)")
	f.StringArrayVar(&k.env, "env", nil, "a variable of its environment, as KEY=VALUE (repeatable)")
	f.StringVar(&k.config, "config", "", "its configuration: JSON, or @FILE with some")
	f.StringArrayVar(&k.tags, "tag", nil, "a tag, as k=v, for people and lists (repeatable)")
	f.StringVar(&k.req.Restart, "restart", "", "when to run it again: on_failure (default), always or never")
	f.BoolVar(&k.req.Start, "start", false, "start it once it is loaded")
	f.StringVar(&k.req.By, "by", "", "who asks (default: user@host)")
	f.StringVarP(&a.output, "output", "o", "", "json prints the answer exactly as it came")
	k.wait.declare(cmd, "wait until it is loaded, with --start until a node has it, at most so long")
	completeWords(cmd, "runtime", "exec", "wasm", "func")
	completeWords(cmd, "restart", "on_failure", "always", "never")
	completeWords(cmd, "output", "json")
	return cmd
}

func sourceFlags(cmd *cobra.Command, source, digest *string) {
	cmd.Flags().StringVar(source, "source", "", "the code: a file, an https URL, sha256:…, or the name of a function")
	cmd.Flags().StringVar(digest, "sha256", "", "the digest that the code must have, in hex")
}

// read makes the request of what the flags say.
func (k *creation) read(cmd *cobra.Command) error {
	if k.a.output != "" && k.a.output != "json" {
		return usage(cmd, "-o is %q: it must be json", k.a.output)
	}
	if k.req.Source == "" {
		return usage(cmd, "--source is missing")
	}
	if err := texts(cmd, slices.Concat([]string{k.req.Name, k.req.Source, k.req.By}, k.req.Args, k.env, k.tags)...); err != nil {
		return err
	}
	if k.req.Runtime == "" {
		k.req.Runtime = worker.RuntimeExec
		if strings.HasSuffix(k.req.Source, ".wasm") {
			k.req.Runtime = worker.RuntimeWasm
		}
	}
	var err error
	if k.req.Env, err = pairs(cmd, "env", k.env); err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(k.req.Env)) {
		if strings.HasPrefix(key, "MIW_") {
			return usage(cmd, "--env %s is reserved: the node itself sets what begins with MIW_, as MIW_CONFIG from --config", key)
		}
	}
	if k.req.Tags, err = pairs(cmd, "tag", k.tags); err != nil {
		return err
	}
	text := []byte(k.config)
	if file, ok := strings.CutPrefix(k.config, "@"); ok {
		if text, err = os.ReadFile(file); err != nil {
			return usage(cmd, "--config: %v", err)
		}
	}
	if len(text) > 0 {
		if !json.Valid(text) {
			return usage(cmd, "--config is no JSON: %.60s", text)
		}
		k.req.Config = text
	}
	k.req.By = cmpOr(k.req.By, k.a.author())
	return k.wait.check(cmd)
}

// texts refuses words that are not UTF-8: they would arrive as others.
func texts(cmd *cobra.Command, words ...string) error {
	for _, word := range words {
		if !utf8.ValidString(word) {
			return usage(cmd, "%q is not valid UTF-8", word)
		}
	}
	return nil
}

// pairs reads the values of a repeatable flag k=v.
func pairs(cmd *cobra.Command, flag string, values []string) (map[string]string, error) {
	m := map[string]string{}
	for _, value := range values {
		k, v, ok := strings.Cut(value, "=")
		if !ok || k == "" {
			return nil, usage(cmd, "--%s is %q: it must be k=v", flag, value)
		}
		if _, twice := m[k]; twice {
			return nil, usage(cmd, "--%s gives %q twice", flag, k)
		}
		m[k] = v
	}
	return m, nil
}

func (k *creation) run(ctx context.Context, c *api.Client) error {
	if err := k.knownRuntime(ctx, c); err != nil {
		return err
	}
	var err error
	if k.req.Source, err = k.a.bring(ctx, c, k.req.Runtime, k.req.Source); err != nil {
		return err
	}
	var made api.WorkerChanged
	raw, err := k.a.call(ctx, c, api.Request{Method: "POST", Path: "/v1/workers", Body: k.req}, &made)
	if err != nil {
		return err
	}
	if made.Lacks != "" {
		fmt.Fprintf(k.a.stderr, "miwnode: %s is recorded, but %s\n", k.req.Name, made.Lacks)
	}
	k.namesakes(ctx, c, made.WorkerID)
	w := api.Worker{WorkerID: made.WorkerID, Name: k.req.Name, State: made.State, StartRequested: made.StartRequested}
	if k.wait.text != "" {
		there := loaded
		if k.req.Start {
			there = runs
		}
		if w, err = k.a.awaitWorker(ctx, c, w, k.wait, there); err != nil {
			return err
		}
	}
	if k.a.output == "json" {
		_, err = k.a.stdout.Write(raw)
		return err
	}
	return k.a.empty("%s: %s (%s)", w.Name, standing(w), w.WorkerID)
}

// knownRuntime refuses a runtime that this product does not have, unless a node
// says that it does: an embedding program may bring its own.
func (k *creation) knownRuntime(ctx context.Context, c *api.Client) error {
	ours := []string{worker.RuntimeExec, worker.RuntimeWasm, worker.RuntimeFunc}
	if slices.Contains(ours, k.req.Runtime) {
		return nil
	}
	var g api.Group
	_, err := k.a.call(ctx, c, api.Request{Method: "GET", Path: "/v1/groups/" + fsm.WorkersGroup}, &g)
	if err != nil && !errors.Is(err, fsm.ErrNotFound) {
		return err
	}
	for _, m := range g.Members {
		if slices.Contains(m.Runtimes, k.req.Runtime) {
			return nil
		}
	}
	return &exitError{exitUsage, fmt.Errorf("--runtime is %q: it must be %s, and no node has one of its own that is called so", k.req.Runtime, strings.Join(ours, ", "))}
}

// namesakes tells of other workers of the same name, which may not be meant.
func (k *creation) namesakes(ctx context.Context, c *api.Client, id string) {
	var page api.Workers
	if _, err := k.a.call(ctx, c, api.Request{Method: "GET", Path: "/v1/workers", Query: url.Values{"name": {k.req.Name}}}, &page); err != nil {
		return // the worker is created all the same
	}
	var others []string
	for _, w := range page.Workers {
		if w.WorkerID != id {
			others = append(others, w.WorkerID+" ("+w.State+")")
		}
	}
	if len(others) > 0 {
		fmt.Fprintf(k.a.stderr, "miwnode: another worker is called %s: %s; this one is %s. miwnode worker delete takes one back, by its ID; worker reload changes the code of one\n",
			k.req.Name, strings.Join(others, ", "), id)
	}
}

// bring makes of a file here a source that the node can load: its path, where
// the node is on this machine, else its digest, once it is uploaded.
func (a *app) bring(ctx context.Context, c *api.Client, runtime, source string) (string, error) {
	if runtime == worker.RuntimeFunc || strings.HasPrefix(source, artifact.Scheme) || artifact.IsURL(source) {
		return source, nil
	}
	f, err := os.Open(source)
	if err != nil {
		return "", fmt.Errorf("--source: %w", err)
	}
	defer f.Close()
	if !isURL(c.Addr()) {
		path, err := filepath.Abs(source)
		if err != nil {
			return "", fmt.Errorf("--source: %w", err)
		}
		return path, nil
	}
	st, err := f.Stat()
	switch {
	case err != nil:
		return "", fmt.Errorf("--source: %w", err)
	case !st.Mode().IsRegular():
		return "", &exitError{exitUsage, fmt.Errorf("--source: %s is no regular file", source)}
	case st.Size() > artifact.MaxUpload:
		return "", &exitError{exitUsage, fmt.Errorf("--source: %s has %d bytes, at most %d can be uploaded; ask a node on its own machine by its socket, or name an https URL", source, st.Size(), artifact.MaxUpload)}
	}
	ctx, cancel := context.WithTimeout(ctx, max(a.timeout, uploadTimeout))
	defer cancel()
	var up api.Artifact
	if _, err := c.Do(ctx, api.Request{Method: "PUT", Path: "/v1/artifacts", Body: f}, &up); err != nil {
		return "", err
	}
	return artifact.Scheme + up.SHA256, nil
}
