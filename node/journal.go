package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"time"

	"github.com/hashicorp/raft"
)

// journal is where entries of the log become durable first: a file of fixed
// size, laid out in advance, to which a batch of entries is one write and one
// fdatasync. Bolt needs two, one after the other, and so gets entries later and
// many at a time. The journal holds what bolt may not have yet, no more: at a
// start its entries are moved to bolt and it begins anew.
//
// The file is two slots of a header, of which the valid one with the larger
// epoch counts, then frames, one after the other from frameStart. A frame belongs
// to the epoch of the header and has the next number, so what is left over from
// earlier epochs is no frame. The last frame of all may be torn: nobody was told
// that it was written. One that is damaged before others is a loss.
type journal struct {
	file  journalFile
	id    journalID
	epoch uint64
	next  uint64 // number of the next frame
	at    int64  // where it goes
	buf   []byte
}

// journalFile is the part of a file that a journal uses. Sync makes what was
// written durable, without the times of the file.
type journalFile interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
	Close() error
}

// dataFile is a real one.
type dataFile struct{ *os.File }

func (f dataFile) Sync() error { return syncData(f.File) }

// journalID ties a journal to its bolt file, which has the same one.
type journalID [16]byte

const (
	journalSize    = 2 << 20
	journalVersion = 1

	slotMagic  = 0x4a57494d // "MIWJ"
	slotSize   = 4096       // a slot's distance from the next
	headerSize = 4 + 4 + 16 + 8 + 4

	frameMagic = 0x4657494d // "MIWF"
	frameStart = 2 * slotSize
	frameHead  = 4 + 4 + 8 + 8 + 4 // magic, bytes of payload, epoch, number, checksum
	frameAlign = 8

	logHead = 8 + 8 + 8 + 1 + 4 + 4 // index, term, time, type, bytes of data, of extensions
)

// errJournalFull says that a frame does not fit into what is left of the
// journal, errJournalSmall that it would not fit into an empty one. Nothing was
// written.
var (
	errJournalFull  = errors.New("the journal is full")
	errJournalSmall = errors.New("the entries are larger than the journal")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// layOut makes a new journal in file. It is durable when layOut returns.
func layOut(file journalFile, id journalID) error {
	zero := make([]byte, 256<<10)
	for at := int64(0); at < journalSize; at += int64(len(zero)) {
		if _, err := file.WriteAt(zero, at); err != nil {
			return err
		}
	}
	return (&journal{file: file, id: id}).begin(1)
}

// begin starts an epoch, durably: the frames of earlier ones are none any more.
func (j *journal) begin(epoch uint64) error {
	b := make([]byte, 0, headerSize)
	b = binary.LittleEndian.AppendUint32(b, slotMagic)
	b = binary.LittleEndian.AppendUint32(b, journalVersion)
	b = append(b, j.id[:]...)
	b = binary.LittleEndian.AppendUint64(b, epoch)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	if _, err := j.file.WriteAt(b, int64(epoch%2)*slotSize); err != nil {
		return err
	}
	if err := j.file.Sync(); err != nil {
		return err
	}
	j.epoch, j.next, j.at = epoch, 1, frameStart
	return nil
}

// reset forgets all frames, durably.
func (j *journal) reset() error { return j.begin(j.epoch + 1) }

// empty tells whether the epoch has no frame.
func (j *journal) empty() bool { return j.next == 1 }

// append writes logs as one frame. They are durable when it returns nil; when
// it fails otherwise than by the two errors above, nobody knows.
func (j *journal) append(logs []*raft.Log) error {
	b := append(j.buf[:0], make([]byte, frameHead)...)
	for _, l := range logs {
		b = appendLog(b, l)
	}
	payload := len(b) - frameHead
	for len(b)%frameAlign != 0 {
		b = append(b, 0)
	}
	switch {
	case int64(len(b)) > journalSize-frameStart:
		return errJournalSmall
	case int64(len(b)) > journalSize-j.at:
		return errJournalFull
	}
	le := binary.LittleEndian
	le.PutUint32(b, frameMagic)
	le.PutUint32(b[4:], uint32(payload))
	le.PutUint64(b[8:], j.epoch)
	le.PutUint64(b[16:], j.next)
	le.PutUint32(b[24:], frameSum(b[:frameHead], b[frameHead:frameHead+payload]))
	if j.buf = b; cap(b) > journalSize/4 {
		j.buf = nil
	}
	if _, err := j.file.WriteAt(b, j.at); err != nil {
		return err
	}
	if err := j.file.Sync(); err != nil {
		return err
	}
	j.at += int64(len(b))
	j.next++
	return nil
}

// frameSum covers all of a frame but the checksum itself.
func frameSum(head, payload []byte) uint32 {
	return crc32.Update(crc32.Checksum(head[:24], castagnoli), castagnoli, payload)
}

// openJournal reads the journal of that ID and returns the entries of its
// present epoch, in the order in which they were appended. Its errors say what
// is wrong with the file.
func openJournal(file journalFile, id journalID) (*journal, []*raft.Log, error) {
	b := make([]byte, journalSize)
	if n, err := file.ReadAt(b, 0); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, nil, fmt.Errorf("cut short: %d bytes of %d", n, journalSize)
		}
		return nil, nil, err
	}
	j := &journal{file: file, id: id, next: 1, at: frameStart}
	for slot := range int64(2) {
		epoch, err := readHeader(b[slot*slotSize:][:headerSize], id)
		if err != nil {
			return nil, nil, err
		}
		j.epoch = max(j.epoch, epoch)
	}
	if j.epoch == 0 {
		return nil, nil, errors.New("its header is damaged")
	}
	var logs []*raft.Log
	for {
		payload, size := readFrame(b[j.at:], j.epoch, j.next)
		if size == 0 {
			break
		}
		var err error
		if logs, err = readLogs(logs, payload); err != nil {
			return nil, nil, fmt.Errorf("frame %d: %w", j.next, err)
		}
		j.at += int64(size)
		j.next++
	}
	if n := laterFrame(b[j.at:], j.epoch, j.next); n != 0 {
		return nil, nil, fmt.Errorf("frame %d is damaged, and there is a later one", j.next)
	}
	return j, logs, nil
}

// readHeader returns the epoch of a slot, 0 if the slot is not valid. A valid
// header of another journal or a newer format is an error.
func readHeader(b []byte, id journalID) (epoch uint64, err error) {
	le := binary.LittleEndian
	if le.Uint32(b) != slotMagic || le.Uint32(b[headerSize-4:]) != crc32.Checksum(b[:headerSize-4], castagnoli) {
		return 0, nil
	}
	if v := le.Uint32(b[4:]); v != journalVersion {
		return 0, fmt.Errorf("has format %d, this version knows %d", v, journalVersion)
	}
	if journalID(b[8:24]) != id {
		return 0, errors.New("belongs to another log")
	}
	return le.Uint64(b[24:]), nil
}

// readFrame returns the payload of the frame at the beginning of b and the
// frame's size, 0 if that frame is not there.
func readFrame(b []byte, epoch, number uint64) (payload []byte, size int) {
	le := binary.LittleEndian
	if len(b) < frameHead || le.Uint32(b) != frameMagic || le.Uint64(b[8:]) != epoch || le.Uint64(b[16:]) != number {
		return nil, 0
	}
	n := int(le.Uint32(b[4:]))
	if n > len(b)-frameHead {
		return nil, 0
	}
	payload = b[frameHead:][:n]
	if frameSum(b[:frameHead], payload) != le.Uint32(b[24:]) {
		return nil, 0
	}
	size = frameHead + n
	return payload, min(len(b), size+(frameAlign-size%frameAlign)%frameAlign)
}

// laterFrame returns the number of a whole frame that was written after the
// place where frame number should be, 0 if there is none: of that epoch, or of a
// later one whose header is gone.
func laterFrame(b []byte, epoch, number uint64) uint64 {
	le := binary.LittleEndian
	for ; len(b) >= frameHead; b = b[frameAlign:] {
		if le.Uint32(b) != frameMagic {
			continue
		}
		e, n := le.Uint64(b[8:]), le.Uint64(b[16:])
		if e < epoch || e == epoch && n <= number {
			continue
		}
		if _, size := readFrame(b, e, n); size > 0 {
			return n
		}
	}
	return 0
}

func appendLog(b []byte, l *raft.Log) []byte {
	var at int64
	if !l.AppendedAt.IsZero() {
		at = l.AppendedAt.UnixNano()
	}
	b = binary.LittleEndian.AppendUint64(b, l.Index)
	b = binary.LittleEndian.AppendUint64(b, l.Term)
	b = binary.LittleEndian.AppendUint64(b, uint64(at))
	b = append(b, byte(l.Type))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(l.Data)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(l.Extensions)))
	b = append(b, l.Data...)
	return append(b, l.Extensions...)
}

var errBadEntry = errors.New("an entry is malformed")

// readLogs appends the entries in b, which they must fill.
func readLogs(logs []*raft.Log, b []byte) ([]*raft.Log, error) {
	le := binary.LittleEndian
	for len(b) > 0 {
		if len(b) < logHead {
			return nil, errBadEntry
		}
		l := &raft.Log{Index: le.Uint64(b), Term: le.Uint64(b[8:]), Type: raft.LogType(b[24])}
		if at := int64(le.Uint64(b[16:])); at != 0 {
			l.AppendedAt = time.Unix(0, at)
		}
		data, ext := int(le.Uint32(b[25:])), int(le.Uint32(b[29:]))
		if b = b[logHead:]; data > len(b) || ext > len(b)-data {
			return nil, errBadEntry
		}
		l.Data = append([]byte(nil), b[:data]...)
		if ext > 0 {
			l.Extensions = append([]byte(nil), b[data:][:ext]...)
		}
		logs = append(logs, l)
		b = b[data+ext:]
	}
	return logs, nil
}
