package api_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"

	"github.com/miwnode/miwnode/api"
	"github.com/miwnode/miwnode/node"
)

// A service that embeds a node serves the API beside its own calls.
func ExampleHandler() {
	dir, err := os.MkdirTemp("", "miw")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	n, err := node.New(node.Config{DataDir: dir, Bind: "127.0.0.1:0"})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	<-n.Ready()

	mux := http.NewServeMux()
	mux.Handle("/miw/", http.StripPrefix("/miw", api.Handler(n)))
	service := httptest.NewServer(mux)
	defer service.Close()

	client, err := api.NewClient(api.ClientConfig{Addr: service.URL + "/miw"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	var status api.Status
	if _, err := client.Do(ctx, api.Request{Method: "GET", Path: "/v1/status"}, &status); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(status.Role, status.Ready, status.Quorum.OK)
	cancel()
	fmt.Println(<-ended)
	// Output:
	// leader true true
	// <nil>
}
