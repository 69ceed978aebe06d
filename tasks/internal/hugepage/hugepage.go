package hugepage

import (
	"reflect"
	"slices"
	"sync"
)

const (
	// blockSize is the size of a huge page. Where the kernel has others, nothing is done.
	blockSize = 2 << 20
	// enough is how much of a block must be in use. The rest is that of other owners, or free.
	enough = blockSize * 3 / 4
	// fewest is of how many blocks something must be in use before one is collapsed: less memory is
	// looked at in no time, and a copy of it costs more than it gains.
	fewest = 64
	// mostWaiting bounds the blocks that wait to be collapsed: 64 GiB of memory.
	mostWaiting = 32 << 10
	// mostTries is how often a block is tried that the kernel cannot collapse at the moment.
	mostTries = 3
	// hopeless is after how many refusals, and no success, the kernel is asked no more.
	hopeless = 16
)

// A Piece is memory: its address, and how many of its bytes are in use from now on; below zero, are
// in use no longer.
type Piece struct {
	Address uintptr
	Bytes   int
}

// Of returns the memory of a slice, up to its capacity.
func Of[T any](s []T) Piece {
	return Piece{reflect.ValueOf(s).Pointer(), cap(s) * int(reflect.TypeFor[T]().Size())}
}

// Gone returns the piece as one that is in use no longer.
func (p Piece) Gone() Piece { return Piece{p.Address, -p.Bytes} }

// A Collapser collapses blocks of memory that is in use. Its zero value is ready. It is safe for
// concurrent use.
type Collapser struct {
	mu       sync.Mutex // guards what follows
	collapse func(block uintptr) error
	begun    bool
	fewest   int
	counts   Counts
	blocks   map[uintptr]*block // those of which something is in use
	waiting  []uintptr          // blocks that are to be collapsed; some may be in use no longer
}

// Counts are what a Collapser has done.
type Counts struct {
	Collapsed, Refused int64 // blocks
	Off                bool  // the kernel cannot do it, or must not
}

type block struct {
	used  int // bytes
	tries int
	state state
}

type state uint8

const (
	small   state = iota // too little is in use
	waiting              // it is among those that are to be collapsed
	tried                // it was collapsed, or cannot be
)

// Note takes changes of what is in use, in their order.
func (c *Collapser) Note(pieces []Piece) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(pieces) == 0 || !c.canLocked() {
		return
	}
	for _, p := range pieces {
		sign, size := 1, p.Bytes
		if size < 0 {
			sign, size = -1, -size
		}
		for from, end := p.Address, p.Address+uintptr(size); from < end; {
			start := from &^ (blockSize - 1)
			to := min(start+blockSize, end)
			c.useLocked(start, sign*int(to-from))
			from = to
		}
	}
}

// canLocked reports whether blocks can be collapsed.
func (c *Collapser) canLocked() bool {
	if !c.begun {
		c.begun, c.fewest, c.counts.Off, c.collapse, c.blocks = true, fewest, !allowed(), collapse, make(map[uintptr]*block)
	}
	return !c.counts.Off
}

// useLocked counts bytes of a block that are in use, or no longer.
func (c *Collapser) useLocked(start uintptr, bytes int) {
	b := c.blocks[start]
	if b == nil {
		b = new(block)
		c.blocks[start] = b
	}
	b.used += bytes
	switch {
	case b.used <= 0:
		delete(c.blocks, start)
	case b.used < enough:
		b.state, b.tries = small, 0
	case b.state == small && len(c.waiting) < mostWaiting:
		b.state = waiting
		c.waiting = append(c.waiting, start)
	}
}

// Collapse collapses a block. It reports false when there is none to go on with now: none waits, or
// little memory is in use, or the kernel has no memory for one, and to make room takes it long.
func (c *Collapser) Collapse() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.blocks) < c.fewest {
		// What waits is noted once. A block that has come and gone has left its place behind.
		slices.Sort(c.waiting)
		c.waiting = slices.DeleteFunc(slices.Compact(c.waiting), func(start uintptr) bool {
			return c.blocks[start] == nil || c.blocks[start].state != waiting
		})
		return false
	}
	for len(c.waiting) > 0 {
		start := c.waiting[0]
		if c.waiting = c.waiting[1:]; len(c.waiting) == 0 {
			c.waiting = nil
		}
		if b := c.blocks[start]; b != nil && b.state == waiting {
			return c.collapseLocked(start, b)
		}
	}
	return false
}

func (c *Collapser) collapseLocked(start uintptr, b *block) bool {
	b.state = tried
	err := c.collapse(start)
	if err == nil {
		c.counts.Collapsed++
		return true
	}
	if c.counts.Refused++; c.counts.Refused >= hopeless && c.counts.Collapsed == 0 {
		c.counts.Off, c.waiting, c.blocks = true, nil, nil
		return false
	}
	full, passing := kindOf(err)
	if b.tries++; passing && b.tries < mostTries {
		b.state = waiting
		c.waiting = append(c.waiting, start)
	}
	return !full
}

// Counts returns what was done.
func (c *Collapser) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts
}
