package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
)

func (a *app) statusCommand() *cobra.Command {
	return a.reading(readCommand{
		use: "status", short: "Show what a node knows of itself and its cluster",
		example: `  miwnode status
  miwnode status -o json
  miwnode status --addr http://127.0.0.1:7480`,
		path: "/v1/status",
		show: func(raw []byte) error {
			var s api.Status
			if err := json.Unmarshal(raw, &s); err != nil {
				return err
			}
			ready := "yes"
			if !s.Ready {
				ready = "no: " + s.ReadyReason
			}
			quorum := fmt.Sprintf("yes, %d of %d voters alive", s.Quorum.Alive, s.Quorum.Voters)
			if !s.Quorum.OK {
				quorum = fmt.Sprintf("NO, %d of %d voters alive", s.Quorum.Alive, s.Quorum.Voters)
			}
			t := newTable(a.stdout, "node", s.NodeID)
			t.row("role", s.Role)
			t.row("ready", ready)
			t.row("draining", map[bool]string{true: "yes", false: "no"}[s.Draining])
			t.row("quorum", quorum)
			t.row("leader", s.LeaderID)
			t.row("term", s.Term)
			t.row("revision", s.Revision)
			t.row("committed", s.CommitIndex)
			t.row("applied", s.AppliedIndex)
			t.row("instance", s.InstanceID)
			t.row("boot", s.Boot)
			t.row("cluster", s.ClusterID)
			t.row("generation", s.Generation)
			t.row("version", s.Version)
			return t.flush()
		},
	})
}
