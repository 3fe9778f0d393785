package main

import (
	"net/url"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
)

// completeWords completes a flag that takes one of a few words.
func completeWords(cmd *cobra.Command, flag string, words ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// completeKeys completes keys that are held.
func (a *app) completeKeys(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	var page api.Leases
	if !a.completed(cmd, args, api.Request{Method: "GET", Path: "/v1/leases", Query: url.Values{"prefix": {word}}}, &page) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var keys []string
	for _, l := range page.Leases {
		keys = append(keys, l.Key)
	}
	return keys, cobra.ShellCompDirectiveNoFileComp
}

// completeNodes completes IDs of members.
func (a *app) completeNodes(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var page api.Members
	if !a.completed(cmd, args, api.Request{Method: "GET", Path: "/v1/members"}, &page) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var nodes []string
	for _, m := range page.Members {
		nodes = append(nodes, m.NodeID)
	}
	return nodes, cobra.ShellCompDirectiveNoFileComp
}

// completed makes a call for a completion, which has nowhere to complain.
func (a *app) completed(cmd *cobra.Command, args []string, req api.Request, out any) bool {
	c, err := a.client(cmd)
	if err != nil || len(args) > 0 {
		return false
	}
	defer c.Close()
	_, err = a.call(cmd.Context(), c, req, out)
	return err == nil
}

// completeFlag completes a flag; arguments don't matter to it.
func (a *app) completeFlag(cmd *cobra.Command, flag string, by func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)) {
	_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
		return by(cmd, nil, word)
	})
}

func (a *app) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish|powershell", Short: "Print a script that completes commands, flags, keys and instances in your shell",
		Example: `  source <(miwnode completion bash)
  miwnode completion fish > ~/.config/fish/completions/miwnode.fish`,
		Args:      nArgs(1, "the shell (bash, zsh, fish or powershell)"),
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.stdout, true)
			case "zsh":
				return root.GenZshCompletion(a.stdout)
			case "fish":
				return root.GenFishCompletion(a.stdout, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(a.stdout)
			}
			return usage(cmd, "unknown shell %q: it must be bash, zsh, fish or powershell", args[0])
		},
	}
}
