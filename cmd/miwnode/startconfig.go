package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/transport"
)

// startConfig is what the settings of start come to.
type startConfig struct {
	node       node.Config
	server     api.ServerConfig
	singletons []singleton
	groups     []groupFile
	workers    workerConfig
	log        *slog.Logger
}

// singleton is a command that runs on exactly one node.
type singleton struct {
	key  string
	argv []string
}

// build turns settings into configurations and reports every fault at once,
// each with the setting that it is about and where that came from.
func (s settings) build(stderr io.Writer) (startConfig, error) {
	b := &builder{settings: s, faulty: map[string]bool{}}
	var c startConfig
	c.log = b.logger(stderr)
	c.node = node.Config{
		DataDir: b.text("data-dir"), Moved: b.truth("moved"), Bind: b.text("bind"), Advertise: b.text("advertise"),
		Join: s["join"].values, BootstrapExpect: b.number("bootstrap-expect"), ID: b.text("id"), Voters: b.number("voters"),
		Zone: b.text("zone"), Labels: b.labels(), Insecure: b.truth("insecure"),
		Timing: node.Timing{
			SessionTTL: b.duration("session-ttl"), RenewInterval: b.duration("renew-interval"), Margin: b.duration("margin"),
			StopBudget: b.duration("stop-budget"), DrainTimeout: b.duration("drain-timeout"), KillTimeout: b.duration("kill-timeout"),
			RaftTimeout: b.duration("raft-timeout"),
		},
		Logger: c.log,
	}
	if b.text("bootstrap-expect") == "0" {
		b.fault("bootstrap-expect", "is 0: it must be 1 or more; leave it out where --join names a cluster that is there")
	}
	secretsRead := b.secrets(&c.node)
	c.server = api.ServerConfig{
		Socket: filepath.Join(c.node.DataDir, api.SocketName), Listen: b.text("api"), TokenFile: b.text("api-token-file"),
		TLSCert: b.text("tls-cert"), TLSKey: b.text("tls-key"), Insecure: c.node.Insecure, Logger: c.log,
	}
	c.singletons = b.singletons()
	c.groups = b.groups()
	c.workers = workerConfig{run: b.truth("workers"), private: b.truth("allow-private-sources")}
	judged := c.node
	judged.Insecure = judged.Insecure || !secretsRead // that they are missing has been said
	b.add(judged.Validate())
	b.add(c.server.Validate())
	if port(c.server.Listen) != "" && port(c.server.Listen) == port(cmpOr(c.node.Bind, node.DefaultBind)) {
		b.fault("api", "is %s: that is the port of --bind (%s), give it another", c.server.Listen, c.node.Bind)
	}
	return c, errors.Join(b.errs...)
}

// port is the port of an address, "" if it has none or any will do.
func port(addr string) string {
	_, p, err := net.SplitHostPort(addr)
	if err != nil || p == "0" {
		return ""
	}
	return p
}

// remarks are what is no fault and yet may not be meant.
func (c startConfig) remarks() (all []string) {
	if expect := c.node.BootstrapExpect; expect > 1 {
		if len(c.node.Join) == 0 {
			all = append(all, fmt.Sprintf("--bootstrap-expect is %d without --join: this node finds nobody by itself, the others must name it", expect))
		}
		if expect%2 == 0 {
			all = append(all, fmt.Sprintf("--bootstrap-expect is %d: an even number survives no more failures than %d", expect, expect-1))
		}
	}
	for _, s := range c.singletons {
		if strings.ContainsFunc(s.key, unicode.IsSpace) {
			all = append(all, fmt.Sprintf("the key %q has a blank in it", s.key))
		}
	}
	told := map[string]bool{}
	for _, g := range c.groups {
		for _, w := range g.workloads {
			if err := unrunnable(w.argv); err != nil && !told[w.argv[0]] {
				told[w.argv[0]] = true
				all = append(all, fmt.Sprintf("%s: workload %s: %v", g.path, w.key, err))
			}
		}
	}
	return all
}

// commandless are the singletons whose command can't be run on this machine as it
// is now.
func (c startConfig) commandless() error {
	var errs []error
	for _, s := range c.singletons {
		if err := unrunnable(s.argv); err != nil {
			errs = append(errs, fmt.Errorf("--singleton %s: %w", s.key, err))
		}
	}
	return errors.Join(errs...)
}

// unrunnable tells why a command can't be run here.
func unrunnable(argv []string) error {
	if len(argv) == 0 {
		return nil // that is told elsewhere
	}
	_, err := exec.LookPath(argv[0])
	if err == nil || errors.Is(err, exec.ErrDot) {
		return nil
	}
	if inner := (*exec.Error)(nil); errors.As(err, &inner) {
		err = inner.Err
	}
	return fmt.Errorf("%s can't be run: %w", argv[0], err)
}

// builder collects faults.
type builder struct {
	settings settings
	errs     []error
	faulty   map[string]bool // settings of which a fault was found
}

func (b *builder) text(name string) string { return b.settings[name].text() }

func (b *builder) fault(name, format string, args ...any) {
	b.faulty[name] = true
	b.errs = append(b.errs, fmt.Errorf("%s "+format, append([]any{b.settings[name].origin}, args...)...))
}

