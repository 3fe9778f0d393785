package transport

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/miwnode/miwnode/transport/transportpb"
)

// The greeting, after TLS if there is any:
//
//	dialler  → "MIW1" kind  | u16 length | Hello
//	listener → "MIW1" 'W'   | u16 length | Welcome
//	dialler  →                u16 length | Verdict (length 0: all is well)
//
// then the stream belongs to its kind. The five bytes and the length never change, so that any two versions can tell each other why they
// part. TLS records begin with 0x16: one look at the first byte tells a stranger of the other sort.
const (
	magic       = "MIW"
	version     = '1'
	kindWelcome = 'W'
	prefaceSize = 5
	maxHello    = 4 << 10
	tlsRecord   = 0x16 // a handshake record
)

// checkNodeID refuses what can't be a node ID.
func checkNodeID(id string) error {
	switch {
	case id == "":
		return errors.New("node ID is empty")
	case len(id) > 128:
		return fmt.Errorf("node ID has %d bytes, at most 128 are allowed", len(id))
	case !utf8.ValidString(id):
		return fmt.Errorf("node ID %q is not UTF-8", id)
	}
	for _, r := range id {
		if unicode.IsControl(r) || unicode.IsSpace(r) {
			return fmt.Errorf("node ID %q has white space or control characters", id)
		}
	}
	return nil
}

func appendPreface(b []byte, kind byte) []byte {
	b = append(b, magic...)
	return append(b, version, kind)
}

// appendMessage appends a length and a message; nil is the empty one.
func appendMessage(b []byte, m proto.Message) ([]byte, error) {
	at := len(b)
	b = append(b, 0, 0)
	if m != nil {
		var err error
		if b, err = (proto.MarshalOptions{}).MarshalAppend(b, m); err != nil {
			return nil, fmt.Errorf("encode greeting: %w", err)
		}
	}
	n := len(b) - at - 2
	if n > maxHello {
		return nil, fmt.Errorf("encode greeting: %d bytes, at most %d are allowed", n, maxHello)
	}
	binary.BigEndian.PutUint16(b[at:], uint16(n))
	return b, nil
}

// readMessage reads exactly one message and nothing beyond.
func readMessage(r io.Reader, m proto.Message) error {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := int(binary.BigEndian.Uint16(head[:]))
	if n > maxHello {
		return fmt.Errorf("greeting of %d bytes, at most %d are allowed", n, maxHello)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	if err := proto.Unmarshal(b, m); err != nil {
		return fmt.Errorf("decode greeting: %w", err)
	}
	return nil
}

// greeter is what one end says of itself in a greeting.
type greeter struct {
	id     Identity
	checks [][]byte
}

func (g greeter) hello() *transportpb.Hello {
	h := helloOf(g.id)
	h.GossipChecks = g.checks
	return h
}

func helloOf(id Identity) *transportpb.Hello {
	return &transportpb.Hello{ClusterId: id.ClusterID, NodeId: id.NodeID, Boot: id.Boot, Nonce: id.Nonce, Addr: id.Addr}
}

func greeterOf(h *transportpb.Hello) greeter {
	return greeter{id: identityOf(h), checks: h.GetGossipChecks()}
}

func identityOf(h *transportpb.Hello) Identity {
	return Identity{ClusterID: h.GetClusterId(), NodeID: h.GetNodeId(), Boot: h.GetBoot(), Nonce: h.GetNonce(), Addr: h.GetAddr()}
}

// known is the other life that a refusal tells of, nil for none.
func known(refused *RefusedError) *transportpb.Hello {
	if refused.Known.NodeID == "" {
		return nil
	}
	return helloOf(refused.Known)
}

// gossipCheck is a value that tells two gossip keys apart and nothing of the key itself.
func gossipCheck(key []byte) []byte {
	if len(key) == 0 {
		return nil
	}
	h := hmac.New(sha256.New, key)
	h.Write([]byte("miwnode gossip key check 1"))
	return h.Sum(nil)[:8]
}

// sameGossip tells whether two ends have a gossip key in common, or none both.
func sameGossip(a, b [][]byte) bool {
	if len(a) == 0 || len(b) == 0 {
		return len(a) == len(b)
	}
	for _, x := range a {
		for _, y := range b {
			if hmac.Equal(x, y) {
				return true
			}
		}
	}
	return false
}

// compare decides what one end can tell of the other from the two greetings alone.
func compare(self, peer greeter) *RefusedError {
	no := func(r Refusal, format string, args ...any) *RefusedError {
		return &RefusedError{Refusal: r, Reason: fmt.Sprintf(format, args...), Peer: peer.id}
	}
	if err := checkNodeID(peer.id.NodeID); err != nil {
		return no(RefusedBadGreeting, "%v", err)
	}
	if a, b := self.id.ClusterID, peer.id.ClusterID; a != "" && b != "" && a != b {
		return no(RefusedOtherCluster, "%s belongs to cluster %s, %s to cluster %s", self.id.NodeID, a, peer.id.NodeID, b)
	}
	if !sameGossip(self.checks, peer.checks) {
		if len(self.checks) == 0 || len(peer.checks) == 0 {
			return no(RefusedGossipKey, "one of %s and %s has a gossip key, the other has none", self.id.NodeID, peer.id.NodeID)
		}
		return no(RefusedGossipKey, "%s and %s have different gossip keys", self.id.NodeID, peer.id.NodeID)
	}
	if peer.id.NodeID == self.id.NodeID && peer.id.Nonce != self.id.Nonce {
		why := "one of the data folders is a copy"
		if self.id.ClusterID != peer.id.ClusterID {
			why = "the one that belongs to no cluster yet needs another node ID"
		}
		twin := no(RefusedTwin, "node ID %s is used by two processes: boot %d at %s and boot %d at %s: %s",
			self.id.NodeID, self.id.Boot, self.id.Addr, peer.id.Boot, peer.id.Addr, why)
		twin.Known = self.id
		return twin
	}
	return nil
}
