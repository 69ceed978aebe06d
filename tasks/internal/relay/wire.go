package relay

import (
	"encoding/binary"
	"errors"
)

// The form of messages, see doc.go.
const (
	magic   = 'L'
	version = 1
)

// A kind of frame.
type kind byte

const (
	callFrame kind = 1 + iota
	answerFrame
	notificationFrame
	withdrawalFrame
	fetchFrame
	pieceFrame
)

// A status of an answer.
type status byte

const (
	answered status = iota
	working         // still working
	refused         // overloaded: not executed, and never will be
	late            // not executed, unless a copy comes that proves to be fresh
	lost            // executed perhaps, without an answer that could be given
)

// A side says whose body is fetched.
type side byte

const (
	callSide side = iota
	answerSide
)

// pieceSize is the largest body, or part of one, that a frame holds.
const pieceSize = 192 << 10

// maxText is the longest text: names and methods.
const maxText = 255

// maxHeader is the longest header.
const maxHeader = 2 + 2*(1+maxText) + binary.MaxVarintLen64

// A header names the sender of a message, and the time on its clock.
type header struct {
	process
	sent uint64
}

// A process is one of the successive processes of a node.
type process struct{ node, incarnation string }

// A call as a frame holds it.
type call struct {
	id, age, ttl, echo uint64
	method             string
	size               uint64 // of the body
	body               []byte // nil if it has to be fetched
}

// A reply is an answer as a frame holds it.
type reply struct {
	caller string // incarnation
	id     uint64
	status status
	size   uint64
	body   []byte // nil if it has to be fetched
}

// A bodyKey names one body among all: the caller's incarnation and the call's id
// name the call.
type bodyKey struct {
	side   side
	caller string
	id     uint64
}

var errGarbage = errors.New("not a relay message")

func appendText(b []byte, s string) []byte { return append(append(b, byte(len(s))), s...) }

func appendNumber(b []byte, n uint64) []byte { return binary.AppendUvarint(b, n) }

func appendHeader(b []byte, h header) []byte {
	b = append(b, magic, version)
	b = appendText(appendText(b, h.node), h.incarnation)
	return appendNumber(b, h.sent)
}

// appendFrame appends a frame whose rest is given in two parts.
func appendFrame(b []byte, k kind, rest, body []byte) []byte {
	b = appendNumber(append(b, byte(k)), uint64(len(rest)+len(body)))
	return append(append(b, rest...), body...)
}

// rest appends all of a call's frame but the body.
func (q *call) rest(b []byte) []byte {
	for _, n := range [...]uint64{q.id, q.age, q.ttl, q.echo} {
		b = appendNumber(b, n)
	}
	return appendNumber(appendText(b, q.method), q.size)
}

func (r *reply) rest(b []byte) []byte {
	b = appendNumber(appendText(b, r.caller), r.id)
	return appendNumber(append(b, byte(r.status)), r.size)
}

func (k bodyKey) rest(b []byte, position uint64) []byte {
	b = appendText(append(b, byte(k.side)), k.caller)
	return appendNumber(appendNumber(b, k.id), position)
}

// A reader decodes a message. After the first missing field, all later ones are empty, and bad is
// set.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.b, r.bad = nil, true
		return nil
	}
	taken := r.b[:n:n]
	r.b = r.b[n:]
	return taken
}

func (r *reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) number() uint64 {
	n, length := binary.Uvarint(r.b)
	if length <= 0 {
		r.b, r.bad = nil, true
		return 0
	}
	r.b = r.b[length:]
	return n
}

func (r *reader) text() string { return string(r.take(uint64(r.byte()))) }

// body reads the rest: all of a body whose length was given, or none of it.
func (r *reader) body(size uint64) []byte {
	switch uint64(len(r.b)) {
	case size:
		return r.take(size)
	case 0:
		r.bad = r.bad || size > MaxBody
	default:
		r.bad = true
	}
	return nil
}

func (r *reader) header() (h header, err error) {
	if r.byte() != magic || r.byte() != version {
		return h, errGarbage
	}
	h = header{process{node: r.text(), incarnation: r.text()}, r.number()}
	if r.bad || h.incarnation == "" || h.node == "" {
		return h, errGarbage
	}
	return h, nil
}

// frame returns the next frame; false when there is none.
func (r *reader) frame() (k kind, rest reader, more bool, err error) {
	if len(r.b) == 0 {
		return 0, reader{}, false, nil
	}
	k = kind(r.byte())
	rest = reader{b: r.take(r.number())}
	if r.bad {
		return 0, reader{}, false, errGarbage
	}
	return k, rest, true, nil
}

func (r *reader) call() call {
	q := call{id: r.number(), age: r.number(), ttl: r.number(), echo: r.number(), method: r.text(), size: r.number()}
	q.body = r.body(q.size)
	return q
}

func (r *reader) reply() reply {
	a := reply{caller: r.text(), id: r.number(), status: status(r.byte()), size: r.number()}
	a.body = r.body(a.size)
	return a
}

func (r *reader) bodyKey() (k bodyKey, position uint64) {
	k = bodyKey{side: side(r.byte()), caller: r.text(), id: r.number()}
	return k, r.number()
}