// fieldNames are the fields of the configurations and the settings they come from.
var fieldNames = map[string]string{
	"DataDir": "data-dir", "BootstrapExpect": "bootstrap-expect", "Voters": "voters", "Join": "join", "Zone": "zone", "Labels": "label",
	"Bind": "bind", "Advertise": "advertise", "ID": "id", "GossipKey": "gossip-key-file", "Insecure": "insecure",
	"SessionTTL": "session-ttl", "RenewInterval": "renew-interval", "Margin": "margin", "StopBudget": "stop-budget",
	"DrainTimeout": "drain-timeout", "KillTimeout": "kill-timeout", "RaftTimeout": "raft-timeout",
	"Listen": "api", "TokenFile": "api-token-file", "TLSCert": "tls-cert", "TLSKey": "tls-key", "TLS": "tls-cert",
}

var fieldName = regexp.MustCompile(`\b[A-Z][A-Za-z]+\b`)

// add takes faults that name fields and names the settings instead: the first,
// which it is about, by where its value came from. What was found faulty before
// is not told twice.
func (b *builder) add(err error) {
	if err == nil {
		return
	}
	for _, e := range flatten(err) {
		about := ""
		text := fieldName.ReplaceAllStringFunc(e.Error(), func(word string) string {
			name, ok := fieldNames[word]
			switch {
			case !ok:
				return word
			case about == "":
				about = name
				if r := b.settings[name]; r.origin != "default" {
					return r.origin
				}
			}
			return "--" + name
		})
		if !b.faulty[about] {
			b.errs = append(b.errs, errors.New(text))
		}
	}
}

func (b *builder) duration(name string) time.Duration {
	s := b.text(name)
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		b.fault(name, "is %q: it must be a positive duration such as 10s", s)
		return 0
	}
	return d
}

func (b *builder) number(name string) int {
	s := b.text(name)
	if s == "" {
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		b.fault(name, "is %q: it must be a whole number", s)
		return 0
	}
	return n
}

func (b *builder) truth(name string) bool {
	v, err := strconv.ParseBool(b.text(name))
	if err != nil {
		b.fault(name, "is %q: it must be true or false", b.text(name))
	}
	return v
}

func (b *builder) labels() map[string]string {
	labels := map[string]string{}
	for _, l := range b.settings["label"].values {
		k, v, ok := strings.Cut(l, "=")
		if !ok || k == "" {
			b.fault("label", "is %q: it must be k=v", l)
			continue
		}
		if _, twice := labels[k]; twice {
			b.fault("label", "gives %q twice", k)
		}
		labels[k] = v
	}
	return labels
}

// secrets reads the files that hold them and tells whether it could.
func (b *builder) secrets(c *node.Config) bool {
	faults := len(b.errs)
	ca, cert, key := b.text("tls-ca"), b.text("tls-cert"), b.text("tls-key")
	switch {
	case ca == "" && cert == "" && key == "":
	case ca == "" || cert == "" || key == "":
		b.errs = append(b.errs, errors.New("--tls-ca, --tls-cert and --tls-key go together: give all three or none (miwnode cert makes them)"))
	default:
		tls, err := transport.LoadTLS(ca, cert, key)
		if err != nil {
			b.errs = append(b.errs, fmt.Errorf("--tls-ca, --tls-cert, --tls-key: %w", err))
		}
		c.TLS = tls
	}
	if file := b.text("gossip-key-file"); file != "" {
		secret, err := transport.ReadGossipKey(file)
		if err != nil {
			b.errs = append(b.errs, fmt.Errorf("--gossip-key-file: %w", err))
		}
		c.GossipKey = secret
	}
	return len(b.errs) == faults
}

func (b *builder) singletons() []singleton {
	var all []singleton
	seen := map[string]bool{}
	for _, s := range b.settings["singleton"].values {
		key, line, ok := strings.Cut(s, "=")
		if !ok {
			b.fault("singleton", "is %q: it must be key=CMD", s)
			continue
		}
		if err := checkKey(key); err != nil {
			b.fault("singleton", "is %.60q: %w", s, err)
			continue
		}
		argv, err := splitWords(line)
		switch {
		case err != nil:
			b.fault("singleton", "%s: %w", key, err)
		case len(argv) == 0:
			b.fault("singleton", "%s names no command: write %s='CMD ARG…'", key, key)
		case seen[key]:
			b.fault("singleton", "gives the key %q twice", key)
		}
		seen[key] = true
		all = append(all, singleton{key, argv})
	}
	return all
}

// checkKey tells what is wrong with a lease key that a user gave.
func checkKey(key string) error {
	switch {
	case key == "":
		return errors.New("the key is empty")
	case strings.TrimSpace(key) == "":
		return errors.New("the key is blank")
	case len(key) > 512:
		return fmt.Errorf("the key has %d bytes, at most 512 are taken", len(key))
	case !utf8.ValidString(key):
		return errors.New("the key is not valid UTF-8")
	case strings.ContainsFunc(key, unicode.IsControl):
		return errors.New("the key has a control character")
	case strings.HasPrefix(key, "miw/"):
		return errors.New("keys under miw/ are the product's own")
	}
	return nil
}

func (b *builder) logger(stderr io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(b.text("log-level"))); err != nil {
		b.fault("log-level", "is %q: it must be debug, info, warn or error", b.text("log-level"))
	}
	opts := &slog.HandlerOptions{Level: level}
	switch format := b.text("log-format"); format {
	case "json":
		return slog.New(slog.NewJSONHandler(stderr, opts))
	case "text":
	default:
		b.fault("log-format", "is %q: it must be text or json", format)
	}
	return slog.New(slog.NewTextHandler(stderr, opts))
}
