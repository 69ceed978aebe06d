package journal

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Prefix is how the names of a journal's files begin.
const Prefix = "journal-"

// ErrTorn says that the journal is damaged, or that files of it are missing.
var ErrTorn = errors.New("the journal is torn")

// Options of a journal.
type Options struct {
	FS  vfs.FS
	Dir string // exists
	// Size is how many bytes a segment may have before it is closed. The frame that goes beyond it
	// is still the segment's.
	Size int
}

// A Place is where a frame is.
type Place struct {
	Segment uint64
	Offset  int
}

// A Journal may be used by several goroutines, except that Append and Begin are called by one at a
// time, after Replay.
type Journal struct {
	Options
	number uint64 // of the last frame; used by Replay and Append
	salt   salt

	making sync.Mutex // held while a file is made

	mu      sync.Mutex // guards what follows
	slots   []*slot
	current *slot // nil: nothing was begun yet
	next    *slot // the last one that a segment was to begin in
	last    uint64
	oldest  uint64   // as the newest opening has it: earlier segments may be written over
	holds   []uint64 // from which segment on each Hold keeps them
}

// A slot is a file.
type slot struct {
	file    vfs.File
	name    string
	segment uint64 // 0: none yet
	end     int    // of its frames
	live    bool   // its segment is not free
}

// Append writes a frame durably and says where it is. The first HeaderLen bytes of the frame are
// the journal's to fill in. begins reports whether it is the first one of a segment.
func (j *Journal) Append(frame []byte) (at Place, begins bool, err error) {
	j.mu.Lock()
	s := j.current
	j.mu.Unlock()
	if begins = s == nil || s.end >= j.Size; begins {
		if s, err = j.begin(); err != nil {
			return Place{}, begins, err
		}
	}
	at = Place{s.segment, s.end}
	seal(frame, at.Segment, j.number+1, j.salt)
	if _, err = s.file.WriteAt(frame, int64(at.Offset)); err == nil {
		err = s.file.SyncData()
	}
	if err != nil {
		return Place{}, begins, err
	}
	j.number++
	j.mu.Lock()
	defer j.mu.Unlock()
	s.end = padded(at.Offset + len(frame))
	return at, begins, nil
}

// Begin closes the current segment and begins another, unless it has no frames and its opening says
// which segments are free.
func (j *Journal) Begin() error {
	j.mu.Lock()
	asNew := j.current != nil && j.current.end == openingLen && j.oldest == j.oldestNeeded(j.last)
	j.mu.Unlock()
	if asNew {
		return nil
	}
	_, err := j.begin()
	return err
}

// openingLen is how long an opening is.
const openingLen = HeaderLen + 16

// begin begins a segment. Its opening is durable before its first frame is written, so that frames
// without one are damage.
func (j *Journal) begin() (*slot, error) {
	s, segment, oldest, err := j.choose()
	if err != nil {
		return nil, err
	}
	opening := append(binary.LittleEndian.AppendUint64(make([]byte, HeaderLen), oldest), j.salt[:]...)
	seal(opening, segment, j.number+1, salt{})
	if _, err := s.file.WriteAt(opening, 0); err != nil {
		return nil, err
	}
	if err := s.file.Sync(); err != nil {
		return nil, err
	}
	j.number++
	j.mu.Lock()
	defer j.mu.Unlock()
	if old := j.current; old != nil && old.end == openingLen {
		old.live = false
	}
	s.segment, s.end, s.live = segment, openingLen, true
	j.current, j.last, j.oldest = s, segment, oldest
	return s, nil
}

// choose returns a slot for the next segment, its number, and the lowest one that is not free then.
func (j *Journal) choose() (s *slot, segment, oldest uint64, err error) {
	for {
		j.mu.Lock()
		s, segment = j.unused(), j.last+1
		j.next = s
		oldest = j.oldestNeeded(segment)
		j.mu.Unlock()
		if s != nil {
			return s, segment, oldest, nil
		}
		if err := j.Prepare(); err != nil {
			return nil, 0, 0, err
		}
	}
}

