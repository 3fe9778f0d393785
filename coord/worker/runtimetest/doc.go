// Package runtimetest holds what every worker.Runtime must do, as a suite of tests.
//
// # Overview
//
// A runtime says in a [Kit] how a worker of its kind is made that behaves in one of a few ways, and what it can't load:
//
//	func TestRuntime(t *testing.T) {
//		runtimetest.Run(t, runtimetest.Kit{Runtime: …, Program: …})
//	}
//
// # Guarantees
//
// A runtime that passes loads and unloads, runs a worker as often as it is asked to, tells it when to finish, ends it when its context ends, has what
// it writes in the log under the worker's name before Run returns, and gives its errors types.
//
// # Concurrency
//
// The tests run one after the other. Some have several workers at once.
//
// # Errors
//
// What a runtime does wrong fails the test. One that never returns fails it after [Patience].
//
// # Testing
//
// The runtimes of this project pass it.
package runtimetest
