// Package jepsen checks that the promises of the cluster hold while its
// network, processes and clocks are tormented.
//
// # Overview
//
// A run has four parts. A [Cluster] is tormented by faults from a seeded
// [Schedule]; seeded clients work on it and write everything they see to one
// [Recorder]; afterwards [Check] judges the [History]; and a [Report] keeps the
// evidence. Two clusters satisfy the interface: one whose nodes live in a
// testing/synctest bubble on an in-memory network (sim_test.go), and one of real
// processes (proc_test.go). Both write the same history and meet the same judge.
//
// # Guarantees
//
// All times of a history come from one monotonic observer, never from a node. An
// operation whose outcome is unknown has no end, and its client goes on as a new
// stream. A run of work ends, for the judge, when its process could last have
// done anything. So a verdict of "failed" is a violation that happened, not one
// that clocks or lost answers could explain.
//
// # Concurrency
//
// A Recorder is safe for concurrent use; a [Stream] belongs to one goroutine. A
// History and everything that judges it are plain values.
//
// # Errors
//
// Check never fails: what is wrong with a history (overlapping calls of one
// stream, two starts of one run) is a failed verdict named "history".
//
// # Testing
//
// The judge is itself judged: check_test.go has small histories, good and bad,
// written by hand; defects_test.go switches bugs on in the product and demands
// that each is caught under its name.
package jepsen
