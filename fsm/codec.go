package fsm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// EncodeBatch returns the bytes of b, deterministic, without a check of its
// commands but for the size. It fills in the version of each proposal.
func EncodeBatch(b *Batch) ([]byte, error) {
	for _, p := range b.GetProposals() {
		for _, c := range p.GetCommands() {
			p.Version = max(p.Version, Needs(OpOf(c)))
		}
	}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(b)
	if err != nil {
		return nil, Errorf(CodeInvalidArgument, "encode batch: %v", err)
	}
	if len(data) > MaxBatchBytes {
		return nil, invalid("batch", "has %d bytes, at most %d are allowed", len(data), MaxBatchBytes)
	}
	return data, nil
}

// AppendStamp appends the stamp to serialized batches, which may have been
// concatenated: together they are one batch.
func AppendStamp(dst []byte, stamp int64) []byte {
	return binary.AppendUvarint(append(dst, stampTag), uint64(stamp))
}

const stampTag = 2<<3 | byte(protowire.VarintType)

// DecodeBatch is the reverse of EncodeBatch, and strict: unknown fields at any
// depth, commands without an op or with two, and commands that need a newer
// binary are errors, the last a *VersionError. It says nothing of limits.
func DecodeBatch(data []byte) (*Batch, error) {
	b, err := decodeBatch(data)
	if err == nil {
		return b, nil
	}
	// What this binary doesn't understand was written by a newer one, which
	// says so in the proposal.
	if _, ok := errors.AsType[*VersionError](err); !ok {
		if need := neededVersion(data); need > Version || errors.Is(err, errUnknown) {
			err = &VersionError{Need: max(need, Version+1), What: err.Error()}
		}
	}
	return nil, fmt.Errorf("decode batch: %w", err)
}

// errUnknown marks a field that this binary doesn't know.
var errUnknown = errors.New("unknown field")

// noUnknown looks for unknown fields at any depth.
func noUnknown(m protoreflect.Message) (err error) {
	if u := m.GetUnknown(); len(u) > 0 {
		n, _, _ := protowire.ConsumeTag(u)
		return fmt.Errorf("%w %d in %s", errUnknown, n, m.Descriptor().Name())
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				if err = noUnknown(v.List().Get(i).Message()); err != nil {
					return false
				}
			}
		default:
			err = noUnknown(v.Message())
		}
		return err == nil
	})
	return err
}

// neededVersion is the largest version that a proposal in data names.
func neededVersion(data []byte) (need uint32) {
	eachField(data, func(n protowire.Number, t protowire.Type, v []byte) {
		if n != 1 || t != protowire.BytesType {
			return
		}
		eachField(v, func(n protowire.Number, t protowire.Type, v []byte) {
			if n == 5 && t == protowire.VarintType {
				version, _ := protowire.ConsumeVarint(v)
				need = max(need, uint32(version))
			}
		})
	})
	return need
}

// knownTo tells whether a binary that knows the state versions up to that one
// could apply b.
func knownTo(version uint32, b *Batch) error {
	for _, p := range b.GetProposals() {
		if p.Version > version {
			return &VersionError{Need: p.Version, What: "commands of node " + p.NodeId, known: version}
		}
		for _, c := range p.GetCommands() {
			var raised uint32
			switch op := OpOf(c).(type) {
			case *SetVersion:
				raised = op.Version
			case *InitCluster:
				raised = op.Version
			}
			if raised > version {
				return &VersionError{Need: raised, What: "the cluster is raised to it", known: version}
			}
		}
	}
	return nil
}

// eachField calls f for the fields of a message as far as it can be read; v of a
// length-delimited field is its content.
func eachField(data []byte, f func(n protowire.Number, t protowire.Type, v []byte)) {
	for len(data) > 0 {
		n, t, tag := protowire.ConsumeTag(data)
		if tag < 0 {
			return
		}
		size := protowire.ConsumeFieldValue(n, t, data[tag:])
		if size < 0 {
			return
		}
		v := data[tag : tag+size]
		if t == protowire.BytesType {
			v, _ = protowire.ConsumeBytes(v)
		}
		f(n, t, v)
		data = data[tag+size:]
	}
}
