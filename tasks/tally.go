package tasks

import "sync/atomic"

// A Tally is a Way that counts what has become of attempts, by outcome, such as
// {"2xx": 10, "timeout": 1}. It is called for metrics, from any goroutine.
type Tally interface {
	Tally() map[string]int64
}

// A Tallier counts for a Tally. It may be used from any goroutine.
type Tallier[O ~int] struct {
	names  []string
	counts []atomic.Int64
}

// NewTallier makes a tallier of outcomes that are numbered as their names are: 0 and up.
func NewTallier[O ~int](names []string) *Tallier[O] {
	return &Tallier[O]{names, make([]atomic.Int64, len(names))}
}

// Count counts an attempt.
func (t *Tallier[O]) Count(o O) { t.counts[o].Add(1) }

// Tally implements Tally. All outcomes are always there.
func (t *Tallier[O]) Tally() map[string]int64 {
	all := make(map[string]int64, len(t.names))
	for i, name := range t.names {
		all[name] = t.counts[i].Load()
	}
	return all
}
