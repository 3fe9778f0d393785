package node

import (
	"fmt"
	"log/slog"
	"time"
)

// lockMark tells one lock file from another: a copied folder has another file,
// whatever is in it. Zero fields are not known.
type lockMark struct {
	Device uint64 `json:"lock_device,omitempty"`
	Inode  uint64 `json:"lock_inode,omitempty"`
	// Born is when the file was made. Nobody can set it, and new file systems
	// give the same few inodes to the same few files.
	Born time.Time `json:"lock_born,omitzero"`
}

func (m lockMark) String() string {
	s := fmt.Sprintf("inode %d on device %d", m.Inode, m.Device)
	if !m.Born.IsZero() {
		s += ", made " + m.Born.Format(time.RFC3339Nano)
	}
	return s
}

// elsewhere tells why the folder whose last start wrote before is another one
// than that of this start, "" if nothing says so. Moved and copied look alike,
// and of two copies each can vote: a node that is started on both is one voter
// twice.
//
// Inodes and dates of birth outlive reboots and mounts. Device numbers don't,
// so one that differs says something only under the kernel that gave out both.
// Without a boot ID nothing tells a reboot from another device.
func elsewhere(before, now identityRecord) string {
	switch {
	case before.Inode == 0 || now.Inode == 0:
		return ""
	case before.Inode != now.Inode:
	case !before.Born.IsZero() && !now.Born.IsZero() && !before.Born.Equal(now.Born):
	case before.Device != now.Device && before.KernelBoot != "" && before.KernelBoot == now.KernelBoot:
	default:
		return ""
	}
	return fmt.Sprintf("its lock file was %s, and is %s", before.lockMark, now.lockMark)
}

// copied is the refusal to start on a folder that is elsewhere.
func copied(f *folder, nodeID, why string) error {
	return &folderError{dir: f.dir, kind: ErrFolderCopied, text: fmt.Sprintf(
		"it is not the folder on which node %s was last started but a copy, or it was moved, restored or mounted anew: %s. "+
			"A copy that runs beside the original is one voter twice: two leaders are possible then, and two owners of a key. "+
			"If this is all that is left of the original, as it was when the node last stopped, start it once with --moved (node.Config.Moved). "+
			"Otherwise remove it: an empty folder joins as a new node",
		nodeID, why)}
}

// sayMoved logs what came of Config.Moved.
func (id *identity) sayMoved(log *slog.Logger, moved bool) {
	switch {
	case id.moved != "":
		log.Warn("the data folder is taken for the original because --moved (node.Config.Moved) says so: start no other copy of it", "why", id.moved)
	case moved:
		log.Warn("the data folder was not moved: leave --moved (node.Config.Moved) out, it lets a copy start")
	}
}
