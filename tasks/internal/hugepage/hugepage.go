package hugepage

import (
	"reflect"
	"sync"
)

const (
	// blockSize is the size of a huge page. Where the kernel has others, nothing is done.
	blockSize = 2 << 20
	// enough is how much of a block must be in use. The rest is that of other owners, or free.
	enough = blockSize * 3 / 4
	// mostWaiting bounds the blocks that wait to be collapsed: 64 GiB of memory.
	mostWaiting = 32 << 10
)

// A Piece is memory that is in use: its address and its size in bytes.
type Piece struct {
	Address uintptr
	Size    int
}

// Of returns the memory of a slice, up to its capacity.
func Of[T any](s []T) Piece {
	return Piece{reflect.ValueOf(s).Pointer(), cap(s) * int(reflect.TypeFor[T]().Size())}
}

// A Collapser collapses blocks of memory that is in use. Its zero value is ready. It is safe for
// concurrent use.
type Collapser struct {
	mu       sync.Mutex // guards what follows
	collapse func(block uintptr) error
	begun    bool
	off      bool            // the kernel cannot do it, or must not
	used     map[uintptr]int // bytes in use of each block of which there are not enough
	waiting  []uintptr       // blocks that are to be collapsed

	done, refused int64
}

// Add says that memory is in use from now on.
func (c *Collapser) Add(pieces []Piece) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(pieces) == 0 || !c.canLocked() {
		return
	}
	for _, p := range pieces {
		for from, end := p.Address, p.Address+uintptr(p.Size); from < end; {
			block := from &^ (blockSize - 1)
			to := min(block+blockSize, end)
			c.useLocked(block, int(to-from))
			from = to
		}
	}
}

// canLocked reports whether blocks can be collapsed.
func (c *Collapser) canLocked() bool {
	if !c.begun {
		c.begun, c.off, c.collapse, c.used = true, !allowed(), collapse, make(map[uintptr]int)
	}
	return !c.off
}

// useLocked counts bytes of a block that are in use.
func (c *Collapser) useLocked(block uintptr, bytes int) {
	switch bytes += c.used[block]; {
	case bytes < enough:
		c.used[block] = bytes
	case len(c.waiting) < mostWaiting:
		delete(c.used, block)
		c.waiting = append(c.waiting, block)
	}
}

// Collapse collapses a block, which takes up to a millisecond, and reports whether there was one.
// An error says that the kernel has refused: it has no huge page to give, or cannot do it. The
// block stays as it is. To make room takes the kernel long, so the next one should be tried later.
func (c *Collapser) Collapse() (found bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) == 0 {
		return false, nil
	}
	block := c.waiting[0]
	if c.waiting = c.waiting[1:]; len(c.waiting) == 0 {
		c.waiting = nil
	}
	if err = c.collapse(block); err == nil {
		c.done++
		return true, nil
	}
	c.refused++
	if unsupported(err) {
		c.off, c.waiting, c.used = true, nil, nil
	}
	return true, err
}

// Counts returns how many blocks were collapsed, and how many the kernel has refused.
func (c *Collapser) Counts() (done, refused int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done, c.refused
}
