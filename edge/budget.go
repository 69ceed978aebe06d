package edge

import (
	"sync"
	"sync/atomic"
)

// strangersPart is which part of a Budget callers have together who have not said who they are.
const strangersPart = 16

// A Budget bounds the bytes that callers have in memory for one purpose: of requests that are being
// read, or of answers that are not read yet.
//
//	who                                     has at most
//	all who have said who they are          the budget
//	one token                               half of it, or what it takes at once
//	all who have not said who they are      a sixteenth, besides the budget
//
// So no token can take what the others need, and no stranger what callers need. It is safe for
// concurrent use.
type Budget struct {
	most int64
	used atomic.Int64 // by all but strangers; changed under mu

	mu        sync.Mutex // guards everything below
	strangers int64
	of        byToken[int64]
}

// NewBudget returns a budget of so many bytes.
func NewBudget(most int64) *Budget { return &Budget{most: most, of: make(byToken[int64])} }

// Most returns the bytes that it allows.
func (b *Budget) Most() int64 { return b.most }

// Used returns the bytes that callers have who have said who they are, and the bytes of the others.
func (b *Budget) Used() (known, strangers int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used.Load(), b.strangers
}

// For returns a holding of a caller, which has nothing yet; nil: a stranger.
func (b *Budget) For(c *Caller) *Holding { return &Holding{of: b, caller: c} }

// changeLocked counts bytes of a caller. n may be negative.
func (b *Budget) changeLocked(c *Caller, n int64) {
	if c == nil {
		b.strangers += n
		return
	}
	b.used.Add(n)
	b.of.add(c, n)
}

// allowsLocked reports whether a caller may have so many bytes more.
func (b *Budget) allowsLocked(c *Caller, n int64) bool {
	if c == nil {
		return b.strangers+n <= b.most/strangersPart
	}
	had := b.of[nameOf(c)]
	return b.used.Load()+n <= b.most && (had == 0 || had+n <= b.most/2)
}

// A Holding is the bytes that one connection, or one request, has of a Budget. One goroutine at a
// time may use it.
type Holding struct {
	of     *Budget
	caller *Caller // nil: a stranger
	bytes  int64
}

// Take counts bytes. It reports false, and counts nothing, if the budget does not allow them.
func (h *Holding) Take(n int64) bool {
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	if !h.of.allowsLocked(h.caller, n) {
		return false
	}
	h.of.changeLocked(h.caller, n)
	h.bytes += n
	return true
}

// Add counts bytes that are there in any case. A negative number gives some of them back.
func (h *Holding) Add(n int64) {
	if n == 0 {
		return
	}
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	h.of.changeLocked(h.caller, n)
	h.bytes += n
}

// Bytes returns what it has.
func (h *Holding) Bytes() int64 { return h.bytes }

// Full reports whether the budget does not allow the caller another byte.
func (h *Holding) Full() bool { return h.fullBut(0) }

// Crowded is Full, if what this holding has did not count.
func (h *Holding) Crowded() bool { return h.fullBut(h.bytes) }

func (h *Holding) fullBut(bytes int64) bool {
	if h.caller != nil && h.of.used.Load() < h.of.most/2 {
		return false // no token has half of it
	}
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	return !h.of.allowsLocked(h.caller, 1-bytes)
}

// Free gives everything back.
func (h *Holding) Free() { h.Add(-h.bytes) }

// Pass counts the bytes as those of another caller from now on, as once a stranger has said who it
// is.
func (h *Holding) Pass(c *Caller) {
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	h.of.changeLocked(h.caller, -h.bytes)
	h.caller = c
	h.of.changeLocked(c, h.bytes)
}
