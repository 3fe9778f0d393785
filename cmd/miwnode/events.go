package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
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
				query.Set("key", key)
			}
			return a.follow(ctx, c, query, count)
		},
	}
	cmd.Flags().StringVarP(&a.output, "output", "o", "", "json prints the data of each event, one a line")
	cmd.Flags().Int64Var(&since, "since", 0, "begin after this revision (default: now)")
	cmd.Flags().StringVar(&kind, "type", "", "only this type, or a prefix as in lease.*")
	cmd.Flags().StringVar(&key, "key", "", "only events of this key")
	cmd.Flags().IntVar(&count, "count", 0, "end after so many events (default: never)")
	return cmd
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
