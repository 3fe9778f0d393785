package transport_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/miwnode/miwnode/transport"
)

// The bytes on the wire stay what they are.
func TestFrame_Golden(t *testing.T) {
	for name, tt := range map[string]struct {
		frame transport.Frame
		wire  string
	}{
		"request": {
			transport.Frame{Call: 7, Kind: 1, Method: 3, Limit: 1500 * time.Millisecond, Body: []byte("hi")},
			"\x00\x00\x00\x14\x00\x00\x00\x00\x00\x00\x00\x07\x01\x03\x00\x00\x00\x00\x00\x16\xe3\x60hi",
		},
		"request without limit": {
			transport.Frame{Call: 7, Kind: 1, Method: 3},
			"\x00\x00\x00\x12\x00\x00\x00\x00\x00\x00\x00\x07\x01\x03\x00\x00\x00\x00\x00\x00\x00\x00",
		},
		"answer": {transport.Frame{Call: 7, Kind: 2, Body: []byte("ok")}, "\x00\x00\x00\x0b\x00\x00\x00\x00\x00\x00\x00\x07\x02ok"},
		"failure": {
			transport.Frame{Call: 1, Kind: 3, Body: []byte("\x00\x00\x00\x2a\x00\x02nodetail")},
			"\x00\x00\x00\x17\x00\x00\x00\x00\x00\x00\x00\x01\x03\x00\x00\x00\x2a\x00\x02nodetail",
		},
		"cancel": {transport.Frame{Call: 7, Kind: 4}, "\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00\x07\x04"},
		"ping":   {transport.Frame{Kind: 5}, "\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00\x00\x05"},
	} {
		if got := string(transport.AppendFrame(nil, tt.frame)); got != tt.wire {
			t.Errorf("%s: wrote %q, want %q", name, got, tt.wire)
		}
		got, err := transport.ReadFrame(bufio.NewReader(strings.NewReader(tt.wire)))
		if err != nil || got.Call != tt.frame.Call || got.Kind != tt.frame.Kind || got.Method != tt.frame.Method || got.Limit != tt.frame.Limit ||
			!bytes.Equal(got.Body, tt.frame.Body) {
			t.Errorf("%s: read %+v, %v, want %+v", name, got, err, tt.frame)
		}
		for n := 1; n < len(tt.wire); n++ {
			if _, err := transport.ReadFrame(bufio.NewReader(strings.NewReader(tt.wire[:n]))); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s cut after %d bytes: got %v, want an unexpected end", name, n, err)
			}
		}
	}
	if _, err := transport.ReadFrame(bufio.NewReader(strings.NewReader(""))); !errors.Is(err, io.EOF) {
		t.Errorf("between frames: got %v, want io.EOF", err)
	}
	failure := &transport.RPCError{Code: 42, Message: "no", Detail: []byte("detail")}
	if got := string(transport.AppendFailure(nil, failure)); got != "\x00\x00\x00\x17\x00\x00\x00\x00\x00\x00\x00\x01\x03\x00\x00\x00\x2a\x00\x02nodetail" {
		t.Errorf("failure: wrote %q", got)
	}
}

// The bytes of a greeting stay what they are.
func TestHello_Golden(t *testing.T) {
	id := transport.Identity{ClusterID: "c", NodeID: "n1", Boot: 7, Nonce: "x", Addr: "a:1"}
	const wire = "\x00\x11\x0a\x01c\x12\x02n1\x18\x07\x22\x01x\x2a\x03a:1"
	if got, err := transport.AppendHello(nil, id); err != nil || string(got) != wire {
		t.Errorf("wrote %q, %v, want %q", got, err, wire)
	}
	if got, err := transport.ReadHello(strings.NewReader(wire)); err != nil || got != id {
		t.Errorf("read %+v, %v, want %+v", got, err, id)
	}
}

func FuzzFrame(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x14\x00\x00\x00\x00\x00\x00\x00\x07\x01\x03\x00\x00\x00\x00\x00\x16\xe3\x60hi"))
	f.Add([]byte("\x00\x00\x00\x17\x00\x00\x00\x00\x00\x00\x00\x01\x03\x00\x00\x00\x2a\x00\x02nodetail"))
	f.Add([]byte("\x00\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x02"))
	f.Fuzz(func(t *testing.T, wire []byte) {
		r := bytes.NewReader(wire)
		b := bufio.NewReader(r)
		for {
			before := len(wire) - r.Len() - b.Buffered()
			got, err := transport.ReadFrame(b)
			if err != nil {
				return
			}
			read := wire[before : len(wire)-r.Len()-b.Buffered()]
			if again := transport.AppendFrame(nil, got); !bytes.Equal(again, read) && got.Limit < 1<<62 {
				t.Fatalf("read %q, wrote %q", read, again)
			}
			if got.Kind == 3 {
				if e, err := transport.DecodeFailure(got.Body); err == nil && len(e.Message) <= 8<<10 {
					if again := transport.AppendFailure(nil, e); !bytes.Equal(again[13:], got.Body) {
						t.Fatalf("failure %q became %q", got.Body, again[13:])
					}
				}
			}
		}
	})
}

func FuzzHello(f *testing.F) {
	f.Add([]byte("\x00\x11\x0a\x01c\x12\x02n1\x18\x07\x22\x01x\x2a\x03a:1"))
	f.Add([]byte("\xff\xff"))
	f.Fuzz(func(t *testing.T, wire []byte) {
		id, err := transport.ReadHello(bytes.NewReader(wire))
		if err != nil {
			return
		}
		again, err := transport.AppendHello(nil, id)
		if err != nil {
			t.Fatalf("%+v can be read and not be written: %v", id, err)
		}
		if got, err := transport.ReadHello(bytes.NewReader(again)); err != nil || got != id {
			t.Fatalf("got %+v, %v, want %+v", got, err, id)
		}
	})
}
