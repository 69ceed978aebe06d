package journal

import (
	"encoding/binary"
	"hash/crc32"
)

// HeaderLen is how many bytes at the beginning of a frame are the journal's.
const HeaderLen = 24

// align is what frames begin at a multiple of.
const align = 8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A salt keeps what a payload has from being taken for a frame, by chance or by a caller's will.
// Openings have none.
type salt [8]byte

func (s salt) sum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(s[:], castagnoli), castagnoli, b)
}

// check is the sum of a frame's segment and number.
func (s salt) check(frame []byte) uint32 {
	return crc32.Update(s.sum(frame[8:12]), castagnoli, frame[16:24])
}

// seal fills in the header of a frame.
func seal(frame []byte, segment, number uint64, s salt) {
	le := binary.LittleEndian
	le.PutUint32(frame[4:], uint32(len(frame)-HeaderLen))
	le.PutUint32(frame[8:], uint32(segment))
	le.PutUint64(frame[16:], number)
	le.PutUint32(frame[12:], s.check(frame))
	le.PutUint32(frame, s.sum(frame[4:]))
}

// A header is what the first bytes of a frame say.
type header struct {
	segment, number uint64
	end             int // of the payload, counted from the frame's beginning
}

// headerOf reads what b begins with, and reports whether that is a whole frame.
func headerOf(b []byte, s salt) (h header, ok bool) {
	if len(b) < HeaderLen {
		return h, false
	}
	le := binary.LittleEndian
	length := le.Uint32(b[4:])
	h = header{segment: uint64(le.Uint32(b[8:])), number: le.Uint64(b[16:])}
	if h.segment == 0 || uint64(length) > uint64(len(b)-HeaderLen) {
		return h, false
	}
	h.end = HeaderLen + int(length)
	return h, s.sum(b[4:h.end]) == le.Uint32(b)
}

// padded is the first offset at or after n at which a frame may begin.
func padded(n int) int { return (n + align - 1) &^ (align - 1) }

// hasFrame reports whether b holds a frame that fits, wherever it begins.
func hasFrame(b []byte, s salt, fits func(h header) bool) bool {
	le := binary.LittleEndian
	for ; len(b) >= HeaderLen; b = b[align:] {
		// The sum of a frame reads all of it: a payload that looks like many of them must not get
		// that far.
		if !fits(header{segment: uint64(le.Uint32(b[8:])), number: le.Uint64(b[16:])}) || s.check(b) != le.Uint32(b[12:]) {
			continue
		}
		if _, ok := headerOf(b, s); ok {
			return true
		}
	}
	return false
}
