// Package fsm is the replicated state of miwnode.
package fsm
