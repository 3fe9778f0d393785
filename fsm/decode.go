package fsm

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/miwnode/miwnode/fsm/fsmpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// The envelope and the commands of the hot path are read by hand, several times
// faster than by reflection: strings are cut from one copy of the entry, and a
// command costs one allocation. Everything else goes through proto.Unmarshal. A
// fuzzer holds the two together.

// reader walks the fields of one message in data[i:end]. text is string(data).
type reader struct {
	data   []byte
	text   string
	i, end int
	err    error
}

// next returns the next field; 0 at the end or at an error.
func (r *reader) next() (n protowire.Number, t protowire.Type) {
	if r.i == r.end || r.err != nil {
		return 0, 0
	}
	tag := r.uvarint()
	n, t = protowire.DecodeTag(tag)
	if r.err == nil && n < protowire.MinValidNumber {
		r.err = fmt.Errorf("field number %d is not valid", n)
	}
	if r.err != nil {
		return 0, 0
	}
	return n, t
}

func (r *reader) uvarint() (v uint64) {
	for shift := 0; r.i < r.end; shift += 7 {
		b := r.data[r.i]
		r.i++
		if shift == 63 && b > 1 {
			r.err = errors.New("varint is too long")
			return 0
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v
		}
	}
	r.err = errors.New("truncated")
	return 0
}

// bytes returns the bounds of a length-delimited field.
func (r *reader) bytes() (from, to int) {
	n := r.uvarint()
	if r.err == nil && n > uint64(r.end-r.i) {
		r.err = errors.New("truncated")
	}
	if r.err != nil {
		return r.i, r.i
	}
	from = r.i
	r.i += int(n)
	return from, r.i
}

func (r *reader) string() string {
	from, to := r.bytes()
	s := r.text[from:to]
	if !utf8.ValidString(s) && r.err == nil {
		r.err = errors.New("string is not valid UTF-8")
	}
	return s
}

// message returns a reader of an embedded message.
func (r *reader) message() reader {
	from, to := r.bytes()
	return reader{data: r.data, text: r.text, i: from, end: to, err: r.err}
}

func (r *reader) unknown(n protowire.Number, t protowire.Type, in string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w %d (wire type %d) in %s", errUnknown, n, t, in)
	}
}

func decodeBatch(data []byte) (*Batch, error) {
	r := reader{data: data, text: string(data), end: len(data)}
	b := &Batch{}
	for {
		n, t := r.next()
		switch {
		case n == 0:
			if r.err != nil {
				return nil, r.err
			}
			return b, nil
		case n == 1 && t == protowire.BytesType:
			m := r.message()
			p, err := decodeProposal(m)
			if err != nil {
				return nil, fmt.Errorf("proposal %d: %w", len(b.Proposals), err)
			}
			b.Proposals = append(b.Proposals, p)
		case n == 2 && t == protowire.VarintType:
			b.Stamp = int64(r.uvarint())
		default:
			r.unknown(n, t, "Batch")
		}
	}
}

func decodeProposal(r reader) (*Proposal, error) {
	p := &Proposal{Commands: make([]*Command, 0, countCommands(r))}
	for {
		n, t := r.next()
		switch {
		case n == 0:
			if r.err == nil && p.Version > Version {
				r.err = &VersionError{Need: p.Version, What: fmt.Sprintf("commands of node %s", p.NodeId)}
			}
			return p, r.err
		case n == 1 && t == protowire.BytesType:
			p.NodeId = r.string()
		case n == 2 && t == protowire.VarintType:
			p.Boot = r.uvarint()
		case n == 3 && t == protowire.VarintType:
			p.LowWater = r.uvarint()
		case n == 4 && t == protowire.BytesType:
			c, err := decodeCommand(r.message())
			if err != nil {
				return nil, fmt.Errorf("command %d: %w", len(p.Commands), err)
			}
			p.Commands = append(p.Commands, c)
		case n == 5 && t == protowire.VarintType:
			p.Version = uint32(r.uvarint())
		default:
			r.unknown(n, t, "Proposal")
		}
	}
}

// countCommands counts without looking closely; faults are found later.
func countCommands(r reader) (count int) {
	for {
		n, t := r.next()
		switch {
		case n == 0:
			return count
		case t == protowire.BytesType:
			r.bytes()
			if n == 4 {
				count++
			}
		case t == protowire.VarintType:
			r.uvarint()
		default:
			return count
		}
	}
}

func decodeCommand(r reader) (*Command, error) {
	// The op is made first, since it brings the memory of its command along.
	c := &Command{}
	var seq uint64
	var key string
	var hash []byte
	seen := false
	for {
		n, t := r.next()
		switch {
		case n == 0:
			if r.err == nil && !seen {
				r.err = errors.New("command without an op")
			}
			c.Seq, c.IdempotencyKey, c.IdempotencyHash = seq, key, hash
			return c, r.err
		case n == 1 && t == protowire.VarintType:
			seq = r.uvarint()
		case n == 2 && t == protowire.BytesType:
			key = r.string()
		case n == 3 && t == protowire.BytesType:
			from, to := r.bytes()
			hash = append([]byte(nil), r.data[from:to]...)
		case n >= 10 && t == protowire.BytesType:
			if seen {
				return nil, errors.New("command with two ops")
			}
			seen = true
			var err error
			if c, err = decodeOp(n, r.message()); err != nil {
				return nil, err
			}
		default:
			r.unknown(n, t, "Command")
		}
	}
}

