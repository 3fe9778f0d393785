package node_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/node/nodetest"
)

// TestChecklist holds behaviours of the systems this one re-creates.
func TestChecklist(t *testing.T) {
	fields := map[string]func(*node.Timing, time.Duration){
		"SessionTTL":    func(c *node.Timing, d time.Duration) { c.SessionTTL = d },
		"RenewInterval": func(c *node.Timing, d time.Duration) { c.RenewInterval = d },
		"Margin":        func(c *node.Timing, d time.Duration) { c.Margin = d },
		"StopBudget":    func(c *node.Timing, d time.Duration) { c.StopBudget = d },
		"DrainTimeout":  func(c *node.Timing, d time.Duration) { c.DrainTimeout = d },
		"KillTimeout":   func(c *node.Timing, d time.Duration) { c.KillTimeout = d },
		"RaftTimeout":   func(c *node.Timing, d time.Duration) { c.RaftTimeout = d },
	}
	t.Run("020_every_timing_is_checked_by_name", func(t *testing.T) {
		for name, set := range fields {
			timing := node.Timing{}
			set(&timing, -1)
			if err := timing.Validate(); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s = -1: %v", name, err)
			}
			// Zero is the default here, and a sound one.
			timing = node.Timing{}
			set(&timing, 0)
			if err := timing.Validate(); err != nil {
				t.Errorf("%s = 0: %v", name, err)
			}
		}
	})
	t.Run("021_sizes_fit_each_other", func(t *testing.T) {
		for _, c := range []struct {
			timing node.Timing
			says   string // "" = sound
		}{
			{node.Timing{}, ""},
			{node.Timing{RenewInterval: 10 * time.Second}, "RenewInterval is 10s: it must be shorter than SessionTTL (10s)"},
			{node.Timing{RenewInterval: 6999 * time.Millisecond}, ""},
			{node.Timing{RenewInterval: 7 * time.Second}, "lower RenewInterval to less than 7s"},
			{node.Timing{Margin: 999 * time.Millisecond}, "it must be at least 1s"},
			{node.Timing{SessionTTL: 1999 * time.Millisecond}, "it must lie between 2s and 1m0s"},
			{node.Timing{SessionTTL: 61 * time.Second, Margin: 7 * time.Second}, "it must lie between 2s and 1m0s"},
			{node.Timing{SessionTTL: 60 * time.Second, Margin: 6 * time.Second}, ""},
			{node.Timing{RaftTimeout: 149 * time.Millisecond}, "it must be at least 150ms"},
			{node.Timing{
				SessionTTL: 2 * time.Second, RenewInterval: 400 * time.Millisecond, Margin: 200 * time.Millisecond,
				StopBudget: 300 * time.Millisecond, RaftTimeout: 500 * time.Millisecond,
			}, ""},
			{node.Timing{
				SessionTTL: 2 * time.Second, RenewInterval: 500 * time.Millisecond, Margin: 200 * time.Millisecond,
				StopBudget: 300 * time.Millisecond, RaftTimeout: 500 * time.Millisecond,
			}, "it must exceed RenewInterval + Margin + StopBudget + 2*RaftTimeout = 2s"},
		} {
			err := c.timing.Validate()
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("%+v: %v, want %q", c.timing, err, c.says)
			}
		}
	})
	t.Run("022_the_engine_validates", func(t *testing.T) {
		dir := t.TempDir() + "/data"
		_, err := node.New(node.Config{DataDir: dir, Voters: 2, Timing: node.Timing{Margin: -1}, Bind: "nowhere"})
		if err == nil {
			t.Fatal("a faulty configuration was taken")
		}
		for _, part := range []string{"Voters is 2", "Margin is -1ns", `Bind: "nowhere" is not host:port`} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("the error does not say %q: %v", part, err)
			}
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a refused configuration left a folder: %v", err)
		}
	})
	t.Run("001_two_instances_of_a_process_differ", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := nodetest.New(t, nodetest.Config{Nodes: 2, Seed: 1})
			host, _ := os.Hostname()
			a, b := c.Node(0).InstanceID(), c.Node(1).InstanceID()
			for _, id := range []string{a, b} {
				if !strings.HasPrefix(id, fmt.Sprintf("%s:%d:", host, os.Getpid())) {
					t.Errorf("instance %q does not start with host and pid", id)
				}
			}
			if a == b {
				t.Errorf("both are %q", a)
			}
		})
	})
}

func TestConfig_Validate(t *testing.T) {
	key := make([]byte, 32)
	for _, c := range []struct {
		name string
		edit func(*node.Config)
		says string // "" = sound
	}{
		{"the default", func(*node.Config) {}, ""},
		{"no folder", func(c *node.Config) { c.DataDir = "" }, "DataDir is empty"},
		{"ID with a slash", func(c *node.Config) { c.ID = "a/b" }, "ID:"},
		{"even voters", func(c *node.Config) { c.Voters = 4 }, "1, 3, 5 or 7"},
		{"negative expectation", func(c *node.Config) { c.BootstrapExpect = -1 }, "BootstrapExpect is -1"},
		{"join without a port", func(c *node.Config) { c.Join = []string{"db.example"} }, ""},
		{"join of a service", func(c *node.Config) { c.Join = []string{"srv:_miw._udp.example"} }, ""},
		{"join of nothing", func(c *node.Config) { c.Join = []string{":7400"} }, "Join:"},
		{"join with a bad port", func(c *node.Config) { c.Join = []string{"db.example:port"} }, "not a port"},
		{"open and unsecured", func(c *node.Config) { c.Bind = "10.1.2.3:7400" }, "set TLS and GossipKey"},
		{"open and half secured", func(c *node.Config) { c.Bind, c.GossipKey = "10.1.2.3:7400", key }, "set TLS and GossipKey"},
		{"open and said so", func(c *node.Config) { c.Bind, c.Insecure = "10.1.2.3:7400", true }, ""},
		{"unspecified to be told", func(c *node.Config) { c.Advertise = "0.0.0.0:7400" }, "peers need an address"},
		{"short key", func(c *node.Config) { c.GossipKey = key[:5] }, "GossipKey has 5 bytes"},
		{"long label", func(c *node.Config) { c.Labels = map[string]string{"k": strings.Repeat("v", 1025)} }, "Labels"},
	} {
		cfg := node.Config{DataDir: "data"}
		c.edit(&cfg)
		err := cfg.Validate()
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
	}
}
