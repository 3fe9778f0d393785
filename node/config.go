package node

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/miwnode/miwnode/transport"
)

// Config says who a node is and whom it joins. The zero value of a field means
// its default; a Config may be copied.
type Config struct {
	// DataDir holds everything that must survive a restart: identity, log,
	// snapshots. It is made (0700) if missing and locked while the node lives.
	DataDir string
	// Moved takes a data folder that is not where it was at its last start (moved
	// to another disk, restored) for the original. A copy that runs beside the
	// original is one voter twice, which no protocol survives, so set it for one
	// start only, and only if nothing else of the original is left.
	Moved bool
	// Bind is the host:port that is listened on, UDP and TCP; default
	// 127.0.0.1:7400. Port 0 picks a free one.
	Bind string
	// Advertise is the host:port that peers are told; default: Bind's, or the
	// first private address of the machine where Bind names none.
	Advertise string
	// Join lists where members may be found: host:port, a DNS name (port 7400
	// unless it says another) or srv:NAME. Names are resolved anew at every try.
	Join []string
	// BootstrapExpect is the number of stateless nodes that found a new
	// cluster together. Default: 1 without Join, else 0, which never founds.
	BootstrapExpect int
	// ID is the node ID; default: made at the first start. Once the data
	// folder has one, another is an error.
	ID string
	// Zone and Labels are shown to planners and operators.
	Zone   string
	Labels map[string]string
	// Voters is the number of voting members the leader aims at: 1, 3, 5
	// (default) or 7.
	Voters int
	// APIAddr is what peers are told about where this node's HTTP API is.
	APIAddr string

	// TLS secures all streams, GossipKey (32 bytes) the packets. A node that
	// binds anything but loopback needs both, or Insecure.
	TLS       *transport.TLS
	GossipKey []byte
	Insecure  bool

	Timing Timing
	// Logger takes the node's own log; nil discards it.
	Logger *slog.Logger
	// Network moves the bytes; nil is the operating system's. On any other the
	// node has no guard process.
	Network transport.Network

	seams *Seams
}

// Timing holds the durations of a node. Zero means the default in brackets.
type Timing struct {
	// SessionTTL is the life of the node's session without a confirmed
	// keep-alive [10s]; 2s to 60s.
	SessionTTL time.Duration
	// RenewInterval is the time between keep-alives [2s].
	RenewInterval time.Duration
	// Margin allows for clocks that run at different rates [1s].
	Margin time.Duration
	// StopBudget is the time work has between being told and being made to
	// stop [1s].
	StopBudget time.Duration
	// DrainTimeout bounds how long a draining run may go on [30s].
	DrainTimeout time.Duration
	// KillTimeout bounds how long a cancelled run may take to return before
	// it counts as stuck [5s].
	KillTimeout time.Duration
	// RaftTimeout is raft's heartbeat and election timeout [500ms]; at least
	// 150ms.
	RaftTimeout time.Duration
}

// Defaults and limits of a node's settings.
const (
	DefaultBind   = "127.0.0.1:7400"
	DefaultVoters = 5

	DefaultSessionTTL    = 10 * time.Second
	DefaultRenewInterval = 2 * time.Second
	DefaultMargin        = time.Second
	DefaultStopBudget    = time.Second
	DefaultDrainTimeout  = 30 * time.Second
	DefaultKillTimeout   = 5 * time.Second
	DefaultRaftTimeout   = 500 * time.Millisecond

	MinSessionTTL  = 2 * time.Second
	MaxSessionTTL  = 60 * time.Second
	MinRaftTimeout = 150 * time.Millisecond
)

// WithDefaults returns t with its zero fields set.
func (t Timing) WithDefaults() Timing {
	return Timing{
		SessionTTL:    cmp.Or(t.SessionTTL, DefaultSessionTTL),
		RenewInterval: cmp.Or(t.RenewInterval, DefaultRenewInterval),
		Margin:        cmp.Or(t.Margin, DefaultMargin),
		StopBudget:    cmp.Or(t.StopBudget, DefaultStopBudget),
		DrainTimeout:  cmp.Or(t.DrainTimeout, DefaultDrainTimeout),
		KillTimeout:   cmp.Or(t.KillTimeout, DefaultKillTimeout),
		RaftTimeout:   cmp.Or(t.RaftTimeout, DefaultRaftTimeout),
	}
}

