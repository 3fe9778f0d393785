package main

import (
	"context"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/fsm"
)

// marking is one of undrain, cordon and uncordon, and what drain has in common with them.
type marking struct {
	verb, short, long, example string
	expires                    bool // can end by itself
	// after runs once the mark is set; nil only says so.
	after func(ctx context.Context, c *api.Client, i api.Instance, before *holdings) error
	flags func(cmd *cobra.Command)
	// marked tells whether the mark that is taken away is there; nil sets one.
	marked func(i api.Instance) bool
	mark   string
	// watch says that after needs to know what was held before.
	watch func() bool
}

func (a *app) undrainCommand() *cobra.Command {
	return a.marking(marking{
		verb: "undrain", short: "Let a drained instance take work again",
		example: "  miwnode undrain node-1",
		marked:  func(i api.Instance) bool { return i.Draining }, mark: "draining",
	})
}

func (a *app) cordonCommand() *cobra.Command {
	return a.marking(marking{
		verb: "cordon", short: "Let an instance take nothing new; it keeps what it has", expires: true,
		long: `Let an instance take nothing new; it keeps what it has. Leases of clients (exec,
HTTP) are not the instance's: whoever asks through its node still gets them.`,
		example: `  miwnode cordon node-1 --reason "disk is slow"
  miwnode cordon node-1 --expires-in 1h`,
	})
}

func (a *app) uncordonCommand() *cobra.Command {
	return a.marking(marking{
		verb: "uncordon", short: "Let a cordoned instance take new work again",
		example: "  miwnode uncordon node-1",
		marked:  func(i api.Instance) bool { return i.Cordoned }, mark: "cordoned",
	})
}

func (a *app) marking(m marking) *cobra.Command {
	var req api.MarkRequest
	var expires time.Duration
	cmd := &cobra.Command{
		Use: m.verb + " INSTANCE", Short: m.short, Long: m.long, Example: m.example, Args: nArgs(1, "INSTANCE (an instance's ID, the beginning of one, or a node's ID)"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkExpiry(cmd, expires); err != nil {
				return err
			}
			if err := checkWords(cmd, req.By, req.Reason); err != nil {
				return err
			}
			c, err := a.client(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			i, err := a.instance(ctx, c, args[0])
			if err != nil {
				return err
			}
			var before *holdings
			if m.watch != nil && m.watch() {
				if before, err = a.holdings(ctx, c, i); err != nil {
					return err
				}
			}
			req.ExpiresIn = api.Duration(expires)
			if req.By == "" {
				req.By = a.author()
			}
			path := "/v1/instances/" + api.PathEscape(i.InstanceID) + "/" + m.verb
			if _, err := a.call(ctx, c, api.Request{Method: "POST", Path: path, Body: req}, nil); err != nil {
				return err
			}
			if m.after != nil {
				return m.after(ctx, c, i, before)
			}
			if m.marked != nil && !m.marked(i) {
				return a.empty("%s: was not %s; nothing to undo.", shortID(i.InstanceID), m.mark)
			}
			return a.empty("%s: %s", shortID(i.InstanceID), past(m.verb))
		},
		ValidArgsFunction: a.completeInstances,
	}
	cmd.Flags().StringVar(&req.Reason, "reason", "", "shown beside the mark")
	cmd.Flags().StringVar(&req.By, "by", "", "who asks (default: user@host)")
	if m.expires {
		cmd.Flags().DurationVar(&expires, "expires-in", 0, "ends by itself after so long (default: never)")
	}
	if m.flags != nil {
		m.flags(cmd)
	}
	return cmd
}

// maxExpiry is the longest life of a mark.
const maxExpiry = 366 * 24 * time.Hour

func checkExpiry(cmd *cobra.Command, d time.Duration) error {
	if cmd.Flags().Changed("expires-in") && (d <= 0 || d > maxExpiry) {
		return usage(cmd, "--expires-in is %v: it must be more than 0s and at most 366 days", d)
	}
	return nil
}

// checkWords refuses an author or a reason that no table could show.
func checkWords(cmd *cobra.Command, by, reason string) error {
	for _, f := range []struct{ name, text string }{{"by", by}, {"reason", reason}} {
		switch {
		case !utf8.ValidString(f.text):
			return usage(cmd, "--%s is %q: it is not valid UTF-8", f.name, f.text)
		case strings.ContainsFunc(f.text, unicode.IsControl):
			return usage(cmd, "--%s is %q: it has a control character", f.name, f.text)
		}
	}
	return nil
}

func past(verb string) string {
	return verb + "ed"
}

// instance finds the instance that a person means: by its ID, the ID of its
// node, or the beginning of either where only one begins so.
func (a *app) instance(ctx context.Context, c *api.Client, name string) (api.Instance, error) {
	if strings.TrimSpace(name) == "" { // every ID begins with nothing
		return api.Instance{}, fsm.Errorf(fsm.CodeInvalidArgument, "an instance's name is empty; miwnode instances lists them")
	}
	all, err := a.allInstances(ctx, c)
	if err != nil {
		return api.Instance{}, err
	}
	var near []api.Instance
	ids := map[string]bool{}
	for _, i := range all {
		if i.InstanceID == name {
			return i, nil
		}
		if i.NodeID == name && !strings.HasPrefix(i.InstanceID, "http:") || strings.HasPrefix(i.InstanceID, name) {
			near = append(near, i)
			ids[i.InstanceID] = true
		}
	}
	switch len(near) {
	case 1:
		return near[0], nil
	case 0:
		return api.Instance{}, a.unknown(ctx, c, fsm.Errorf(fsm.CodeNotFound, "there is no instance %q; miwnode instances lists them", name))
	}
	return api.Instance{}, fsm.Errorf(fsm.CodeInvalidArgument, "%q means any of %s; write more of it", name, strings.Join(sorted(ids), ", "))
}

func (a *app) allInstances(ctx context.Context, c *api.Client) ([]api.Instance, error) {
	var all []api.Instance
	for after := ""; ; {
		var page api.Instances
		q := url.Values{}
		if after != "" {
			q.Set("after", after)
		}
		if _, err := a.call(ctx, c, api.Request{Method: "GET", Path: "/v1/instances", Query: q}, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Instances...)
		if after = page.Next; after == "" {
			return all, nil
		}
	}
}

func (a *app) completeInstances(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	c, err := a.client(cmd)
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	all, err := a.allInstances(cmd.Context(), c)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, i := range all {
		names = append(names, i.InstanceID)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