func decodeOp(n protowire.Number, r reader) (*Command, error) {
	if r.err != nil {
		return nil, r.err
	}
	switch n {
	case 30:
		return decodeAcquire(r)
	case 31:
		return decodeCancelWait(r)
	case 32:
		return decodeRelease(r)
	}
	if f := newOp[n]; f != nil {
		return decodeCold(f(), r)
	}
	r.unknown(n, protowire.BytesType, "Command")
	return nil, r.err
}

// newOp makes the ops that are read by reflection, by their numbers in Command.
var newOp = map[protowire.Number]func() Op{
	10: func() Op { return &InitCluster{} },
	11: func() Op { return &SetVersion{} },
	12: func() Op { return &RecordLeader{} },
	13: func() Op { return &RecordMember{} },
	20: func() Op { return &OpenSession{} },
	21: func() Op { return &CloseSession{} },
	22: func() Op { return &ExpireSession{} },
	33: func() Op { return &Transfer{} },
	34: func() Op { return &Revoke{} },
	35: func() Op { return &FreeRevoked{} },
	36: func() Op { return &LiftBar{} },
	40: func() Op { return &MarkInstance{} },
	50: func() Op { return &PutCatalog{} },
	51: func() Op { return &PutGroup{} },
	52: func() Op { return &JoinGroup{} },
	53: func() Op { return &LeaveGroup{} },
	54: func() Op { return &PlanGroup{} },
	55: func() Op { return &MoveWorkload{} },
	56: func() Op { return &SetPin{} },
	57: func() Op { return &SetPause{} },
	58: func() Op { return &Prepared{} },
	59: func() Op { return &ForgetFailure{} },
	60: func() Op { return &RecordJob{} },
	61: func() Op { return &RecordOverlap{} },
	62: func() Op { return &RecordStuck{} },
	63: func() Op { return &DeleteGroup{} },
	70: func() Op { return &CreateWorker{} },
	71: func() Op { return &StartWorker{} },
	72: func() Op { return &StopWorker{} },
	73: func() Op { return &ReloadWorker{} },
	74: func() Op { return &DeleteWorker{} },
	75: func() Op { return &SetWorkerTags{} },
	76: func() Op { return &BeginLoad{} },
	77: func() Op { return &FinishLoad{} },
	78: func() Op { return &FinishRun{} },
	80: func() Op { return &RecordSleep{} },
}

func decodeCold(op Op, r reader) (*Command, error) {
	if err := proto.Unmarshal(r.data[r.i:r.end], op); err != nil {
		return nil, err
	}
	if err := noUnknown(op.ProtoReflect()); err != nil {
		return nil, err
	}
	var version uint32
	switch op := op.(type) {
	case *SetVersion:
		version = op.Version
	case *InitCluster:
		version = op.Version
	}
	if version > Version {
		return nil, &VersionError{Need: version, What: "the cluster is raised to it"}
	}
	return NewCommand(op), nil
}

func decodeAcquire(r reader) (*Command, error) {
	m := &struct {
		c  Command
		w  fsmpb.Command_Acquire
		op Acquire
	}{}
	m.w.Acquire, m.c.Op = &m.op, &m.w
	for {
		n, t := r.next()
		switch {
		case n == 0:
			return &m.c, r.err
		case n == 1 && t == protowire.BytesType:
			m.op.Key = r.string()
		case n == 2 && t == protowire.BytesType:
			m.op.SessionId = r.string()
		case n == 3 && t == protowire.BytesType:
			m.op.Holder = r.string()
		case n == 4 && t == protowire.VarintType:
			m.op.Wait = r.uvarint() != 0
		case n == 5 && t == protowire.VarintType:
			m.op.LockDelayMs = int64(r.uvarint())
		case n == 6 && t == protowire.VarintType:
			m.op.Ask = r.uvarint()
		default:
			r.unknown(n, t, "Acquire")
		}
	}
}

func decodeCancelWait(r reader) (*Command, error) {
	m := &struct {
		c  Command
		w  fsmpb.Command_CancelWait
		op CancelWait
	}{}
	m.w.CancelWait, m.c.Op = &m.op, &m.w
	for {
		n, t := r.next()
		switch {
		case n == 0:
			return &m.c, r.err
		case n == 1 && t == protowire.BytesType:
			m.op.Key = r.string()
		case n == 2 && t == protowire.BytesType:
			m.op.SessionId = r.string()
		case n == 3 && t == protowire.BytesType:
			m.op.Holder = r.string()
		case n == 4 && t == protowire.VarintType:
			m.op.Ask = r.uvarint()
		default:
			r.unknown(n, t, "CancelWait")
		}
	}
}

func decodeRelease(r reader) (*Command, error) {
	m := &struct {
		c  Command
		w  fsmpb.Command_Release
		op Release
	}{}
	m.w.Release, m.c.Op = &m.op, &m.w
	for {
		n, t := r.next()
		switch {
		case n == 0:
			return &m.c, r.err
		case n == 1 && t == protowire.BytesType:
			m.op.Key = r.string()
		case n == 2 && t == protowire.VarintType:
			m.op.Token = r.uvarint()
		case n == 3 && t == protowire.BytesType:
			m.op.SessionId = r.string()
		case n == 4 && t == protowire.BytesType:
			m.op.Failure = r.string()
		default:
			r.unknown(n, t, "Release")
		}
	}
}
