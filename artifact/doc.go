// Package artifact keeps the code of workers under the digest of its content, and gets it from the web.
//
// # Overview
//
// A [Store] is a folder of files, each named by its SHA-256. [Store.Put] takes what is uploaded, [Store.Import] a file of
// this machine, [Store.Fill] what is received in parts from elsewhere:
//
//	store, err := artifact.Open("data/artifacts")
//	digest, size, err := store.Import("./script.sh")
//	f, err := store.Open(digest)
//
// A [Web] fetches https URLs into a Store.
//
// # Guarantees
//
//   - A file is in the Store under a digest only once all of it has that digest and is on disk. What Open returns has been
//     compared with its digest just before; a file that was damaged since is removed, so that it can be fetched again.
//   - Sizes are bounded while bytes arrive: [MaxUpload] for uploads, [MaxSize] for everything else.
//   - A Web calls https only, and only addresses of the public internet unless it is told otherwise. What is looked at is the
//     address that is dialled, after the name was resolved, for redirects too. It takes no proxy from the environment, sends no
//     credentials and ends a transfer that stalls.
//   - Folders have mode 0700, files 0600.
//
// A Store grows by every new artifact; Sweep removes those that its caller has no use for.
//
// # Concurrency
//
// All methods may be called from any goroutine. Several callers that fetch one artifact at once share one transfer. A folder
// belongs to one process; that of a node does, by the lock of the node's data folder.
//
// # Errors
//
// [ErrNotFound], [ErrMismatch], [ErrTooLarge] and [ErrRefused] are final: the same call fails again until something else
// changes. Other errors are those of the disk, the network or the context, and another try may help.
package artifact
