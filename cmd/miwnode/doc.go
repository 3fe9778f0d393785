// Command miwnode runs a node beside programs in any language, runs commands
// while holding a lease, and operates a cluster from the command line.
//
// # Overview
//
// Each sub-command has a file of its own; app.go holds the tree of them and the
// flags they share. start (settings.go, startconfig.go, start.go) is a node, its
// API, its singletons (singleton.go) and its groups of commands (groupfile.go,
// group.go), whose commands the node's guard runs; exec (exec.go,
// execsession.go) is a client of the API with a guard of its own; demo is three
// nodes in this process. All others are calls of the API: they find the node by
// the unix socket in its data folder, or by --addr.
//
// # Guarantees
//
// What a command of exec, --singleton or --group started never outlives its lease: the
// guard process stops it by instants that were counted from the sending of the
// last confirmed keep-alive. Every call ends by --timeout, and says so within
// two seconds of it when there is no quorum. A fault of the user is one line on
// standard error: what, why and what to do.
//
// # Concurrency
//
// One command line, one process: run returns its exit code.
//
// # Errors
//
// Exit codes: 0 done, 1 failed, 2 usage, 69 no node or no quorum, 75 the lease
// was lost; exec gives back its command's, 124 when its wait is over, 126 and 127
// when the command can't be run or found, 128+n when signal n ended it.
//
// # Testing
//
// The test binary runs itself as miwnode: what is tested is what users run.
package main
