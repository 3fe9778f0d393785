package node

import (
	"errors"
	"fmt"
)

// Faults of a data folder, returned by New.
var (
	// ErrFolderInUse: another process (or another Node of this one) holds the folder.
	ErrFolderInUse = errors.New("data folder in use")
	// ErrFolderDamaged: a file of the folder can't be read or is cut short.
	ErrFolderDamaged = errors.New("data folder damaged")
	// ErrFolderNewer: a newer version wrote the folder.
	ErrFolderNewer = errors.New("data folder is of a newer version")
	// ErrOtherCluster: the folder belongs to another cluster than its peers or its state.
	ErrOtherCluster = errors.New("data folder belongs to another cluster")
	// ErrFolderCopied: it is not the folder on which its node was last started.
	// See Config.Moved.
	ErrFolderCopied = errors.New("data folder is a copy, or was moved")
	// ErrOtherID: the folder has a node ID and it is not the one asked for.
	ErrOtherID = errors.New("data folder has another node ID")
)

// ErrStorage is in the error of Run when the log, the term or the vote could
// not be written, or the data folder is gone or takes no file any more: the node
// stopped serving before it could break a promise.
var ErrStorage = errors.New("storage failed")

// ErrAlreadyRun is returned by a second Run of one Node.
var ErrAlreadyRun = errors.New("node: Run may be called once")

// errLeadershipLost is the cause that ends a term's context.
var errLeadershipLost = errors.New("leadership lost")

// folderError names the folder beside the fault.
type folderError struct {
	dir  string
	kind error
	text string
}

func (e *folderError) Error() string { return fmt.Sprintf("data folder %s: %s", e.dir, e.text) }
func (e *folderError) Unwrap() error { return e.kind }
