//go:build !linux

package jepsen

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Disks are what the nodes of a cluster keep their data on.
type Disks struct{}

// NewDisks makes the data folders of the nodes in a cluster's folder.
func NewDisks(dir string, nodes []string) (*Disks, error) {
	for _, n := range nodes {
		if err := os.MkdirAll(filepath.Join(dir, n), 0o700); err != nil {
			return nil, fmt.Errorf("data folder: %w", err)
		}
	}
	return &Disks{}, nil
}

var errNoDisks = errors.New("a disk can be filled on Linux only")

// Kind says what they are.
func (d *Disks) Kind() string { return "the folder for temporary files" }

// Fill is not available here.
func (d *Disks) Fill(string) error { return errNoDisks }

// Free is not available here.
func (d *Disks) Free(string) error { return errNoDisks }

func (d *Disks) forbid(string) error { return nil }

// Close has nothing to do.
func (d *Disks) Close() {}

func unmount(string) {}
