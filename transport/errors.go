package transport

import (
	"errors"
	"fmt"
	"strings"
)

// ErrClosed is returned by every call on a Transport whose Close has begun.
var ErrClosed = errors.New("transport is closed")

// ErrNotSent is matched (errors.Is) by an error of Call when the request certainly never reached a handler: dialling or
// the greeting failed, the caller's context ended while the request still lay in our own queue, or the peer answered
// that it did not start to handle it. An error of Call that matches neither ErrNotSent nor *RPCError leaves the outcome
// unknown: the handler may have run.
var ErrNotSent = errors.New("request not sent")

// ErrTooLarge is matched by the error of a Call whose body does not fit into a frame. It matches ErrNotSent too.
var ErrTooLarge = errors.New("message too large")

// ErrPeerSilent is the cause of a lost connection whose peer answered neither calls nor pings.
var ErrPeerSilent = errors.New("peer does not answer")

// ErrConnLost is matched by the error of a Call whose connection ended after the request was handed to it.
var ErrConnLost = errors.New("connection lost")

// Refusal says why one end of a new stream sent the other away. The numbers travel: ONLY APPEND.
type Refusal uint32

// The refusals.
const (
	RefusedOtherCluster   Refusal = 1  // the two nodes belong to different clusters
	RefusedOlderBoot      Refusal = 2  // a newer start of the same node has been seen
	RefusedTwin           Refusal = 3  // another process greets with the same node ID and boot: a copied data folder
	RefusedWrongNode      Refusal = 4  // the dialled address belongs to another node than the caller wants
	RefusedVersion        Refusal = 5  // the greeting speaks a version that this end does not know
	RefusedWrongName      Refusal = 6  // the certificate does not name the node ID, or not the advertised host
	RefusedNotAdmitted    Refusal = 7  // Config.Admit said no
	RefusedNotServing     Refusal = 8  // this kind of stream is not served at the moment: starting or stopping
	RefusedBadGreeting    Refusal = 9  // what arrived is no greeting
	RefusedNeedsTLS       Refusal = 10 // a plain stranger at a port that speaks TLS
	RefusedPlain          Refusal = 11 // a TLS stranger at a port that speaks plain
	RefusedBadCertificate Refusal = 12 // no certificate, one of another authority, or one that has run out
	RefusedGossipKey      Refusal = 13 // the two ends have different gossip keys
)

var refusalNames = map[Refusal]string{
	RefusedOtherCluster:   "other cluster",
	RefusedOlderBoot:      "older boot",
	RefusedTwin:           "same boot, other process",
	RefusedWrongNode:      "not this node",
	RefusedVersion:        "unknown version",
	RefusedWrongName:      "wrong name in certificate",
	RefusedNotAdmitted:    "not admitted",
	RefusedNotServing:     "not serving",
	RefusedBadGreeting:    "no greeting",
	RefusedNeedsTLS:       "needs TLS",
	RefusedPlain:          "does not speak TLS",
	RefusedBadCertificate: "bad certificate",
	RefusedGossipKey:      "other gossip key",
}

// String returns the refusal in words.
func (r Refusal) String() string {
	if s, ok := refusalNames[r]; ok {
		return s
	}
	return fmt.Sprintf("refusal %d", uint32(r))
}

// RefusedError is returned by Call and by the dialling half of raft and gossip when the greeting ended in a refusal, by
// whichever end. A call that meets it was not sent.
type RefusedError struct {
	Refusal  Refusal
	Reason   string   // a sentence; names what differs
	Peer     Identity // as far as it is known
	PeerAddr string   // the address of the other end
	ByPeer   bool     // the other end refused us; else we refused it
	// Known is, for RefusedOlderBoot and RefusedTwin, the other life of the node that was refused, as far as it is known.
	Known Identity
}

// Error says who refused whom and why.
func (e *RefusedError) Error() string {
	var b strings.Builder
	if e.ByPeer {
		b.WriteString("refused by ")
	} else {
		b.WriteString("refused ")
	}
	if e.Peer.NodeID != "" {
		fmt.Fprintf(&b, "node %s at ", e.Peer.NodeID)
	}
	if e.PeerAddr != "" {
		b.WriteString(e.PeerAddr)
	} else {
		b.WriteString("peer")
	}
	fmt.Fprintf(&b, ": %s", e.Refusal)
	if e.Reason != "" {
		fmt.Fprintf(&b, ": %s", e.Reason)
	}
	return b.String()
}

// Is lets errors.Is(err, ErrNotSent) hold for every refusal.
func (e *RefusedError) Is(target error) bool { return target == ErrNotSent }

// Codes of RPCError that the transport itself gives; all others belong to the handlers. ONLY APPEND.
const (
	CodeUnknown    uint32 = 0xffff0001 // the handler returned an error without a code
	CodePanic      uint32 = 0xffff0002 // the handler panicked
	CodeBusy       uint32 = 0xffff0003 // too many calls at once on this connection: not started
	CodeNotServing uint32 = 0xffff0004 // no handler yet, or no more: not started
	CodeTooLarge   uint32 = 0xffff0005 // the handler's answer does not fit into a frame
)

// RPCError is the error answer of a remote handler. It is a definite answer: the handler ran and said no, except for
// the codes CodeBusy and CodeNotServing, which match ErrNotSent.
type RPCError struct {
	Code    uint32
	Message string
	Detail  []byte
}

// Error returns the message.
func (e *RPCError) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("remote error %d", e.Code)
	}
	return e.Message
}

// Is lets errors.Is(err, ErrNotSent) hold where the handler was never started.
func (e *RPCError) Is(target error) bool {
	return target == ErrNotSent && (e.Code == CodeBusy || e.Code == CodeNotServing)
}

// RPCCoder is implemented by errors of handlers that travel with a code of their own. RPCDetail is optional: see RPCDetailer.
type RPCCoder interface{ RPCCode() uint32 }

// RPCDetailer is implemented by errors of handlers that carry more than a code and a message.
type RPCDetailer interface{ RPCDetail() []byte }

// notSentError marks an error as ErrNotSent and keeps what it wraps.
type notSentError struct{ err error }

func (e *notSentError) Error() string        { return e.err.Error() }
func (e *notSentError) Unwrap() error        { return e.err }
func (e *notSentError) Is(target error) bool { return target == ErrNotSent }

func notSent(err error) error {
	if err == nil || errors.Is(err, ErrNotSent) {
		return err
	}
	return &notSentError{err}
}
