// Package wasmrt runs workers that are WebAssembly modules: the runtime "wasm" of a worker.Catalog.
//
// # Overview
//
// The code of such a worker is a command of WASI preview 1, as compilers make for the target wasm32-wasip1 (or wasm32-wasi): a module that exports
// its memory and _start. It runs on every kind of machine, inside this process, and reaches nothing of it: no files, no network, no processes.
//
//	r, err := wasmrt.New(wasmrt.Config{})
//	defer r.Close()
//	catalog, err := worker.NewCatalog(n, func(c *worker.Config) { c.Runtimes = []worker.Runtime{r}; … })
//
// Loading compiles the module. A run is an instance of it, which has the worker's name and arguments, clocks, random bytes, and in its environment the
// worker's own variables and
//
//	MIW_WORKER_ID   the worker's ID
//	MIW_KEY         the key of the lease that it runs under
//	MIW_TOKEN       the token of that grant, for whoever refuses writes of former holders
//	MIW_CONFIG      the worker's configuration, if it has any
//
// What it writes to stdout and stderr goes to the log line by line. Exit code 0 says that the worker has done what it had to, anything
// else, and a trap, is a failure.
//
// A module learns in three ways that it should finish: two functions that it may import, and the end of its stdin, which has nothing in it until then.
//
//	(import "miwnode" "draining" (func (result i32)))            1 once the worker should finish, else 0
//	(import "miwnode" "wait" (func (param i32) (result i32)))    the same, after that many milliseconds or as soon as it should finish;
//	                                                             negative waits for that alone
//
// In C:
//
//	__attribute__((import_module("miwnode"), import_name("wait"))) int miw_wait(int ms);
//	while (!miw_wait(1000)) work();
//
// # Guarantees
//
//   - The end of the context ends a run, whatever the module does: it is looked for in every loop and call of its code, and ends what waits.
//   - A module's memory is bounded ([Config.MemoryLimit]). A module that is refused more and then fails says that this was why. Its tables are
//     bounded likewise, beside it: table.grow fails beyond that, whatever largest size the module gives them.
//   - Nothing that a module does harms this process or another worker. It may use up a processor.
//
// # Concurrency
//
// A Runtime may be used from any goroutine. Workers of the same code share what was compiled.
//
// # Errors
//
// Load says worker.TypeInvalidModule for what is no such module, worker.TypeTooLarge and worker.TypeMemoryLimit for what is over a limit. Run says
// worker.TypeExited, worker.TypeTrapped or worker.TypeMemoryLimit.
//
// # Testing
//
// The modules of the tests are made from testdata/behave.c, and by the tests.
package wasmrt
