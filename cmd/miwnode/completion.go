package main

import "github.com/spf13/cobra"

func (a *app) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish|powershell", Short: "Print a script that completes commands, flags and instances in your shell",
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