// Validate reports every fault of t (after defaults), each with the values
// that would do.
func (t Timing) Validate() error {
	t = t.WithDefaults()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	for _, f := range []struct {
		name string
		d    time.Duration
	}{
		{"SessionTTL", t.SessionTTL},
		{"RenewInterval", t.RenewInterval},
		{"Margin", t.Margin},
		{"StopBudget", t.StopBudget},
		{"DrainTimeout", t.DrainTimeout},
		{"KillTimeout", t.KillTimeout},
		{"RaftTimeout", t.RaftTimeout},
	} {
		if f.d < 0 {
			bad("%s is %v: it must be positive", f.name, f.d)
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if t.SessionTTL < MinSessionTTL || t.SessionTTL > MaxSessionTTL {
		bad("SessionTTL is %v: it must lie between %v and %v", t.SessionTTL, MinSessionTTL, MaxSessionTTL)
	}
	if t.RaftTimeout < MinRaftTimeout {
		bad("RaftTimeout is %v: it must be at least %v", t.RaftTimeout, MinRaftTimeout)
	}
	if t.Margin < t.SessionTTL/10 {
		bad("Margin is %v: with a SessionTTL of %v it must be at least %v (a tenth)", t.Margin, t.SessionTTL, t.SessionTTL/10)
	}
	if t.RenewInterval >= t.SessionTTL {
		bad("RenewInterval is %v: it must be shorter than SessionTTL (%v)", t.RenewInterval, t.SessionTTL)
	}
	if need := t.RenewInterval + t.Margin + t.StopBudget + 2*t.RaftTimeout; t.SessionTTL <= need {
		or := "lower the others"
		if most := t.SessionTTL - t.Margin - t.StopBudget - 2*t.RaftTimeout; most > 0 {
			or = fmt.Sprintf("lower RenewInterval to less than %v", most)
		}
		bad("SessionTTL is %v: it must exceed RenewInterval + Margin + StopBudget + 2*RaftTimeout = %v; raise SessionTTL above that or %s", t.SessionTTL, need, or)
	}
	return errors.Join(errs...)
}

// withDefaults returns c with its zero fields set.
func (c Config) withDefaults() Config {
	c.Bind = cmp.Or(c.Bind, DefaultBind)
	c.Voters = cmp.Or(c.Voters, DefaultVoters)
	if c.BootstrapExpect == 0 && len(c.Join) == 0 {
		c.BootstrapExpect = 1
	}
	c.Timing = c.Timing.WithDefaults()
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Network == nil {
		c.Network = transport.OS()
	}
	if c.seams == nil {
		c.seams = &noSeams
	}
	return c
}

// Validate reports every fault of c at once, each naming its field and what
// would do. New calls it.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if c.DataDir == "" {
		bad("DataDir is empty: name a folder that survives restarts")
	}
	if c.ID != "" {
		if err := checkNodeID(c.ID); err != nil {
			bad("ID: %w", err)
		}
	}
	switch c.Voters {
	case 1, 3, 5, 7:
	default:
		bad("Voters is %d: it must be 1, 3, 5 or 7", c.Voters)
	}
	if c.BootstrapExpect < 0 || c.BootstrapExpect > 100 {
		bad("BootstrapExpect is %d: it must lie between 0 (never found a cluster) and 100", c.BootstrapExpect)
	}
	for _, j := range c.Join {
		if err := checkJoin(j); err != nil {
			bad("Join: %w", err)
		}
	}
	if len(c.Zone) > 128 || !utf8.ValidString(c.Zone) {
		bad("Zone must be valid UTF-8 of at most 128 bytes")
	}
	if len(c.Labels) > 64 {
		bad("Labels has %d entries: at most 64", len(c.Labels))
	}
	for k, v := range c.Labels {
		if k == "" || len(k) > 128 || len(v) > 1024 || !utf8.ValidString(k) || !utf8.ValidString(v) {
			bad("Labels[%.40q]: keys are 1 to 128 bytes, values at most 1024, valid UTF-8", k)
		}
	}
	if n := len(c.GossipKey); n != 0 && n != 16 && n != 24 && n != 32 {
		bad("GossipKey has %d bytes: it must have 32 (16 and 24 do too); miwnode keygen makes one", n)
	}
	errs = append(errs, c.checkAddrs()...)
	if err := c.Timing.Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// checkAddrs holds Bind, Advertise and Join against each other.
func (c Config) checkAddrs() (errs []error) {
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	bind, err := splitAddr(c.Bind)
	if err != nil {
		bad("Bind: %w", err)
		return errs
	}
	told := bind
	if c.Advertise != "" {
		if told, err = splitAddr(c.Advertise); err != nil {
			bad("Advertise: %w", err)
			return errs
		}
		if told == "" || isUnspecified(told) {
			bad("Advertise is %q: peers need an address or a name they can dial", c.Advertise)
		}
		if isLoopback(told) && !isLoopback(bind) {
			bad("Advertise is %q while Bind is %q: peers on other machines can't reach a loopback address", c.Advertise, c.Bind)
		}
	}
	if isLoopback(told) {
		for _, j := range c.Join {
			if host, err := splitAddr(j); err == nil && isIP(host) && !isLoopback(host) {
				bad("Advertise is %q while Join names %q: peers there can't reach a loopback address; set Bind or Advertise", cmp.Or(c.Advertise, c.Bind), j)
				break
			}
		}
	}
	if !isLoopback(bind) && !c.Insecure && (c.TLS == nil || len(c.GossipKey) == 0) {
		bad("Bind is %q, not loopback: set TLS and GossipKey (miwnode cert and keygen make them), or say Insecure", c.Bind)
	}
	return errs
}

func checkNodeID(id string) error {
	if len(id) > 128 {
		return fmt.Errorf("%.20q… has %d bytes: at most 128", id, len(id))
	}
	for _, r := range id {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.') {
			return fmt.Errorf("%q: only letters, digits, '-', '_' and '.' may be used", id)
		}
	}
	return nil
}

func checkJoin(j string) error {
	if name, ok := strings.CutPrefix(j, "srv:"); ok {
		if name == "" {
			return fmt.Errorf("%q names no service: write srv:_miw._udp.example.org", j)
		}
		return nil
	}
	host := j
	if strings.Contains(j, ":") { // a bare name gets the default port
		var err error
		if host, err = splitAddr(j); err != nil {
			return err
		}
	}
	if host == "" {
		return fmt.Errorf("%q has no host", j)
	}
	return nil
}

func splitAddr(addr string) (host string, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("%q is not host:port", addr)
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return "", fmt.Errorf("%q: %q is not a port", addr, port)
	}
	return host, nil
}

func isIP(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

func isUnspecified(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsUnspecified()
}
