package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/fsm"
)

// version is set by the build of a release (-ldflags -X); else the module's own is shown.
var version string

// release is the version of this binary.
func release() string {
	v := version
	if info, ok := debug.ReadBuildInfo(); ok && v == "" {
		v = info.Main.Version
	}
	return cmpOr(v, "(devel)")
}

func versionLine() string {
	return fmt.Sprintf("miwnode %s, state version %d, %s %s/%s", release(), fsm.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "version", Short: "Show the version of this binary and of the state it can apply", Args: noArgs,
		Example: `  miwnode version
  miwnode version -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch a.output {
			case "":
				return a.empty("%s", versionLine())
			case "json":
				return json.NewEncoder(a.stdout).Encode(map[string]any{
					"version": release(), "state_version": fsm.Version, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH,
				})
			}
			return usage(cmd, "-o is %q: it must be json", a.output)
		},
	}
	cmd.Flags().StringVarP(&a.output, "output", "o", "", "json prints it as JSON")
	completeWords(cmd, "output", "json")
	return cmd
}
