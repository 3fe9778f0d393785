package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/miwnode/miwnode/load"
)

// etcdCluster is three etcd servers of one process on loopback, fsync on, each
// with a client and a session of its own that talk to that server only.
type etcdCluster struct {
	dir      string
	servers  []*embed.Etcd
	clients  []*clientv3.Client
	sessions []*concurrency.Session
	leader   int
}

func startEtcd(ctx context.Context) (*etcdCluster, error) {
	dir, err := os.MkdirTemp("", "bench-etcd-")
	if err != nil {
		return nil, err
	}
	c := &etcdCluster{dir: dir}
	var initial string
	var configs []*embed.Config
	for i := range 3 {
		name := "e" + strconv.Itoa(i)
		peer, client := loopbackURL(), loopbackURL()
		cfg := embed.NewConfig()
		cfg.Name, cfg.Dir = name, filepath.Join(dir, name)
		cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
		cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
		cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
		if initial != "" {
			initial += ","
		}
		initial += name + "=" + peer.String()
		configs = append(configs, cfg)
	}
	started := make([]*embed.Etcd, len(configs))
	errs := make([]error, len(configs))
	var wg sync.WaitGroup
	for i, cfg := range configs {
		cfg.InitialCluster = initial
		wg.Go(func() { started[i], errs[i] = embed.StartEtcd(cfg) })
	}
	wg.Wait()
	for i, e := range started {
		if errs[i] != nil {
			return c, fmt.Errorf("start etcd %d: %w", i, errs[i])
		}
		c.servers = append(c.servers, e)
	}
	for i, e := range c.servers {
		select {
		case <-e.Server.ReadyNotify():
		case <-ctx.Done():
			return c, ctx.Err()
		}
		if uint64(e.Server.MemberID()) == e.Server.Lead() {
			c.leader = i
		}
		cl, err := clientv3.New(clientv3.Config{Endpoints: []string{e.Clients[0].Addr().String()}, Logger: zap.NewNop()})
		if err != nil {
			return c, err
		}
		c.clients = append(c.clients, cl)
		s, err := concurrency.NewSession(cl, concurrency.WithTTL(10))
		if err != nil {
			return c, err
		}
		c.sessions = append(c.sessions, s)
	}
	return c, nil
}

func (c *etcdCluster) close() {
	for _, s := range c.sessions {
		_ = s.Close()
	}
	for _, cl := range c.clients {
		_ = cl.Close()
	}
	for _, e := range c.servers {
		e.Close()
	}
	_ = os.RemoveAll(c.dir)
}

func loopbackURL() url.URL {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer l.Close()
	return url.URL{Scheme: "http", Host: l.Addr().String()}
}

// etcdCell measures one cell once in a fresh cluster.
func etcdCell(ctx context.Context, cell, variant string, d time.Duration) (load.Row, error) {
	begin := time.Now()
	c, err := startEtcd(ctx)
	defer c.close()
	if err != nil {
		return load.Row{}, err
	}
	if cell == "start" {
		if err := concurrency.NewMutex(c.sessions[0], "/start").Lock(ctx); err != nil {
			return load.Row{}, err
		}
		return load.Row{P50: load.MS(time.Since(begin))}, nil
	}
	switch cell + "/" + variant {
	case "pairs/leader":
		return c.pairs(ctx, d, 1, func(int) int { return c.leader })
	case "pairs/follower":
		return c.pairs(ctx, d, 1, func(int) int { return (c.leader + 1) % 3 })
	case "pairs/spread":
		return c.pairs(ctx, d, 128, func(i int) int { return i % 3 })
	case "renewals/":
		return c.renewals(ctx, d, 128)
	case "handover/":
		return c.handover(ctx, 100)
	}
	return load.Row{}, fmt.Errorf("unknown cell %s/%s", cell, variant)
}

// pairs: each caller locks and unlocks a key of its own through the node given to it.
func (c *etcdCluster) pairs(ctx context.Context, d time.Duration, callers int, at func(int) int) (load.Row, error) {
	return load.Repeat(ctx, d, callers, func(ctx context.Context, caller int) error {
		m := concurrency.NewMutex(c.sessions[at(caller)], "/pairs/"+strconv.Itoa(caller))
		if err := m.Lock(ctx); err != nil {
			return err
		}
		return m.Unlock(ctx)
	})
}

// renewals: each caller keeps a lease of its own alive at the leader, one request at a time.
func (c *etcdCluster) renewals(ctx context.Context, d time.Duration, callers int) (load.Row, error) {
	cl := c.clients[c.leader]
	ids := make([]clientv3.LeaseID, callers)
	for i := range ids {
		g, err := cl.Grant(ctx, 10)
		if err != nil {
			return load.Row{}, err
		}
		ids[i] = g.ID
	}
	streams := make([]func() error, callers)
	for i := range streams {
		streams[i] = keepAliveStream(ctx, cl, ids[i])
	}
	return load.Repeat(ctx, d, callers, func(ctx context.Context, caller int) error { return streams[caller]() })
}

func keepAliveStream(ctx context.Context, cl *clientv3.Client, id clientv3.LeaseID) func() error {
	return func() error {
		_, err := cl.KeepAliveOnce(ctx, id)
		return err
	}
}

// handover: unlock at one follower until the waiter at the other holds the lock.
func (c *etcdCluster) handover(ctx context.Context, rounds int) (load.Row, error) {
	var gaps []time.Duration
	a, b := (c.leader+1)%3, (c.leader+2)%3
	for i := range rounds {
		key := "/handover/" + strconv.Itoa(i)
		first, second := concurrency.NewMutex(c.sessions[a], key), concurrency.NewMutex(c.sessions[b], key)
		if err := first.Lock(ctx); err != nil {
			return load.Row{}, err
		}
		got := make(chan error, 1)
		var at time.Time
		go func() {
			err := second.Lock(ctx)
			at = time.Now()
			got <- err
		}()
		if err := c.waiting(ctx, key); err != nil {
			return load.Row{}, err
		}
		released := time.Now()
		if err := first.Unlock(ctx); err != nil {
			return load.Row{}, err
		}
		if err := <-got; err != nil {
			return load.Row{}, err
		}
		gaps = append(gaps, at.Sub(released))
		if err := second.Unlock(ctx); err != nil {
			return load.Row{}, err
		}
		a, b = b, a
	}
	return load.Row{P50: load.MS(load.Quantile(gaps, 0.5)), P99: load.MS(load.Quantile(gaps, 0.99))}, nil
}

// waiting returns once both mutexes stand in the queue of the key and the second one has had time to watch.
func (c *etcdCluster) waiting(ctx context.Context, key string) error {
	for {
		r, err := c.clients[c.leader].Get(ctx, key+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return err
		}
		if r.Count >= 2 {
			time.Sleep(120 * time.Millisecond) // a new watch joins the synced ones within 100 ms
			return nil
		}
	}
}
