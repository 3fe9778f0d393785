package artifact

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// Scheme is what a source begins with that names an artifact by its digest.
const Scheme = "sha256:"

// Digest is the SHA-256 of an artifact's content.
type Digest [sha256.Size]byte

// ParseDigest reads 64 hexadecimal digits, with or without Scheme before them.
func ParseDigest(s string) (d Digest, err error) {
	digits := strings.TrimPrefix(s, Scheme)
	if len(digits) != hex.EncodedLen(len(d)) {
		return Digest{}, fmt.Errorf("digest %.80q has %d digits: want the %d of a SHA-256", s, len(digits), hex.EncodedLen(len(d)))
	}
	if _, err := hex.Decode(d[:], []byte(digits)); err != nil {
		return Digest{}, fmt.Errorf("digest %q: want hexadecimal digits", s)
	}
	return d, nil
}

// String returns the digest as 64 hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }
