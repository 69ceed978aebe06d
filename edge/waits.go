package edge

import (
	"cmp"
	"errors"
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
type Waits struct{ places *Places }

// NewWaits returns a count that allows so many calls of all callers, and of one token, each from 1
// to MostWaiting. 0 stands for the usual bounds, 10,000 and 5,000.
func NewWaits(limit, perToken int) *Waits {
	return &Waits{NewPlaces(cmp.Or(limit, usualWaiting), cmp.Or(perToken, usualWaitingOfOneToken))}
}

// Begin takes a place for a call of a caller. If all places are taken, it returns the reason.
// Otherwise End must be called.
func (w *Waits) Begin(c *Caller) (full string) {
	switch err := w.places.Begin(c); {
	case err == nil:
		return ""
	case errors.Is(err, ErrTokenFull):
		return "too many calls of this token wait for tasks (max_waiting_per_token, or half of max_connections)"
	}
	return "too many calls wait for tasks (max_waiting)"
}

// End frees a place.
func (w *Waits) End(c *Caller) { w.places.End(c) }

// Count returns how many calls wait, and of how many tokens they are.
func (w *Waits) Count() (waiting, tokens int) { return w.places.Count() }
