package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/transport"
)

// Three nodes as an operator sees them: work moves by a drain and by a crash,
// stops without a quorum, and resumes.
func TestProcess_Cluster(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three processes; runs without -short")
	}
	c := newCLI(t)
	script := `job=sh -c 'echo "runs with $MIW_TOKEN"; exec sleep 1000'`
	nodes := c.startCluster(3, "--singleton", script, "--session-ttl", "5s", "--renew-interval", "500ms")
	byID := map[string]*nodeProcess{}
	for _, n := range nodes {
		byID[id(n)] = n
	}
	owner := func() (*nodeProcess, uint64) {
		var name string
		var token uint64
		eventually(t, "somebody holds job", func() bool {
			for _, n := range nodes {
				select {
				case <-n.done:
				default:
					name, token = n.holder("job")
				}
			}
			return name != ""
		})
		return byID[name], token
	}

	t.Run("drain says what moved", func(t *testing.T) {
		n, token := owner()
		other := nodes[0]
		if other == n {
			other = nodes[1]
		}
		other.cli.in(t).run("drain", id(n), "--reason", "deploy", "--wait").ends(0).shows("job", "1 of 1 leases moved", "longest gap between leases", "LEASE GAP")
		now, next := owner()
		if now == n || next <= token {
			t.Errorf("held by %s with token %d, was %s with %d", id(now), next, id(n), token)
		}
		other.cli.in(t).run("instances").ends(0).shows("draining", "deploy")
		other.cli.in(t).run("undrain", id(n)).ends(0)
	})
	t.Run("a crash hands over by proof", func(t *testing.T) {
		n, token := owner()
		n.signal(syscall.SIGKILL)
		<-n.done
		began := time.Now()
		eventually(t, "another runs it", func() bool {
			for _, o := range nodes {
				if o != n {
					name, next := o.holder("job")
					return name != "" && name != id(n) && next > token
				}
			}
			return false
		})
		t.Logf("another node holds the key %v after the crash", time.Since(began).Round(time.Millisecond))
		n.again()
		n.ready()
	})
	t.Run("leadership moves on request", func(t *testing.T) {
		before := leader(t, nodes)
		before.cli.in(t).run("step-down").ends(0)
		eventually(t, "all know another leader", func() bool {
			known := map[string]bool{}
			for _, n := range nodes {
				var s api.Status
				n.get("/v1/status", &s)
				known[s.LeaderID] = true
			}
			return len(known) == 1 && !known[""] && !known[id(before)]
		})
	})
	t.Run("B-21_without_a_quorum_every_call_ends_and_says_so", func(t *testing.T) {
		n, last := owner()
		for _, o := range nodes {
			if o != n {
				o.signal(syscall.SIGKILL)
				<-o.done
			}
		}
		c := n.cli.in(t)
		eventually(t, "the survivor sees it", func() bool {
			var s api.Status
			n.get("/v1/status", &s)
			return !s.Quorum.OK
		})
		inst := id(n)
		for _, args := range [][]string{
			{"status"},
			{"members"},
			{"instances"},
			{"leases"},
			{"leases", "--consistency", "linearizable"},
			{"history"},
			{"events"},
			{"drain", inst},
			{"drain", inst, "--wait"},
			{"undrain", inst},
			{"cordon", inst},
			{"uncordon", inst},
			{"revoke", "job"},
			{"revoke", "job", "--token", "1"},
			{"step-down"},
			{"exec", "--key", "x", "--wait", "0s", "--", "true"},
			{"exec", "--key", "x", "--wait", "1s", "--", "true"},
		} {
			r := c.run(append([]string{"--timeout", "1s"}, args...)...).ends(69)
			if r.took > 3*time.Second {
				t.Errorf("%s took %v, with a timeout of 1s", r.line, r.took)
			}
			if !strings.Contains(r.errOut, "no quorum") && !strings.Contains(r.errOut, "uncertain") && !strings.Contains(r.errOut, "not ready") {
				t.Errorf("%s does not say why: %s", r.line, r.errOut)
			}
		}
		n.says("command ended") // T - M after the last proof
		for _, o := range nodes {
			if o != n {
				o.again()
			}
		}
		for _, o := range nodes {
			o.ready()
		}
		eventually(t, "the work runs again, without a hand", func() bool {
			now, token := owner()
			return strings.Contains(now.text(), fmt.Sprintf("runs with %d", token)) && token > last
		})
	})
}

// A cluster on the material that keygen and cert make; its API over TLS with a token.
func TestProcess_Secured(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three processes; runs without -short")
	}
	c := newCLI(t)
	c.run("keygen", "--out", "gossip.key").ends(0)
	c.run("keygen", "--out", "api.token").ends(0)
	c.run("cert", "ca", "--out", "pki").ends(0).shows("ca.crt", "ca.key")
	addrs, err := freeAddrs(3)
	if err != nil {
		t.Fatal(err)
	}
	var nodes []*nodeProcess
	for i, addr := range addrs {
		id := []string{"n1", "n2", "n3"}[i]
		c.run("cert", "node", "--ca", "pki", "--id", id, "--host", "127.0.0.1", "--out", "pki/"+id).ends(0).shows("node.crt", "node.key")
		args := []string{
			"--id", id, "--bind", addr, "--bootstrap-expect", "3", "--gossip-key-file", "gossip.key", "--api-token-file", "api.token",
			"--tls-ca", "pki/" + id + "/" + transport.CACertFile, "--tls-cert", "pki/" + id + "/" + transport.NodeCertFile, "--tls-key", "pki/" + id + "/" + transport.NodeKeyFile,
		}
		for _, other := range addrs {
			if other != addr {
				args = append(args, "--join", other)
			}
		}
		if i == 0 {
			args = append(args, "--api", "127.0.0.1:0")
		}
		nodes = append(nodes, c.launchNode(id, args...))
	}
	for _, n := range nodes {
		n.ready()
	}
	nodes[0].cli.run("members").ends(0).shows("n1", "n2", "n3")

	api0, err := freeAddrs(1)
	if err != nil {
		t.Fatal(err)
	}
	nodes[0].signal(syscall.SIGTERM)
	nodes[0].ends(0)
	nodes[0].args = append(nodes[0].args, "--api", api0[0])
	nodes[0].again()
	nodes[0].ready()
	far := c.with("MIW_ADDR=https://"+api0[0], "MIW_TLS_CA="+c.path("pki/ca.crt"))
	far.run("status").ends(1).complains("unauthenticated", "--api-token-file")
	far = far.with("MIW_API_TOKEN_FILE=" + c.path("api.token"))
	eventually(t, "the node serves over TCP", func() bool { return far.run("status").code == 0 })
	far.run("exec", "--key", "k", "--", "sh", "-c", "echo $MIW_ADDR").ends(0).shows("https://" + api0[0])
	c.with("MIW_ADDR=https://"+api0[0], "MIW_API_TOKEN_FILE="+c.path("api.token")).run("status").ends(69).complains("certificate")
}

func TestProcess_Demo(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 14 seconds; runs without -short")
	}
	c := newCLI(t)
	tmp := c.path("tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	r := c.with("TMPDIR="+tmp).run("demo", "--for", "14s", "--kill-after", "2s", "--restart-after", "1s").ends(0)
	r.shows("shards", "balanced", "mail", "primary", "mailer sweeper", "KILL", "comes back", "has caught up", "DRAIN", "taken over", "At no moment did a workload run twice")
	if left, _ := filepath.Glob(tmp + "/*"); len(left) != 0 {
		t.Errorf("the demo left %v behind", left)
	}
}
