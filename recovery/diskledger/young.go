package diskledger

import (
	"errors"
	"hash/crc32"
	"hash/maphash"
	"slices"
	"sync"

	"github.com/lapsehq/lapse/recovery/diskledger/internal/journal"
)

// A young knows the pending records that stand in the journal alone. Most tasks end before their
// record is as old as the journal, and then the store never hears of it. What is left of old
// segments is moved to the store: see engine.retire.
//
// It has a hash of 128 bits in place of each key. The probability that two of 300,000 keys share
// one is below 10^-27.
type young struct {
	seeds [2]maphash.Seed

	mu       sync.Mutex // guards what follows
	segments []*segment // the oldest first
	hint     int        // the one in which a record was removed last: the next is likely there too
	moving   uint64     // segments up to this one are being moved to the store; 0: none
	// late has the keys of what was removed of them, or written over, meanwhile: until the store
	// has removed it as well, what it has of them counts for nothing.
	late  map[hash][]byte
	spare []map[hash]whereabouts
}

// A segment has the records of one segment of the journal. So what is used together lies together,
// and all of it is forgotten at once.
type segment struct {
	number  uint64
	records map[hash]whereabouts
	bytes   int // of the values
}

type hash [2]uint64

// whereabouts is where in its segment the value of a record is.
type whereabouts struct {
	offset, length, sum uint32
	// below: the store may have an earlier value, so a removal has to be the store's too.
	below bool
}

func (y *young) hash(key []byte) hash {
	return hash{maphash.Bytes(y.seeds[0], key), maphash.Bytes(y.seeds[1], key)}
}

// findLocked returns the segment that has a record, or nil.
func (y *young) findLocked(h hash) (*segment, whereabouts) {
	if y.hint < len(y.segments) {
		if w, ok := y.segments[y.hint].records[h]; ok {
			return y.segments[y.hint], w
		}
	}
	for i, s := range slices.Backward(y.segments) {
		if w, ok := s.records[h]; ok {
			y.hint = i
			return s, w
		}
	}
	return nil, whereabouts{}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// putLocked notes a record of a frame, whose value begins at an offset of that. An anew one is
// neither here nor in the store.
func (y *young) putLocked(key, value []byte, at journal.Place, offset int, anew bool) {
	h, below := y.hash(key), !anew
	if !anew {
		if s, old := y.findLocked(h); s != nil {
			s.drop(h, old)
			below = !y.lateLocked(s, h, key) && old.below
		}
	}
	s := y.segmentLocked(at.Segment)
	s.bytes += len(value)
	s.records[h] = whereabouts{
		offset: uint32(at.Offset + offset), length: uint32(len(value)),
		sum: crc32.Checksum(value, castagnoli), below: below,
	}
}

// segmentLocked returns the newest segment, which has that number.
func (y *young) segmentLocked(number uint64) *segment {
	if n := len(y.segments); n > 0 && y.segments[n-1].number == number {
		return y.segments[n-1]
	}
	s := &segment{number: number}
	if n := len(y.spare); n > 0 {
		s.records, y.spare = y.spare[n-1], y.spare[:n-1]
	} else {
		s.records = make(map[hash]whereabouts)
	}
	y.segments = append(y.segments, s)
	return s
}

// removeLocked forgets a record. It reports whether it has to be removed from the store.
func (y *young) removeLocked(key []byte) (below bool) {
	h := y.hash(key)
	s, old := y.findLocked(h)
	if s == nil {
		return true
	}
	s.drop(h, old)
	return !y.lateLocked(s, h, key) && old.below
}

// lateLocked reports whether the store is about to get what was dropped from a segment. Then it
// removes that, and whatever it had before, at the end of the move.
func (y *young) lateLocked(s *segment, h hash, key []byte) bool {
	if s.number > y.moving {
		return false
	}
	y.late[h] = slices.Clone(key)
	return true
}

func (s *segment) drop(h hash, w whereabouts) {
	delete(s.records, h)
	s.bytes -= int(w.length)
}

var errYoung = errors.New("a record of the journal is damaged")

// read reads the value of a record that is young. If there is none, it reports whether the store
// may have one. The caller holds j.
func (y *young) read(j *journal.Journal, key []byte) (value []byte, below bool, err error) {
	h := y.hash(key)
	y.mu.Lock()
	s, w := y.findLocked(h)
	_, late := y.late[h]
	y.mu.Unlock()
	if s == nil {
		return nil, !late, nil
	}
	value = make([]byte, w.length)
	if err := j.Read(s.number, int(w.offset), value); err != nil {
		return nil, false, err
	}
	if crc32.Checksum(value, castagnoli) != w.sum {
		return nil, false, errYoung
	}
	return value, false, nil
}

// beginMove has what is removed of segments up to this one, or written over, noted from now on. It
// returns how many records they have, and the bytes of their values.
func (y *young) beginMove(last uint64) (records, bytes int) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.moving = last
	if y.late == nil {
		y.late = make(map[hash][]byte)
	}
	for _, s := range y.segments {
		if s.number <= last {
			records, bytes = records+len(s.records), bytes+s.bytes
		}
	}
	return records, bytes
}

// isAt reports whether the value of a record is still the one at an offset of a segment.
func (y *young) isAt(h hash, number uint64, offset int) bool {
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, s := range y.segments {
		if s.number == number {
			w, ok := s.records[h]
			return ok && int(w.offset) == offset
		}
	}
	return false
}

// endMove forgets the segments that are being moved: the store has their records now. It returns
// the keys of those that it has to remove before forgetLate.
func (y *young) endMove() (late map[hash][]byte) {
	y.mu.Lock()
	n := 0
	for n < len(y.segments) && y.segments[n].number <= y.moving {
		n++
	}
	gone := slices.Clone(y.segments[:n])
	y.segments = slices.Delete(y.segments, 0, n)
	y.hint = max(0, y.hint-n)
	late, y.moving = y.late, 0
	y.mu.Unlock()
	for _, s := range gone {
		clear(s.records)
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, s := range gone {
		if len(y.spare) < sparesKept {
			y.spare = append(y.spare, s.records)
		}
	}
	return late
}

// forgetLate says that the store has removed what was late.
func (y *young) forgetLate() {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.late = nil
}

// sparesKept is how many maps are kept for later segments: a map that need not grow is twice as
// fast.
const sparesKept = 4
