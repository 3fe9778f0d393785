package api

import (
	"context"
	"crypto/sha256"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/miwnode/miwnode/fsm"
	"github.com/miwnode/miwnode/node"
)

// maxIdempotencyKey bounds the Idempotency-Key header.
const maxIdempotencyKey = 256

// propose commits op for the call and returns its result, or its refusal as an
// error. A caller that hangs up does not end it: whoever began a write must
// learn what came of it, to give back what nobody waits for any more.
func (c *call) propose(op fsm.Op) (*fsm.Result, error) {
	opts, err := c.idempotency()
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.outliving()
	defer cancel()
	return c.h.propose(ctx, op, opts...)
}

// outliving has the call's deadline and does not end when its caller hangs up.
func (c *call) outliving() (context.Context, context.CancelFunc) {
	ctx := context.WithoutCancel(c.ctx)
	if deadline, ok := c.ctx.Deadline(); ok {
		return context.WithDeadline(ctx, deadline)
	}
	return ctx, func() {}
}

func (h *handler) propose(ctx context.Context, op fsm.Op, opts ...node.ProposeOption) (*fsm.Result, error) {
	res, err := h.node.Propose(ctx, op, opts...)
	if err != nil {
		return nil, err
	}
	if err := fsm.ResultErr(res); err != nil {
		return nil, err
	}
	return res, nil
}

// idempotency turns the Idempotency-Key header into the command's request ID.
// What was asked is the method, the path, If-Match and the body, byte for byte.
func (c *call) idempotency() ([]node.ProposeOption, error) {
	values := c.r.Header.Values("Idempotency-Key")
	if len(values) == 0 {
		return nil, nil
	}
	key := values[0]
	if len(values) > 1 || key == "" || len(key) > maxIdempotencyKey || !utf8.ValidString(key) {
		return nil, invalid("Idempotency-Key must be given once and have 1 to %d bytes of UTF-8", maxIdempotencyKey)
	}
	asked := sha256.New()
	for _, part := range [][]byte{[]byte(c.r.Method), []byte(c.r.URL.Path), c.body} {
		asked.Write(part)
		asked.Write([]byte{0})
	}
	asked.Write([]byte(strings.Join(c.r.Header.Values("If-Match"), ","))) // nothing, for what has none
	return []node.ProposeOption{node.WithIdempotency(key, asked.Sum(nil))}, nil
}

// giveBackTimeout bounds the giving back of what a caller did not wait for.
const giveBackTimeout = 10 * time.Second
