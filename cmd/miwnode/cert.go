package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/transport"
)

func (a *app) certCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "cert", Short: "Make TLS material: an authority, and a certificate for each node",
		Example: `  miwnode cert ca --out pki
  miwnode cert node --ca pki --id node-1 --host 10.0.0.5 --out pki/node-1`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.certCACommand(), a.certNodeCommand())
	return cmd
}

func (a *app) certCACommand() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use: "ca", Short: "Make a certificate authority: ca.crt and ca.key", Args: noArgs,
		Long: `Make a certificate authority: ca.crt, which every node needs, and ca.key, which
signs certificates and belongs on no node. It is good for 10 years. Files that exist
are not overwritten.`,
		Example: "  miwnode cert ca --out pki",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if out == "" {
				return usage(cmd, "--out is missing")
			}
			if err := transport.NewCA(out); err != nil {
				return err
			}
			return a.wrote(out, transport.CACertFile, transport.CAKeyFile)
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "folder for the files")
	return cmd
}

func (a *app) certNodeCommand() *cobra.Command {
	var ca, id, out string
	var hosts []string
	cmd := &cobra.Command{
		Use: "node", Short: "Make a node's certificate: node.crt, node.key and a copy of ca.crt", Args: noArgs,
		Long: `Make a node's certificate: node.crt, node.key and a copy of ca.crt. It is good for
5 years and for the node that start --id names so, no other. To renew it, make a new
one into another folder and put its files in place of the old: a node that runs takes
them up by itself.`,
		Example: `  miwnode cert node --ca pki --id node-1 --host 10.0.0.5 --host node-1.example.org --out pki/node-1
  miwnode start --id node-1 --bind 10.0.0.5:7400 --gossip-key-file gossip.key \
    --tls-ca pki/node-1/ca.crt --tls-cert pki/node-1/node.crt --tls-key pki/node-1/node.key`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, f := range []struct{ name, value string }{{"--ca", ca}, {"--id", id}, {"--out", out}} {
				if f.value == "" {
					return usage(cmd, "%s is missing", f.name)
				}
			}
			if strings.ContainsFunc(id, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
				return usage(cmd, "--id is %q: it has white space or control characters", id)
			}
			if len(hosts) == 0 {
				return usage(cmd, "--host is missing: name every host name and address that the node is reached by")
			}
			if err := transport.NewNodeCert(ca, id, hosts, out); err != nil {
				return err
			}
			return a.wrote(out, transport.NodeCertFile, transport.NodeKeyFile, transport.CACertFile)
		},
	}
	cmd.Flags().StringVar(&ca, "ca", "", "folder with ca.crt and ca.key")
	cmd.Flags().StringVar(&id, "id", "", "the node's ID (start --id)")
	cmd.Flags().StringArrayVar(&hosts, "host", nil, "host name or address of the node (repeatable)")
	cmd.Flags().StringVar(&out, "out", "", "folder for the files")
	return cmd
}

func (a *app) wrote(dir string, files ...string) error {
	for _, f := range files {
		if _, err := fmt.Fprintln(a.stdout, "wrote", filepath.Join(dir, f)); err != nil {
			return err
		}
	}
	return nil
}
