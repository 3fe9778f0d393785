package worker_test

import (
	"context"
	"fmt"

	"github.com/miwnode/miwnode/coord/coordtest"
	"github.com/miwnode/miwnode/coord/worker"
	"github.com/miwnode/miwnode/fsm"
)

// A Catalog runs workers: here functions of the program, by their names. The
// node is a real one in production (node.New), and a double here.
func ExampleNewCatalog() {
	world := coordtest.New(coordtest.Timing{})
	defer world.Close()
	n := world.Join("a")

	sent := make(chan string, 1)
	catalog, err := worker.NewCatalog(n, func(c *worker.Config) {
		c.Runtimes = []worker.Runtime{worker.Funcs(map[string]func(context.Context, worker.Run) error{
			"greet": func(ctx context.Context, run worker.Run) error {
				sent <- fmt.Sprintf("%s greets with %s", run.Name, run.Config)
				<-run.Draining() // asked to finish what it has begun
				return nil
			},
		})}
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error)
	go func() { ended <- catalog.Run(ctx) }()

	w, err := catalog.Create(ctx, worker.Spec{Name: "anna", Runtime: worker.RuntimeFunc, Source: "greet", Config: []byte(`{"word":"hello"}`), Start: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(w.State, "etag", w.Etag)
	fmt.Println(<-sent)
	stop() // as SIGTERM would
	fmt.Println("ended:", <-ended)
	// Output:
	// loading etag 1
	// anna greets with {"word":"hello"}
	// ended: <nil>
}

// A Client changes and reads the catalog through a node that runs no workers
// itself. What was read is changed only if nobody else has changed it since.
func ExampleNewClient() {
	world := coordtest.New(coordtest.Timing{})
	defer world.Close()
	client := worker.NewClient(world.Join("a"))
	ctx := context.Background()

	w, err := client.Create(ctx, worker.Spec{Name: "mailer", Runtime: worker.RuntimeExec, Source: "/opt/mailer", Tags: map[string]string{"team": "mail"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	etag, err := client.Start(ctx, w.ID, worker.IfEtag(w.Etag), worker.By("anna"))
	fmt.Println("etag", etag, err)
	_, err = client.Stop(ctx, w.ID, worker.IfEtag(w.Etag))
	fmt.Println("changed meanwhile:", fsm.CodeOf(err) == fsm.CodeETagMismatch)
	for w := range client.List(worker.Filter{Tags: map[string]string{"team": "mail"}}) {
		fmt.Println(w.Name, w.State, "to start:", w.StartRequested)
	}
	// Output:
	// etag 2 <nil>
	// changed meanwhile: true
	// mailer loading to start: true
}

// A reload brings new code. The worker goes on with the old one until the new
// is loaded where it runs.
func ExampleClient_Reload() {
	world := coordtest.New(coordtest.Timing{})
	defer world.Close()

	said := make(chan string)
	serve := func(version string) func(context.Context, worker.Run) error {
		return func(ctx context.Context, run worker.Run) error {
			said <- version + " serves"
			<-run.Draining()
			said <- version + " finishes"
			return nil
		}
	}
	catalog, err := worker.NewCatalog(world.Join("a"), func(c *worker.Config) {
		c.Runtimes = []worker.Runtime{worker.Funcs(map[string]func(context.Context, worker.Run) error{"v1": serve("v1"), "v2": serve("v2")})}
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error)
	go func() { ended <- catalog.Run(ctx) }()

	w, err := catalog.Create(ctx, worker.Spec{Name: "web", Runtime: worker.RuntimeFunc, Source: "v1", Start: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(<-said)
	if _, err := catalog.Reload(ctx, w.ID, worker.Source{Text: "v2"}); err != nil {
		fmt.Println(err)
	}
	fmt.Println(<-said)
	fmt.Println(<-said)
	stop()
	fmt.Println(<-said)
	<-ended
	// Output:
	// v1 serves
	// v1 finishes
	// v2 serves
	// v2 finishes
}
