// Package execrt runs workers that are commands: the runtime "exec" of a worker.Catalog.
//
// # Overview
//
// The code of such a worker is a program of this machine, or a script that begins with #! and its interpreter:
//
//	r, err := execrt.New(execrt.Config{Spawner: n, Dir: "data/run", Addr: socket})
//	catalog, err := worker.NewCatalog(n, func(c *worker.Config) { c.Runtimes = []worker.Runtime{r}; … })
//
// Loading looks whether this machine can run the code, and makes an executable copy of it. A run is a process with the worker's
// arguments, in an empty folder of the worker's own, which goes when it is unloaded. Its environment has some variables of this
// process (Config.Env), the worker's own, and
//
//	MIW_WORKER_ID   the worker's ID
//	MIW_KEY         the key of the lease that it runs under
//	MIW_TOKEN       the token of that grant, for whoever refuses writes of former holders
//	MIW_CONFIG      the worker's configuration, if it has any
//	MIW_ADDR        where this node's API answers
//
// What it writes to stdout and stderr goes to the log line by line. Exit code 0 says that the worker has done what it had to, anything
// else is a failure.
//
// # Guarantees
//
//   - A run is a process group of its own under the guard of the node: it and everything it started is gone before its lease can pass on,
//     and when this process dies. See package guard.
//   - When the worker is to stop it gets TERM, and may finish. When its time is over all of it is told to end, and killed if it does
//     not. Run returns when nothing of it is left.
//   - What runs is what was verified: the copy is made of bytes that are compared with their digest while they are read.
//
// # Concurrency
//
// A Runtime may be used from any goroutine. Workers of the same code share one executable copy.
//
// # Errors
//
// Load says worker.TypeNotExecutable for what this machine can't run; another may. Run says worker.TypeExited with the exit code or the signal.
//
// # Testing
//
// The tests run real processes under a guard of the test binary.
package execrt
