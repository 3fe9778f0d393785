package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/transport"
)

func (a *app) keygenCommand() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use: "keygen", Short: "Make a gossip key (or an API token): 32 random bytes in base64", Args: noArgs,
		Example: `  miwnode keygen --out gossip.key     # for start --gossip-key-file, the same on all nodes
  miwnode keygen --out api.token      # for start --api-token-file`,
		RunE: func(_ *cobra.Command, _ []string) error {
			key := transport.NewGossipKey()
			if out != "" {
				if err := transport.WriteGossipKey(out, key); err != nil {
					return err
				}
				return a.empty("wrote %s", out)
			}
			_, err := fmt.Fprintln(a.stdout, transport.EncodeGossipKey(key))
			return err
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "write it to this new file (mode 0600) instead of printing it")
	return cmd
}
