package transport

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

// A frame of an RPC stream:
//
//	u32 length of what follows | u64 call | u8 type | …
//	request: … u8 method | u64 microseconds the caller will wait (0 = no limit) | body
//	answer:  … body
//	failure: … u32 code | u16 length of message | message | detail
//	cancel, ping, pong, void: nothing more
//
// All numbers are big endian. A call's number means something to the end that made it only.
const (
	// MaxBody bounds the body of a request or an answer.
	MaxBody = 8 << 20

	lengthSize   = 4
	headSize     = 9 // call, type
	requestSize  = 9 // method, time
	failureSize  = 6 // code, length of message
	maxFrame     = headSize + requestSize + MaxBody
	maxMessage   = 8 << 10 // of a failure
	readAhead    = 32 << 10
	growthFrames = 64 << 10 // a longer frame is not allocated before its bytes come
)

// frameType says what a frame is. ONLY APPEND.
type frameType uint8

const (
	frameVoid    frameType = 0 // a request that was taken back before it left
	frameRequest frameType = 1
	frameAnswer  frameType = 2
	frameFailure frameType = 3
	frameCancel  frameType = 4
	framePing    frameType = 5
	framePong    frameType = 6
)

var errFrame = errors.New("broken frame")

// frame is a decoded frame. Its body is its own memory.
type frame struct {
	call   uint64
	kind   frameType
	method Method
	limit  time.Duration // of a request; 0 = none
	body   []byte        // of a request or answer; of a failure all of it
}

func appendHead(b []byte, n int, call uint64, kind frameType) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(headSize+n))
	b = binary.BigEndian.AppendUint64(b, call)
	return append(b, byte(kind))
}

func appendRequest(b []byte, call uint64, m Method, limit time.Duration, body []byte) []byte {
	b = appendHead(b, requestSize+len(body), call, frameRequest)
	b = append(b, byte(m))
	var micros uint64
	if limit > 0 {
		micros = max(uint64(limit.Microseconds()), 1)
	}
	b = binary.BigEndian.AppendUint64(b, micros)
	return append(b, body...)
}

func appendAnswer(b []byte, call uint64, body []byte) []byte {
	b = appendHead(b, len(body), call, frameAnswer)
	return append(b, body...)
}

func appendFailure(b []byte, call uint64, e *RPCError) []byte {
	msg := e.Message
	if len(msg) > maxMessage {
		msg = msg[:maxMessage]
	}
	b = appendHead(b, failureSize+len(msg)+len(e.Detail), call, frameFailure)
	b = binary.BigEndian.AppendUint32(b, e.Code)
	b = binary.BigEndian.AppendUint16(b, uint16(len(msg)))
	b = append(b, msg...)
	return append(b, e.Detail...)
}

func appendSignal(b []byte, call uint64, kind frameType) []byte { return appendHead(b, 0, call, kind) }

// decodeFailure reads the rest of a failure frame.
func decodeFailure(b []byte) (*RPCError, error) {
	if len(b) < failureSize {
		return nil, fmt.Errorf("%w: a failure of %d bytes", errFrame, len(b))
	}
	n := int(binary.BigEndian.Uint16(b[4:]))
	rest := b[failureSize:]
	if n > len(rest) {
		return nil, fmt.Errorf("%w: a message of %d bytes in %d", errFrame, n, len(rest))
	}
	e := &RPCError{Code: binary.BigEndian.Uint32(b), Message: string(rest[:n])}
	if n < len(rest) {
		e.Detail = rest[n:]
	}
	return e, nil
}

// readFrame reads one frame. The error is io.EOF only between two frames.
func readFrame(r *bufio.Reader) (frame, error) {
	head, err := r.Peek(lengthSize + headSize)
	if err != nil {
		if len(head) > 0 && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return frame{}, err
	}
	n := binary.BigEndian.Uint32(head)
	f := frame{call: binary.BigEndian.Uint64(head[lengthSize:]), kind: frameType(head[lengthSize+8])}
	if n < headSize || n > maxFrame {
		return frame{}, fmt.Errorf("%w: length %d, must be %d to %d", errFrame, n, headSize, maxFrame)
	}
	left := int(n) - headSize
	skip := lengthSize + headSize
	if f.kind == frameRequest {
		if left < requestSize {
			return frame{}, fmt.Errorf("%w: a request of %d bytes", errFrame, n)
		}
		left -= requestSize
		skip += requestSize
		if head, err = r.Peek(skip); err != nil {
			return frame{}, unexpected(err)
		}
		f.method = Method(head[lengthSize+headSize])
		micros := binary.BigEndian.Uint64(head[lengthSize+headSize+1:])
		f.limit = time.Duration(min(micros, math.MaxInt64/1000)) * time.Microsecond
	}
	if _, err := r.Discard(skip); err != nil {
		return frame{}, unexpected(err)
	}
	if left > 0 {
		if f.body, err = readBody(r, left); err != nil {
			return frame{}, unexpected(err)
		}
	}
	return f, nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readBody reads n bytes, allocating no more than has come for a length that may be a lie.
func readBody(r *bufio.Reader, n int) ([]byte, error) {
	if n <= growthFrames {
		b := make([]byte, n)
		_, err := io.ReadFull(r, b)
		return b, err
	}
	b := make([]byte, 0, growthFrames)
	for len(b) < n {
		if len(b) == cap(b) {
			grown := make([]byte, len(b), min(2*cap(b), n))
			copy(grown, b)
			b = grown
		}
		at := len(b)
		b = b[:cap(b)]
		if _, err := io.ReadFull(r, b[at:]); err != nil {
			return nil, err
		}
	}
	return b, nil
}
