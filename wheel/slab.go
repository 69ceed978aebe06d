package wheel

// Timer names one armed entry: its generation in the upper half, its place in
// the slab in the lower. The zero Timer is never valid. A Timer whose entry has
// been emitted or cancelled is stale and stays so when its place is used again,
// until that one place has been used 2^32 times more.
type Timer uint64

// entry is one armed deadline: 32 bytes, two to a cache line, and no pointer,
// so that the collector skips whole chunks of them.
type entry struct {
	tick       uint64 // rounded due; see Wheel.ceil for the unit
	value      uint64
	next, prev uint32 // neighbours in the bucket; next also chains free entries
	generation uint32 // counts the uses of this place
	bucket     uint16 // where it is linked, or free
}

// free marks an entry that no bucket holds.
const free = ^uint16(0)

// Chunks are 128 KiB. They are never moved, so growing copies nothing, and
// never given back: a slab keeps room for as many entries as were ever armed at
// once.
const (
	chunkBits = 12
	chunkSize = 1 << chunkBits
)

// slab hands out places for entries. Place 0 is never handed out: a link of 0
// means that there is none.
type slab struct {
	chunks []*[chunkSize]entry
	used   uint32 // places ever handed out, place 0 included
	free   uint32 // head of the chain of free places
}

func (s *slab) at(i uint32) *entry {
	return &s.chunks[i>>chunkBits][i&(chunkSize-1)]
}

// get hands out a place. The latest one freed comes first: it is still cached.
func (s *slab) get() (uint32, *entry) {
	if i := s.free; i != 0 {
		e := s.at(i)
		s.free = e.next
		return i, e
	}
	if s.used == 0 {
		s.used = 1
	}
	if int(s.used>>chunkBits) == len(s.chunks) {
		s.grow()
	}
	i := s.used
	s.used++
	return i, s.at(i)
}

func (s *slab) grow() {
	if len(s.chunks) == 1<<(32-chunkBits) {
		panic("wheel: more than 2^32 entries")
	}
	s.chunks = append(s.chunks, new([chunkSize]entry))
}

// put takes a place back and makes every Timer that names it stale.
func (s *slab) put(i uint32, e *entry) {
	e.generation++
	e.bucket = free
	e.next = s.free
	s.free = i
}

// timer names the entry at place i.
func (e *entry) timer(i uint32) Timer {
	return Timer(e.generation)<<32 | Timer(i)
}

// find returns the entry that t names, unless t is stale or was never made.
func (s *slab) find(t Timer) (uint32, *entry, bool) {
	i := uint32(t)
	if i == 0 || i >= s.used {
		return 0, nil, false
	}
	e := s.at(i)
	return i, e, e.generation == uint32(t>>32) && e.bucket != free
}
