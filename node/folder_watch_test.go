package node_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miwnode/miwnode/node"
	"github.com/miwnode/miwnode/node/nodetest"
)

// A data folder that goes away under a running node ends it, and Run says so:
// open files go on taking what would not be there at the next start.
func TestFolder_GoneUnderRunningNode(t *testing.T) {
	for name, tc := range map[string]struct {
		harm func(t *testing.T, dir string)
		want string
	}{
		"removed": {func(t *testing.T, dir string) { must(t, os.RemoveAll(dir)) }, "was removed, or moved away, under the running node"},
		"moved":   {func(t *testing.T, dir string) { must(t, os.Rename(dir, dir+".aside")) }, "was removed, or moved away, under the running node"},
		"replaced": {func(t *testing.T, dir string) {
			must(t, os.Rename(dir, dir+".aside"))
			must(t, os.MkdirAll(dir, 0o700))
			must(t, os.WriteFile(dir+"/lock", nil, 0o600))
		}, "was replaced by another under the running node"},
		"unwritable": {func(t *testing.T, dir string) {
			if os.Geteuid() == 0 {
				t.Skip("root may write anywhere")
			}
			must(t, os.Chmod(dir, 0o500))
			t.Cleanup(func() { _ = os.Chmod(dir, 0o700) })
		}, "can't be written to"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := nodetest.New(t, nodetest.Config{Nodes: 1, Seed: 50})
				c.WaitReady()
				time.Sleep(10 * time.Second)
				if !c.Running(0) {
					t.Fatalf("ended by itself: %v", c.Err(0))
				}
				dir := c.Dir(0)
				tc.harm(t, dir)
				select {
				case <-c.Done(0):
				case <-time.After(30 * time.Second):
					t.Fatal("the node goes on")
				}
				err := c.Err(0)
				if !errors.Is(err, node.ErrStorage) || !strings.Contains(err.Error(), dir+" "+tc.want) {
					t.Errorf("Run returned %v\nwant ErrStorage and that %s %s", err, dir, tc.want)
				}
			})
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
