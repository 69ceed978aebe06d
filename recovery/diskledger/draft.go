package diskledger

import (
	"encoding/binary"
	"errors"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/diskledger/internal/journal"
)

// A draft is changes as they stand in a frame of the journal. Each is a verb, the length of the key
// as a varint, the key, and unless it is a removal the length of the value and the value.
type draft struct {
	frame   []byte
	repeats bool // it may have been taken before
}

// A verb says what is done to a key.
type verb byte

const (
	verbRemove  verb = iota
	verbPut          // there may be a value
	verbPutAnew      // there is none: a removal of this value leaves nothing
)

func (d *draft) reset() {
	d.frame, d.repeats = append(d.frame[:0], make([]byte, journal.HeaderLen)...), false
}

func (d *draft) empty() bool { return len(d.frame) == journal.HeaderLen }

// key appends a verb, and a key that write appends.
func (d *draft) key(v verb, length int, write func([]byte) []byte) {
	d.frame = binary.AppendUvarint(append(d.frame, byte(v)), uint64(length))
	d.frame = write(d.frame)
}

func (d *draft) value(v []byte) {
	d.frame = append(binary.AppendUvarint(d.frame, uint64(len(v))), v...)
}

func (d *draft) remove(key []byte) {
	d.key(verbRemove, len(key), func(b []byte) []byte { return append(b, key...) })
}

func (d *draft) put(key, value []byte) {
	d.key(verbPut, len(key), func(b []byte) []byte { return append(b, key...) })
	d.value(value)
}

// change appends the change of a record.
func (d *draft) change(c recovery.Change) {
	if c.From != c.To {
		switch c.From.Place {
		case recovery.Pending:
			d.pending(verbRemove, c.From.At, c.ID)
		case recovery.Dead:
			d.remove(appendDead(nil, c.ID))
			d.remove(appendDeadRecord(nil, c.From.Label, c.From.At, c.ID))
		}
	}
	switch c.To.Place {
	case recovery.Pending:
		v := verbPut
		if c.From != c.To {
			v = verbPutAnew
		}
		d.pending(v, c.To.At, c.ID)
		d.value(c.Data)
	case recovery.Dead:
		d.put(appendDead(nil, c.ID), appendWhere(nil, c.To.At, c.To.Label))
		d.put(appendDeadRecord(nil, c.To.Label, c.To.At, c.ID), c.Data)
	}
}

func (d *draft) pending(v verb, at int64, id []byte) {
	d.key(v, 1+timeLen+len(id), func(b []byte) []byte { return appendPending(b, at, id) })
}

var errFrame = errors.New("a frame of the journal holds no changes")

// eachChange visits the changes of a frame. value begins at an offset of the frame.
func eachChange(frame []byte, visit func(v verb, key, value []byte, offset int)) error {
	for at := journal.HeaderLen; at < len(frame); {
		v := verb(frame[at])
		key, end, ok := piece(frame, at+1)
		if !ok || v > verbPutAnew || len(key) == 0 {
			return errFrame
		}
		var value []byte
		if v != verbRemove {
			if value, end, ok = piece(frame, end); !ok {
				return errFrame
			}
		}
		visit(v, key, value, end-len(value))
		at = end
	}
	return nil
}

// piece reads a length and as many bytes.
func piece(b []byte, at int) (p []byte, end int, ok bool) {
	length, n := binary.Uvarint(b[at:])
	if n <= 0 || length > uint64(len(b)-at-n) {
		return nil, 0, false
	}
	end = at + n + int(length)
	return b[at+n : end : end], end, true
}
