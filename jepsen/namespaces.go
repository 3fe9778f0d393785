package jepsen

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Namespaces are network namespaces of our own, one for each node and one with
// the bridge between them. Nothing of the machine's own network is touched.
type Namespaces struct {
	prefix  string
	nodes   []string
	filter  filter
	noShape error // why nothing can be delayed and lost here
}

var _ Network = (*Namespaces)(nil)

// filter is the program that drops packets.
type filter struct {
	name                string
	setUp               []string // commands within a node's namespace
	cut, mend           string   // %s is the sender's address
	needs, debianPacket string
}

var filters = []filter{
	{
		name: "nftables", needs: "nft", debianPacket: "nftables",
		setUp: []string{"nft add table inet miw; add set inet miw cut { type ipv4_addr; }; add chain inet miw in { type filter hook input priority 0; }; add rule inet miw in ip saddr @cut drop"},
		cut:   "nft add element inet miw cut { %s }", mend: "nft delete element inet miw cut { %s }",
	},
	{
		name: "iptables", needs: "iptables", debianPacket: "iptables",
		cut: "iptables -w -A INPUT -s %s -j DROP", mend: "iptables -w -D INPUT -s %s -j DROP",
	},
}

// NamespacesAvailable returns nil, or why there can be none here.
func NamespacesAvailable() error {
	if runtime.GOOS != "linux" {
		return errors.New("network namespaces need Linux")
	}
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return errors.New("network namespaces need the program ip (Debian: iproute2)")
	}
	probe := &Namespaces{prefix: fmt.Sprintf("miw%d-probe", os.Getpid())}
	if err := command("ip", "netns", "add", probe.name("x")); err != nil {
		return err
	}
	defer func() { _ = command("ip", "netns", "del", probe.name("x")) }()
	return probe.chooseFilter("x")
}

