package transport

import (
	"bufio"
	"io"
	"net"
	"time"

	"github.com/miwnode/miwnode/transport/transportpb"
)

// Greet does the dialling half of a plain greeting by hand, for tests that then speak nonsense.
func Greet(c net.Conn, kind Kind, id Identity) error {
	b, err := appendMessage(appendPreface(nil, byte(kind)), greeter{id: id}.hello())
	if err != nil {
		return err
	}
	if _, err := c.Write(b); err != nil {
		return err
	}
	var head [prefaceSize]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return err
	}
	var w transportpb.Welcome
	if err := readMessage(c, &w); err != nil {
		return err
	}
	_, err = c.Write([]byte{0, 0})
	return err
}

// Frame is a frame with its parts visible.
type Frame struct {
	Call   uint64
	Kind   uint8
	Method Method
	Limit  time.Duration
	Body   []byte
}

// ReadFrame reads one frame.
func ReadFrame(r *bufio.Reader) (Frame, error) {
	f, err := readFrame(r)
	return Frame{f.call, uint8(f.kind), f.method, f.limit, f.body}, err
}

// AppendFrame writes a frame that ReadFrame has read.
func AppendFrame(b []byte, f Frame) []byte {
	if frameType(f.Kind) == frameRequest {
		return appendRequest(b, f.Call, f.Method, f.Limit, f.Body)
	}
	return append(appendHead(b, len(f.Body), f.Call, frameType(f.Kind)), f.Body...)
}

// DecodeFailure and AppendFailure are the two directions of a failure frame's body.
func DecodeFailure(b []byte) (*RPCError, error)  { return decodeFailure(b) }
func AppendFailure(b []byte, e *RPCError) []byte { return appendFailure(b, 1, e) }
func ReadHello(r io.Reader) (Identity, error) {
	var h transportpb.Hello
	err := readMessage(r, &h)
	return greeterOf(&h).id, err
}

func AppendHello(b []byte, id Identity) ([]byte, error) {
	return appendMessage(b, greeter{id: id}.hello())
}
