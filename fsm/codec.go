package fsm

import "google.golang.org/protobuf/proto"

// Check says whether op may be proposed in a cluster of that state version.
func Check(op Op, version uint32) error { return nil }

// EncodeBatch returns the bytes of b.
func EncodeBatch(b *Batch) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(b)
}

// DecodeBatch is the reverse of EncodeBatch, and strict.
func DecodeBatch(data []byte) (*Batch, error) {
	b := &Batch{}
	return b, proto.Unmarshal(data, b)
}

// AppendStamp appends the stamp to serialized batches.
func AppendStamp(dst []byte, stamp int64) []byte { return dst }
