package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/fsm"
)

func (a *app) eventsCommand() *cobra.Command {
	var since int64
	var kind, key string
	var count int
	cmd := &cobra.Command{
		Use: "events", Short: "Follow what happens in the cluster", Args: noArgs,
		Long: `Follow what happens in the cluster, without a hole: when the connection breaks,
the stream goes on after the last event shown. A reader that fell too far behind
is told to resync. Ends on Ctrl-C, or after --count events.`,
		Example: `  miwnode events
  miwnode events --type 'lease.*' --key mailer
  miwnode events --since 0 --count 20 -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.output != "" && a.output != "json" {
				return usage(cmd, "-o is %q: it must be json", a.output)
			}
			c, err := a.client(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			if err := knownType(kind); err != nil {
				return usage(cmd, "--type is %q: %v", kind, err)
			}
			if count < 0 {
				return usage(cmd, "--count is %d: it must not be negative", count)
			}
			now, err := a.revision(ctx, c)
			if err != nil {
				return err
			}
			if since > 0 && uint64(since) > now { // this copy may be behind
				var page api.Instances
				q := url.Values{"limit": {"1"}, "consistency": {"linearizable"}}
				if _, err := a.call(ctx, c, api.Request{Method: "GET", Path: "/v1/instances", Query: q}, &page); err != nil {
					return err
				}
				now = page.Revision
			}
			if since > 0 && uint64(since) > now {
				return usage(cmd, "--since is %d, and the revision is %d now: what is to come is shown without --since", since, now)
			}
			query := url.Values{}
			if cmd.Flags().Changed("since") {
				query.Set("since", strconv.FormatInt(since, 10))
			}
			if kind != "" {
				query.Set("type", kind)
			}
			if key != "" {
				if key, err = a.eventKey(ctx, c, key); err != nil {
					return err
				}
				query.Set("key", key)
			}
			return a.follow(ctx, c, query, count)
		},
	}
	cmd.Flags().StringVarP(&a.output, "output", "o", "", "json prints the data of each event, one a line")
	cmd.Flags().Int64Var(&since, "since", 0, "begin after this revision (default: now)")
	cmd.Flags().StringVar(&kind, "type", "", "only this type, or a prefix as in lease.*")
	cmd.Flags().StringVar(&key, "key", "", "only events of this key, or of the worker of this name or ID")
	cmd.Flags().IntVar(&count, "count", 0, "end after so many events (default: never)")
	return cmd
}

// workerID is what an ID of a worker is like.
var workerID = regexp.MustCompile(`^w[a-z2-7]{26}$`)

// eventKey is the key of events that a person means: that of a worker, where a
// worker is called so and no lease is or was.
func (a *app) eventKey(ctx context.Context, c *api.Client, key string) (string, error) {
	if workerID.MatchString(key) {
		return fsm.WorkerKey(key), nil
	}
	var named api.Workers
	if _, err := a.call(ctx, c, api.Request{Method: "GET", Path: "/v1/workers", Query: url.Values{"name": {key}}}, &named); err != nil || len(named.Workers) == 0 {
		return key, err
	}
	var keys []string
	for _, w := range named.Workers {
		keys = append(keys, workerKey(w))
	}
	note := func(format string, args ...any) {
		fmt.Fprintf(a.stderr, "miwnode: "+format+"\n", args...)
	}
	var held api.Leases
	if _, err := a.call(ctx, c, api.Request{Method: "GET", Path: "/v1/leases", Query: url.Values{"key": {key}}}, &held); err != nil {
		return key, err
	}
	var was api.History
	if _, err := a.call(ctx, c, api.Request{Method: "GET", Path: "/v1/history", Query: url.Values{"key": {key}, "limit": {"1"}}}, &was); err != nil {
		return key, err
	}
	switch {
	case len(held.Leases)+len(was.Entries) > 0:
		note("the events of the lease %s; those of the worker that is called so have the key %s", key, strings.Join(keys, ", "))
	case len(keys) > 1:
		return key, fsm.Errorf(fsm.CodeInvalidArgument, "%d workers are called %s; give the key of one: %s", len(keys), key, strings.Join(keys, ", "))
	default:
		note("the events of the worker %s, which have the key %s", key, keys[0])
		return keys[0], nil
	}
	return key, nil
}

// knownType tells what is wrong with a type of events, or the prefix of one.
func knownType(kind string) error {
	if kind == "" {
		return nil
	}
	prefix, any := strings.CutSuffix(kind, "*")
	var families []string
	for t := fsm.EventType(1); t.String() != "unknown"; t++ {
		name := t.String()
		if name == kind || any && strings.HasPrefix(name, prefix) {
			return nil
		}
		family, _, _ := strings.Cut(name, ".")
		if family += ".*"; !slices.Contains(families, family) {
			families = append(families, family)
		}
	}
	return fmt.Errorf("no event is called so; there are %s", strings.Join(families, ", "))
}

func (a *app) follow(ctx context.Context, c *api.Client, query url.Values, count int) error {
	shown := 0
	err := c.Events(ctx, query, a.timeout, func(e api.StreamEvent) bool {
		if a.output == "json" {
			fmt.Fprintf(a.stdout, "%s\n", e.Data)
		} else {
			fmt.Fprintln(a.stdout, eventLine(e))
		}
		shown++
		return shown != count
	})
	if errors.Is(context.Cause(ctx), errInterrupted) {
		return nil
	}
	return err
}

// eventLine is an event for a person.
func eventLine(e api.StreamEvent) string {
	if e.Type == "resync" {
		return fmt.Sprintf("%-24s some events are lost to this reader: read the state anew, then go on", e.Type)
	}
	var v api.Event
	if err := json.Unmarshal(e.Data, &v); err != nil {
		return fmt.Sprintf("%-24s %s", e.Type, e.Data)
	}
	words := []string{cell(v.At), fmt.Sprintf("%-20s", v.Type)}
	add := func(name, value string) {
		if value != "" {
			words = append(words, name+"="+value)
		}
	}
	number := func(name string, n uint64) {
		if n != 0 {
			add(name, strconv.FormatUint(n, 10))
		}
	}
	add("key", quoted(v.Key))
	number("token", v.Token)
	add("instance", v.InstanceID)
	add("node", v.NodeID)
	add("name", quoted(v.Name))
	add("to", v.To)
	add("reason", quoted(v.Reason))
	add("by", quoted(v.By))
	add("because", quoted(v.Detail))
	number("term", v.Term)
	number("version", v.Version)
	return strings.Join(words, " ")
}

// quoted puts into quotes what would not be one word.
func quoted(s string) string {
	if strings.ContainsAny(s, " \t\n\"=") {
		return strconv.Quote(s)
	}
	return s
}
