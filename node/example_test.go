package node_test

import (
	"context"
	"fmt"
	"os"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/transport/memnet"
)

// A service embeds one node per instance. Here three of them share a process
// and a network in memory; a real one leaves Network out.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	network := memnet.New(1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	var nodes []*node.Node
	ended := make(chan error)
	for _, name := range []string{"a", "b", "c"} {
		host := network.Host(name)
		n, err := node.New(node.Config{
			DataDir:         dir + "/" + name,
			ID:              name,
			Bind:            host.IP() + ":7400",
			Join:            []string{"a:7400", "b:7400", "c:7400"},
			BootstrapExpect: 3,
			Insecure:        true, // the network ends at this process
			Network:         host,
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		nodes = append(nodes, n)
		go func() { ended <- n.Run(ctx) }()
	}

	// Everything hangs on the node's session, which one keep-alive renews.
	session, err := nodes[0].Session(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := nodes[0].Submit(ctx, &fsm.Acquire{Key: "mailer", SessionId: session, Holder: "example"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("granted:", fsm.ResultErr(result) == nil)

	// Every node answers from its own copy; linearizable if asked.
	view, _, err := nodes[1].Read(ctx, node.Linearizable)
	if err != nil {
		fmt.Println(err)
		return
	}
	lease, _ := view.Lease("mailer")
	fmt.Println("b knows:", lease.Who.NodeID == "a", lease.Token == result.Token)

	// Cancel is a graceful leave.
	cancel()
	for range nodes {
		fmt.Println("ended:", <-ended)
	}
	network.Close()

	// Output:
	// granted: true
	// b knows: true true
	// ended: <nil>
	// ended: <nil>
	// ended: <nil>
}