// oldestNeeded is the lowest segment that is live, or was when a Hold began, at most the last one.
// The caller holds j.mu.
func (j *Journal) oldestNeeded(last uint64) uint64 {
	last = j.oldestLive(last)
	for _, held := range j.holds {
		last = min(last, held)
	}
	return max(last, j.oldest)
}

// oldestLive is the lowest segment that has frames and is not free, at most the last one. The
// caller holds j.mu.
func (j *Journal) oldestLive(last uint64) uint64 {
	for _, s := range j.slots {
		if s.live && (s != j.current || s.end > openingLen) {
			last = min(last, s.segment)
		}
	}
	return last
}

// unused returns a slot that may be written over, or nil. A segment that the newest opening takes
// for needed stays, although it is free: were the next opening torn, it would be missed. The caller
// holds j.mu.
func (j *Journal) unused() *slot {
	if i := slices.IndexFunc(j.slots, j.isUnused()); i >= 0 {
		return j.slots[i]
	}
	return nil
}

func (j *Journal) isUnused() func(s *slot) bool {
	before := j.oldest
	for _, held := range j.holds {
		before = min(before, held)
	}
	return func(s *slot) bool { return !s.live && (s.segment == 0 || s.segment < before) }
}

// Prepare makes sure that there is a file for the next segment, so that no Append has to make it.
func (j *Journal) Prepare() error {
	j.making.Lock()
	defer j.making.Unlock()
	j.mu.Lock()
	there := j.unused() != nil
	j.mu.Unlock()
	if there {
		return nil
	}
	s, err := j.make()
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.slots = append(j.slots, s)
	return nil
}

// Trim removes free files, all but keep of them, or as many as can be removed.
func (j *Journal) Trim(keep int) {
	j.making.Lock() // a file keeps its name until it is gone
	defer j.making.Unlock()
	for _, s := range j.surplus(keep) {
		if j.FS.Remove(j.FS.PathJoin(j.Dir, s.name)) != nil {
			j.mu.Lock()
			j.slots = append(j.slots, s)
			j.mu.Unlock()
			continue
		}
		_ = s.file.Close() // nothing of it is needed
	}
}

// surplus takes free slots from the list, all but keep of them.
func (j *Journal) surplus(keep int) (surplus []*slot) {
	j.mu.Lock()
	defer j.mu.Unlock()
	unused := j.isUnused()
	j.slots = slices.DeleteFunc(j.slots, func(s *slot) bool {
		if s == j.next || !unused(s) {
			return false
		}
		keep--
		if keep < 0 {
			surplus = append(surplus, s)
		}
		return keep < 0
	})
	return surplus
}

// Closed lists the segments that are neither current nor free, the oldest first.
func (j *Journal) Closed() (segments []uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, s := range j.slots {
		if s.live && s != j.current {
			segments = append(segments, s.segment)
		}
	}
	slices.Sort(segments)
	return segments
}

// Free says that the frames of a segment are not needed any more. It must be the oldest one.
func (j *Journal) Free(segment uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.slotOf(segment).live = false
}

// Hold keeps all frames that are not free where they are, and those that come, until release is
// called.
func (j *Journal) Hold() (release func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.holdLocked(j.oldestLive(j.last))
}

// holdLocked keeps segments from one on. The caller holds j.mu.
func (j *Journal) holdLocked(segment uint64) (release func()) {
	j.holds = append(j.holds, segment)
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		i := slices.Index(j.holds, segment)
		j.holds = slices.Delete(j.holds, i, i+1)
	}
}

// slotOf returns the slot that has a segment. The caller holds j.mu.
func (j *Journal) slotOf(segment uint64) *slot {
	for _, s := range j.slots {
		if s.segment == segment {
			return s
		}
	}
	return nil
}

// Bytes is how many bytes Copy copies.
func (j *Journal) Bytes() (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, s := range j.slots {
		if s.segment >= j.oldest {
			n += s.end
		}
	}
	return n
}
