package main

import (
	"errors"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/fsm"
)

func (a *app) revokeCommand() *cobra.Command {
	var req api.RevokeRequest
	cmd := &cobra.Command{
		Use: "revoke KEY", Short: "Take a lease from whoever holds it",
		Long: `Take a lease from whoever holds it. The holder is told to stop; one that does not
answer has stopped by the end of its session's TTL, and only then does the key
pass on. The lease that is revoked is the one that is held now: a later one of
the same key is never hit.`,
		Example: `  miwnode revoke mailer --reason "hangs since noon"
  miwnode revoke mailer --token 1099511627790`,
		Args: nArgs(1, "KEY"), ValidArgsFunction: a.completeKeys,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			ctx := cmd.Context()
			req.Key = args[0]
			if err := checkWords(cmd, req.By, req.Reason); err != nil {
				return err
			}
			if req.By == "" {
				req.By = a.author()
			}
			if req.Token == 0 {
				var page api.Leases
				q := url.Values{"key": {req.Key}, "consistency": {"linearizable"}}
				if _, err := a.call(ctx, c, api.Request{Method: "GET", Path: "/v1/leases", Query: q}, &page); err != nil {
					return err
				}
				if len(page.Leases) == 0 {
					return fsm.Errorf(fsm.CodeNotFound, "nobody holds %q; miwnode leases lists what is held", req.Key)
				}
				req.Token = page.Leases[0].Token
			}
			if _, err := a.call(ctx, c, api.Request{Method: "POST", Path: "/v1/leases/revoke", Body: req}, nil); err != nil {
				if errors.Is(err, fsm.ErrStaleToken) {
					return fmt.Errorf("%w; miwnode leases --key %s shows the present token", err, req.Key)
				}
				return err
			}
			_, err = fmt.Fprintf(a.stdout, "%s: token %d is revoked; its holder stops, at the latest when its session's TTL is over\n", req.Key, req.Token)
			return err
		},
	}
	cmd.Flags().Uint64Var(&req.Token, "token", 0, "revoke this grant only (default: the present one)")
	cmd.Flags().StringVar(&req.Reason, "reason", "", "shown in the history")
	cmd.Flags().StringVar(&req.By, "by", "", "who asks (default: user@host)")
	return cmd
}
