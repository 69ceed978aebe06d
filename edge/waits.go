package edge

import (
	"cmp"
	"sync"
)

// MostWaiting bounds the calls that may wait at the same moment.
const MostWaiting = 1_000_000

// The bounds of a server that sets none.
const (
	usualWaiting           = 10_000
	usualWaitingOfOneToken = 5_000
)

// Waits counts the calls that wait for tasks, at all doors. The bounds of connections do not bound
// them, since one connection may carry many. It is safe for concurrent use.
type Waits struct {
	limit, perToken int

	mu      sync.Mutex     // guards everything below
	waiting int            // of all callers
	of      map[string]int // by token name; callers without one count in waiting only
}

// NewWaits returns a count that allows so many calls of all callers, and of one token, each from 1
// to MostWaiting. 0 stands for the usual bounds, 10,000 and 5,000.
func NewWaits(limit, perToken int) *Waits {
	return &Waits{limit: cmp.Or(limit, usualWaiting), perToken: cmp.Or(perToken, usualWaitingOfOneToken), of: make(map[string]int)}
}

// Begin takes a place for a call of a caller that waits; nil and Anyone have no token. If all
// places are taken, it returns the reason. Otherwise End must be called.
func (w *Waits) Begin(c *Caller) (full string) {
	token := nameOf(c)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.waiting >= w.limit:
		return "too many calls wait for tasks (max_waiting)"
	case token != "" && w.of[token] >= w.perToken:
		return "too many calls of this token wait for tasks (max_waiting_per_token)"
	}
	w.waiting++
	if token != "" {
		w.of[token]++
	}
	return ""
}

// nameOf returns the name of a caller's token; "" if it has none.
func nameOf(c *Caller) string {
	if c == nil || c == Anyone {
		return ""
	}
	return c.Name
}

// End frees a place.
func (w *Waits) End(c *Caller) {
	token := nameOf(c)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting--
	if token == "" {
		return
	}
	if w.of[token]--; w.of[token] == 0 {
		delete(w.of, token)
	}
}

// Count returns how many calls wait, and of how many tokens they are.
func (w *Waits) Count() (waiting, tokens int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiting, len(w.of)
}
