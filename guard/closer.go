package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Session is the node's session and the way to close it.
type Session struct {
	ID string `json:"id"`
	// TTL bounds how long the guard tries: after that the session has run out by itself.
	TTL time.Duration `json:"ttl"`
	// RPC closes through peers of a node.
	RPC *RPC `json:"rpc,omitempty"`
	// HTTP closes through a node's HTTP API.
	HTTP *HTTP `json:"http,omitempty"`
	// Closer names one that RegisterCloser knows, instead of RPC and HTTP.
	Closer string `json:"closer,omitempty"`
	// Param is for that closer.
	Param string `json:"param,omitempty"`
}

// RPC is the identity of the node that died, as it greeted its peers, and where they are.
type RPC struct {
	ClusterID string `json:"cluster_id"`
	NodeID    string `json:"node_id"`
	Boot      uint64 `json:"boot"`
	Nonce     string `json:"nonce"`
	Addr      string `json:"addr"`
	Peers     []Peer `json:"peers"`
	// CAFile, CertFile and KeyFile are the node's TLS material, read when they are needed. All "" is plain.
	CAFile   string `json:"ca_file,omitempty"`
	CertFile string `json:"cert_file,omitempty"`
	KeyFile  string `json:"key_file,omitempty"`
	// GossipKey is the node's: peers with another one, or with one where this has none, turn the greeting away.
	GossipKey []byte `json:"gossip_key,omitempty"`
}

// Peer is another node.
type Peer struct {
	NodeID string `json:"node_id"`
	Addr   string `json:"addr"` // host:port
}

// HTTP is a node's API.
type HTTP struct {
	// Addr is the path of a unix socket, or an http or https URL.
	Addr string `json:"addr"`
	// Token is sent as a bearer token; "" sends none.
	Token string `json:"token,omitempty"`
	// CAFile holds the authorities to trust for https; "" trusts the system's.
	CAFile string `json:"ca_file,omitempty"`
}

func (s *Session) validate() error {
	n := 0
	for _, set := range []bool{s.RPC != nil, s.HTTP != nil, s.Closer != ""} {
		if set {
			n++
		}
	}
	if s.ID == "" || s.TTL <= 0 || n != 1 {
		return errors.New("guard: Session: wants an ID, a TTL and exactly one of RPC, HTTP and Closer")
	}
	return nil
}

// Closer tries once to close a session whose owner is dead. It returns nil when the session is closed or was gone already.
// It may use all the time that ctx has, and must return soon after ctx ends.
type Closer func(ctx context.Context, s Session) error

var closers = struct {
	sync.Mutex
	byName map[string]Closer
}{byName: map[string]Closer{"rpc": closeRPC, "http": closeHTTP}}

// RegisterCloser makes a closer known by a name. It must be called before Main, since the guard process uses it.
func RegisterCloser(name string, c Closer) {
	closers.Lock()
	defer closers.Unlock()
	closers.byName[name] = c
}

// closerOf finds the closer that a session asks for.
func closerOf(s Session) (Closer, error) {
	name := s.Closer
	switch {
	case s.RPC != nil:
		name = "rpc"
	case s.HTTP != nil:
		name = "http"
	}
	closers.Lock()
	defer closers.Unlock()
	if c, ok := closers.byName[name]; ok {
		return c, nil
	}
	return nil, fmt.Errorf("no closer %q is registered", name)
}

const (
	attemptTimeout = 3 * time.Second // of one call of a Closer; an election fits into it
	closeRetry     = 20 * time.Millisecond
	closeRetryMax  = 500 * time.Millisecond
)

// closeUntil tries to close the session until it succeeds or ctx ends. It returns how often it tried, and the last error.
func closeUntil(ctx context.Context, s Session) (tries int, err error) {
	closer, err := closerOf(s)
	if err != nil {
		return 0, err
	}
	for wait := closeRetry; ; wait = min(2*wait, closeRetryMax) {
		if ctx.Err() != nil {
			return tries, cmp.Or(err, ctx.Err())
		}
		tries++
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		err = closer(attempt, s)
		cancel()
		if err == nil {
			return tries, nil
		}
		timer := time.NewTimer(wait/2 + rand.N(wait))
		select {
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
	}
}
