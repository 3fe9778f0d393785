//go:build !linux

package jepsen

import (
	"context"
	"runtime"
)

func (p *Processes) gauge(context.Context, string) (Gauge, bool) { return Gauge{}, false }

func machine() string { return runtime.GOOS + " " + runtime.GOARCH }
