//go:build !linux

package jepsen

import (
	"errors"
	"net/netip"
)

const markVariable = "MIW_TORTURE"

func tracesAvailable() error {
	return errors.New("who has opened a connection is known on Linux only")
}

func marked(string) map[int]string { return nil }

func variableOf(int, string) string { return "" }

func parentOf(int) int { return 0 }

func commandLine(int) string { return "" }

func socketOwner(string, netip.AddrPort, netip.AddrPort) string { return "" }
