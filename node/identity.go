package node

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

// identity is who this node is: kept in the data folder but for the nonce and
// the instance ID, which are this process's.
type identity struct {
	folder     *folder
	id         string // node ID
	nonce      string // of this start
	instanceID string // host:pid:uuid
	kernelBoot string // "" if the system has none
	previous   identityRecord
	fresh      bool   // first start of the folder
	moved      string // what says that the folder is elsewhere than at its last start; "" = nothing

	mu     sync.Mutex
	record identityRecord
}

// identityRecord is the file node.json.
type identityRecord struct {
	Format     int    `json:"format"`
	NodeID     string `json:"node_id"`
	Boot       uint64 `json:"boot"`
	ClusterID  string `json:"cluster_id,omitempty"`
	Promised   bool   `json:"promised,omitempty"` // there is a promise.json, or was
	KernelBoot string `json:"kernel_boot,omitempty"`
	lockMark
}

// openIdentity reads or makes the identity in the folder and raises the boot
// number, on disk before it is used. A folder that is not where it was last
// started is taken only if moved says so.
func openIdentity(f *folder, wantID, kernelBoot string, moved bool) (*identity, error) {
	var rec identityRecord
	found, err := f.read(identityFile, &rec)
	if err != nil {
		return nil, err
	}
	if found && rec.NodeID == "" {
		return nil, &folderError{dir: f.dir, kind: ErrFolderDamaged, text: identityFile + " names no node"}
	}
	if !found {
		// A log without an identity is half a folder: guessing an ID could put a
		// vote of one node under the name of another.
		if _, err := os.Stat(f.path(raftFile)); err == nil {
			return nil, &folderError{
				dir: f.dir, kind: ErrFolderDamaged,
				text: fmt.Sprintf("%s is missing but %s is there; restore it, or start with an empty folder as a new node", identityFile, raftFile),
			}
		}
		rec = identityRecord{NodeID: wantID}
		if rec.NodeID == "" {
			rec.NodeID = newNodeID()
		} else {
			// A given ID may have lived before in a folder that is gone. Peers refuse
			// a boot that is not above those they have seen, so start where a
			// counter that began at one can't be.
			rec.Boot = uint64(max(0, time.Now().UnixMilli()-1))
		}
	}
	if wantID != "" && wantID != rec.NodeID {
		return nil, &folderError{
			dir: f.dir, kind: ErrOtherID,
			text: fmt.Sprintf("belongs to node %s, not to %s; drop the ID, or give this node a folder of its own", rec.NodeID, wantID),
		}
	}
	if kernelBoot == "" {
		kernelBoot = readKernelBoot()
	}
	id := &identity{
		folder: f, id: rec.NodeID, nonce: randomHex(16), kernelBoot: kernelBoot,
		instanceID: newInstanceID(), previous: rec, fresh: !found,
	}
	rec.Format = folderFormat
	rec.Boot++
	rec.KernelBoot = kernelBoot
	if rec.lockMark, err = f.mark(); err != nil {
		rec.lockMark = lockMark{} // a system that can't tell
	}
	if id.moved = elsewhere(id.previous, rec); id.moved != "" && !moved {
		return nil, copied(f, rec.NodeID, id.moved)
	}
	id.record = rec
	if err := f.write(identityFile, rec); err != nil {
		return nil, &folderError{dir: f.dir, kind: err, text: err.Error()}
	}
	return id, nil
}

func (id *identity) boot() uint64 {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.record.Boot
}

func (id *identity) clusterID() string {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.record.ClusterID
}

// adopt binds the folder to a cluster, for ever.
func (id *identity) adopt(clusterID string) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	rec := id.record
	if rec.ClusterID != "" && rec.ClusterID != clusterID {
		return &folderError{
			dir: id.folder.dir, kind: ErrOtherCluster,
			text: fmt.Sprintf("belongs to cluster %s, not to %s", rec.ClusterID, clusterID),
		}
	}
	if rec.ClusterID == clusterID {
		return nil
	}
	rec.ClusterID = clusterID
	if err := id.folder.write(identityFile, rec); err != nil {
		return err
	}
	id.record = rec
	return nil
}

// promised tells whether a promise binds the node. Once it belongs to a cluster
// it promises itself to no other.
func (id *identity) promised() bool {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.record.Promised && id.record.ClusterID == ""
}

// notePromise remembers that there is a promise.
func (id *identity) notePromise() error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.record.Promised {
		return nil
	}
	rec := id.record
	rec.Promised = true
	if err := id.folder.write(identityFile, rec); err != nil {
		return err
	}
	id.record = rec
	return nil
}

// sameHost tells whether the former boot ran under this very kernel on this
// very folder; why says what is missing.
func (id *identity) sameHost() (ok bool, why string) {
	id.mu.Lock()
	now := id.record
	id.mu.Unlock()
	switch before := id.previous; {
	case id.fresh:
		return false, "first start of this folder"
	case before.KernelBoot == "" || now.KernelBoot == "":
		return false, "no kernel boot ID"
	case before.KernelBoot != now.KernelBoot:
		return false, "the machine was started anew"
	case before.Inode == 0 || now.Inode == 0:
		return false, "the file system gives its files no inodes"
	case id.moved != "":
		return false, "the folder was moved or restored"
	}
	return true, ""
}

func readKernelBoot() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func newNodeID() string { return "node-" + randomHex(6) }

func newInstanceID() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "localhost"
	}
	return fmt.Sprintf("%s:%d:%s", host, os.Getpid(), uuid.NewString())
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails since Go 1.24
	return hex.EncodeToString(b)
}
