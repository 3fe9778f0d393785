package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/fsm"
)

// version is set by the build of a release (-ldflags -X); else the module's own is shown.
var version string

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Show the version of this binary and of the state it can apply", Args: noArgs,
		Example: "  miwnode version",
		RunE: func(*cobra.Command, []string) error {
			v := version
			if info, ok := debug.ReadBuildInfo(); ok && v == "" {
				v = info.Main.Version
			}
			_, err := fmt.Fprintf(a.stdout, "miwnode %s, state version %d, %s %s/%s\n", cmpOr(v, "(devel)"), fsm.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
