package jepsen

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// Namespaces are network namespaces of our own, one for each node and one with
// the bridge between them. Nothing of the machine's own network is touched.
type Namespaces struct {
	prefix string
	nodes  []string
}

// NamespacesAvailable returns nil, or why there can be none here.
func NamespacesAvailable() error {
	if runtime.GOOS != "linux" {
		return errors.New("network namespaces need Linux")
	}
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root")
	}
	for _, tool := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("network namespaces need the program %s (Debian: iproute2, nftables)", tool)
		}
	}
	ns := fmt.Sprintf("miw%d-probe", os.Getpid())
	if err := command("ip", "netns", "add", ns); err != nil {
		return err
	}
	defer func() { _ = command("ip", "netns", "del", ns) }()
	return command("ip", "netns", "exec", ns, "nft", "add", "table", "inet", "miw")
}

func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
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
			[]string{"ip", "-n", ns, "addr", "add", n.IP(node) + "/24", "dev", "eth0"},
			[]string{"ip", "-n", ns, "link", "set", "eth0", "up"},
			[]string{"ip", "-n", ns, "link", "set", "lo", "up"},
			[]string{"ip", "netns", "exec", ns, "nft", "add table inet miw; add set inet miw cut { type ipv4_addr; }; add chain inet miw in { type filter hook input priority 0; }; add rule inet miw in ip saddr @cut drop"},
		)
	}
	for _, s := range steps {
		if err := command(s[0], s[1:]...); err != nil {
			return err
		}
	}
	return nil
}

func (n *Namespaces) name(node string) string { return n.prefix + "-" + node }

// IP is the address of a node.
func (n *Namespaces) IP(node string) string {
	for i, o := range n.nodes {
		if o == node {
			return fmt.Sprintf("10.77.0.%d", i+1)
		}
	}
	return "10.77.0.254"
}

// exec is what to put before a command that shall run in a node's namespace.
func (n *Namespaces) exec(node string) []string {
	return []string{"ip", "netns", "exec", n.name(node)}
}

// Cut drops, without a word, everything from one node to another.
func (n *Namespaces) Cut(from, to string) error {
	return command("ip", "netns", "exec", n.name(to), "nft", "add element inet miw cut { "+n.IP(from)+" }")
}

// Mend ends Cut.
func (n *Namespaces) Mend(from, to string) error {
	return command("ip", "netns", "exec", n.name(to), "nft", "delete element inet miw cut { "+n.IP(from)+" }")
}

// Close removes them.
func (n *Namespaces) Close() {
	for _, node := range append([]string{"br"}, n.nodes...) {
		_ = command("ip", "netns", "del", n.name(node)) // one that was never made
	}
}
