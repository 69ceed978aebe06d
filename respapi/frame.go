package respapi

import (
	"encoding/binary"
	"errors"
)

var errBadFrame = errors.New("a message between nodes cannot be read")

// appendText appends a text to a message between nodes.
func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// A frameReader reads a message between nodes. After a fault, bad is set and nothing is left.
type frameReader struct {
	b   []byte
	bad bool
}

func (r *frameReader) number() uint64 {
	n, size := binary.Uvarint(r.b)
	if size <= 0 {
		r.b, r.bad = nil, true
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *frameReader) text() string {
	n := r.number()
	if n > uint64(len(r.b)) {
		r.b, r.bad = nil, true
		return ""
	}
	text := string(r.b[:n])
	r.b = r.b[n:]
	return text
}
