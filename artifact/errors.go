package artifact

import "errors"

var (
	// ErrNotFound is matched by an error that says: nobody who was asked has the artifact.
	ErrNotFound = errors.New("artifact not found")
	// ErrMismatch is matched when content has another digest than the one that was asked for.
	ErrMismatch = errors.New("digest mismatch")
	// ErrTooLarge is matched when content is over its limit.
	ErrTooLarge = errors.New("artifact too large")
	// ErrRefused is matched when a source is one that must not be used: no https URL, or an address that is not of the
	// public internet.
	ErrRefused = errors.New("source refused")
)