// chooseFilter takes the first that works in a node's namespace.
func (n *Namespaces) chooseFilter(node string) error {
	errs := []error{errors.New("network namespaces need nftables or iptables to drop packets")}
	for _, f := range filters {
		if _, err := exec.LookPath(f.needs); err != nil {
			errs = append(errs, fmt.Errorf("there is no program %s (Debian: %s)", f.needs, f.debianPacket))
			continue
		}
		err := n.within(node, slices.Concat(f.setUp, []string{fmt.Sprintf(f.cut, "192.0.2.1"), fmt.Sprintf(f.mend, "192.0.2.1")})...)
		if err == nil {
			n.filter = f
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// within runs commands, each of words without blanks, in a node's namespace.
func (n *Namespaces) within(node string, lines ...string) error {
	for _, line := range lines {
		if err := command("ip", append([]string{"netns", "exec", n.name(node)}, strings.Fields(line)...)...); err != nil {
			return err
		}
	}
	return nil
}

// NewNamespaces makes them.
func NewNamespaces(nodes []string) (*Namespaces, error) {
	n := &Namespaces{prefix: fmt.Sprintf("miw%d", os.Getpid()), nodes: nodes}
	if err := n.make(); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

func (n *Namespaces) make() error {
	bridge := n.name("br")
	steps := [][]string{{"ip", "netns", "add", bridge}, {"ip", "-n", bridge, "link", "add", "br0", "type", "bridge"}, {"ip", "-n", bridge, "link", "set", "br0", "up"}}
	for _, node := range n.nodes {
		ns := n.name(node)
		steps = append(steps,
			[]string{"ip", "netns", "add", ns},
			[]string{"ip", "-n", bridge, "link", "add", node, "type", "veth", "peer", "name", "eth0", "netns", ns},
			[]string{"ip", "-n", bridge, "link", "set", node, "master", "br0", "up"},
			[]string{"ip", "-n", ns, "addr", "add", n.ip(node) + "/24", "dev", "eth0"},
			[]string{"ip", "-n", ns, "link", "set", "eth0", "up"},
			[]string{"ip", "-n", ns, "link", "set", "lo", "up"},
		)
	}
	for _, s := range steps {
		if err := command(s[0], s[1:]...); err != nil {
			return err
		}
	}
	for _, node := range n.nodes {
		if err := n.chooseFilter(node); err != nil {
			return err
		}
	}
	for _, node := range n.nodes {
		if err := n.prepareShape(node); err != nil {
			n.noShape = err
			break
		}
	}
	return nil
}

// prepareShape gives each other node a class of its own on a node's way out, in
// which netem may delay and lose; what is in no class passes untouched.
func (n *Namespaces) prepareShape(node string) error {
	if _, err := exec.LookPath("tc"); err != nil {
		return errors.New("slow networks need the program tc (Debian: iproute2)")
	}
	lines := []string{"tc qdisc add dev eth0 root handle 1: htb default 0"}
	for _, to := range n.nodes {
		if to != node {
			lines = append(lines,
				fmt.Sprintf("tc class add dev eth0 parent 1: classid %s htb rate 10gbit quantum 60000", n.class(to)),
				fmt.Sprintf("tc filter add dev eth0 protocol ip parent 1: prio 1 u32 match ip dst %s/32 flowid %s", n.ip(to), n.class(to)),
				fmt.Sprintf("tc qdisc add dev eth0 parent %s netem delay 1ms", n.class(to)),
				fmt.Sprintf("tc qdisc del dev eth0 parent %s", n.class(to)),
			)
		}
	}
	if err := n.within(node, lines...); err != nil {
		_ = n.within(node, "tc qdisc del dev eth0 root") // as it was
		text := err.Error()
		return fmt.Errorf("slow networks in namespaces need the kernel's htb, u32 and netem (modprobe sch_netem); tc says %q", text[strings.LastIndex(text, ": ")+2:])
	}
	return nil
}

func (n *Namespaces) class(node string) string { return "1:" + strconv.Itoa(10+n.number(node)) }

func (n *Namespaces) name(node string) string { return n.prefix + "-" + node }

// number is that of a node, from 1.
func (n *Namespaces) number(node string) int {
	for i, o := range n.nodes {
		if o == node {
			return i + 1
		}
	}
	return 254
}

func (n *Namespaces) ip(node string) string { return fmt.Sprintf("10.77.0.%d", n.number(node)) }

// Name implements Network.
func (n *Namespaces) Name() string { return "namespaces" }

// Can implements Network.
func (n *Namespaces) Can(v Verb) error {
	switch v {
	case VerbShape:
		return n.noShape
	case VerbAddress:
		return errors.New("addresses of namespaces are fixed")
	}
	return nil
}

func (n *Namespaces) address(node string) string { return n.ip(node) + ":7400" }

func (n *Namespaces) flags(node string) []string {
	return []string{"--bind", n.address(node), "--insecure"}
}

func (n *Namespaces) exec(node string) []string {
	return []string{"ip", "netns", "exec", n.name(node)}
}

// Cut implements Network.
func (n *Namespaces) Cut(from, to string) error {
	return n.within(to, fmt.Sprintf(n.filter.cut, n.ip(from)))
}

// Mend implements Network.
func (n *Namespaces) Mend(from, to string) error {
	return n.within(to, fmt.Sprintf(n.filter.mend, n.ip(from)))
}

// Shape implements Network.
func (n *Namespaces) Shape(from, to string, delay, jitter time.Duration, loss float64) error {
	// Not there if nothing is delayed yet.
	_ = n.within(from, fmt.Sprintf("tc qdisc del dev eth0 parent %s", n.class(to)))
	if delay == 0 && loss == 0 {
		return nil
	}
	return n.within(from, fmt.Sprintf("tc qdisc add dev eth0 parent %s netem delay %dus %dus loss %.2f%%", n.class(to), delay.Microseconds(), jitter.Microseconds(), 100*loss))
}

// Close implements Network.
func (n *Namespaces) Close() {
	for _, node := range append([]string{"br"}, n.nodes...) {
		_ = command("ip", "netns", "del", n.name(node)) // one that was never made
	}
}
