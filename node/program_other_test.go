//go:build !linux

package node_test

// roles does nothing where there are no guards.
func roles([]string) {}
