package guard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/miwnode/miwnode/node/nodepb"
	"github.com/miwnode/miwnode/transport"
)

// methodCloseCrashed is the number of the call in the node's table of methods. It is wire: it never changes.
const methodCloseCrashed transport.Method = 9

// hedgeDelay is how long a peer may be silent before the next one is asked too.
const hedgeDelay = 150 * time.Millisecond

// closeRPC asks the peers, in random order, to close the session of the dead node, in the name of that node. The next one is
// asked as soon as one refuses or is silent for hedgeDelay; the first that has closed it ends the round.
func closeRPC(ctx context.Context, s Session) error {
	r := s.RPC
	if len(r.Peers) == 0 {
		return errors.New("no peer is known")
	}
	cfg := transport.Config{GossipKey: r.GossipKey, Identity: func() transport.Identity {
		return transport.Identity{ClusterID: r.ClusterID, NodeID: r.NodeID, Boot: r.Boot, Nonce: r.Nonce, Addr: r.Addr}
	}}
	if r.CAFile != "" || r.CertFile != "" || r.KeyFile != "" {
		tls, err := transport.LoadTLS(r.CAFile, r.CertFile, r.KeyFile)
		if err != nil {
			return fmt.Errorf("load TLS material: %w", err)
		}
		cfg.TLS = tls
	}
	t, err := transport.NewClient(cfg)
	if err != nil {
		return fmt.Errorf("open client: %w", err)
	}
	defer t.Close()
	body, err := proto.Marshal(&nodepb.CloseCrashedRequest{SessionId: s.ID, NodeId: r.NodeID, Boot: r.Boot})
	if err != nil {
		return err
	}
	return hedge(ctx, r.Peers, hedgeDelay, func(ctx context.Context, p Peer) error {
		answer, _, err := t.Call(ctx, p.Addr, p.NodeID, methodCloseCrashed, body)
		if err != nil {
			return fmt.Errorf("peer %s at %s: %w", p.NodeID, p.Addr, err)
		}
		// Closed is false where the session was gone already; both are what is wanted.
		return proto.Unmarshal(answer, new(nodepb.CloseCrashedReply))
	})
}

// hedge calls ask for one peer after the other, without waiting longer than delay for the ones before, until one returns nil. It
// returns when that is so, or when all have failed, and leaves no call running.
func hedge(ctx context.Context, peers []Peer, delay time.Duration, ask func(context.Context, Peer) error) error {
	ctx, cancel := context.WithCancel(ctx)
	answers := make(chan error, len(peers))
	running := 0
	defer func() {
		cancel()
		for range running {
			<-answers
		}
	}()
	order := rand.Perm(len(peers))
	timer := time.NewTimer(delay)
	defer timer.Stop()
	var errs []error
	for {
		if len(order) > 0 {
			p := peers[order[0]]
			order = order[1:]
			running++
			go func() { answers <- ask(ctx, p) }()
			timer.Reset(delay)
		}
		if running == 0 {
			return errors.Join(errs...)
		}
		next := timer.C
		if len(order) == 0 {
			next = nil
		}
		select {
		case err := <-answers:
			running--
			if err == nil {
				return nil
			}
			errs = append(errs, err)
		case <-next:
		}
	}
}
