package fsm

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/miwnode/miwnode/fsm/fsmpb"
	"google.golang.org/protobuf/proto"
)

// A snapshot is: magic (8 bytes), state version (4, big endian; that of the
// cluster, so that every member can read it), records (each a
// varint of its length and a fsmpb.Record), the last of them an EndRecord with
// the number of records before it, and the SHA-256 of all that. Records come in
// the order of their field numbers, those of a client or a group after it, sorted
// within, so that equal states have equal bytes.

const (
	snapshotMagic  = "MIWSNAP\x01"
	maxRecordBytes = MaxCommandBytes
)

// Snapshot writes the state. It takes time in proportion to the state and
// blocks nobody.
func (v *View) Snapshot(w io.Writer) error {
	sw := &snapshotWriter{w: w, sum: sha256.New()}
	v.write(sw)
	sw.raw(sw.sum.Sum(nil))
	return sw.err
}

// Hash returns the checksum of the snapshot: equal states have equal hashes.
func (v *View) Hash() (sum [32]byte) {
	sw := &snapshotWriter{w: io.Discard, sum: sha256.New()}
	v.write(sw)
	sw.sum.Sum(sum[:0])
	return sum
}

type snapshotWriter struct {
	w       io.Writer
	sum     hash.Hash
	buf     []byte
	records uint64
	err     error
}

func (sw *snapshotWriter) raw(b []byte) {
	if sw.err == nil {
		_, sw.err = sw.w.Write(b)
	}
}

func (sw *snapshotWriter) write(b []byte) {
	sw.sum.Write(b)
	sw.raw(b)
}

func (sw *snapshotWriter) record(r *fsmpb.Record) {
	if sw.err != nil {
		return
	}
	const room = binary.MaxVarintLen64
	if len(sw.buf) < room {
		sw.buf = make([]byte, room, 1024)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(sw.buf[:room], r)
	if err != nil {
		sw.err = err
		return
	}
	sw.buf = b
	// The length goes right before the record, so that both are one write.
	var length [room]byte
	n := binary.PutUvarint(length[:], uint64(len(b)-room))
	from := room - n
	copy(b[from:room], length[:n])
	sw.write(b[from:])
	sw.records++
}

func (v *View) write(sw *snapshotWriter) {
	sw.write(binary.BigEndian.AppendUint32([]byte(snapshotMagic), max(1, v.cluster.version)))
	v.writeRecords(sw.record)
	sw.record(&fsmpb.Record{Record: &fsmpb.Record_End{End: &fsmpb.EndRecord{Records: sw.records}}})
}

// ReadSnapshot reads what View.Snapshot wrote: all of it, with nothing after it,
// or an error. A *VersionError says that it needs a newer binary.
func ReadSnapshot(r io.Reader, opts ...Option) (*State, error) {
	s, err := readSnapshot(r, opts)
	if err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	return s, nil
}

func readSnapshot(r io.Reader, opts []Option) (*State, error) {
	sr := &snapshotReader{r: r, sum: sha256.New()}
	head := make([]byte, len(snapshotMagic)+4)
	if err := sr.full(head); err != nil {
		return nil, err
	}
	if string(head[:len(snapshotMagic)]) != snapshotMagic {
		return nil, errors.New("this is not a snapshot of miwnode")
	}
	if version := binary.BigEndian.Uint32(head[len(snapshotMagic):]); version == 0 || version > Version {
		return nil, &VersionError{Need: version, What: "snapshot"}
	}
	l := newLoader(opts)
	for {
		rec, err := sr.record()
		if err != nil {
			return nil, fmt.Errorf("record %d: %w", sr.records, err)
		}
		if end := rec.GetEnd(); end != nil {
			if end.Records != sr.records-1 {
				return nil, fmt.Errorf("it has %d records and says %d", sr.records-1, end.Records)
			}
			break
		}
		if err := l.add(rec); err != nil {
			return nil, fmt.Errorf("record %d: %w", sr.records, err)
		}
	}
	if err := sr.finish(); err != nil {
		return nil, err
	}
	return l.finish()
}

type snapshotReader struct {
	r       io.Reader
	sum     hash.Hash
	buf     []byte
	records uint64
}

func (sr *snapshotReader) full(b []byte) error {
	if _, err := io.ReadFull(sr.r, b); err != nil {
		if errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		}
		return err
	}
	sr.sum.Write(b)
	return nil
}

func (sr *snapshotReader) length() (n uint64, err error) {
	var b [1]byte
	for shift := 0; shift < 28; shift += 7 {
		if err := sr.full(b[:]); err != nil {
			return 0, err
		}
		n |= uint64(b[0]&0x7f) << shift
		if b[0] < 0x80 {
			if n > maxRecordBytes {
				break
			}
			return n, nil
		}
	}
	return 0, fmt.Errorf("a record of more than %d bytes", maxRecordBytes)
}

func (sr *snapshotReader) record() (*fsmpb.Record, error) {
	n, err := sr.length()
	if err != nil {
		return nil, err
	}
	if uint64(cap(sr.buf)) < n {
		sr.buf = make([]byte, n)
	}
	b := sr.buf[:n]
	if err := sr.full(b); err != nil {
		return nil, err
	}
	rec := &fsmpb.Record{}
	if err := proto.Unmarshal(b, rec); err != nil {
		return nil, err
	}
	if err := noUnknown(rec.ProtoReflect()); err != nil {
		return nil, &VersionError{What: err.Error()}
	}
	if rec.Record == nil {
		return nil, errors.New("empty record")
	}
	sr.records++
	return rec, nil
}

func (sr *snapshotReader) finish() error {
	want := sr.sum.Sum(nil)
	got := make([]byte, len(want))
	if err := sr.full(got); err != nil {
		return fmt.Errorf("checksum: %w", err)
	}
	if string(got) != string(want) {
		return errors.New("the checksum doesn't match: the snapshot is damaged")
	}
	if _, err := io.ReadFull(sr.r, got[:1]); !errors.Is(err, io.EOF) {
		return errors.New("there is something after the checksum")
	}
	return nil
}
