package main

import "sync"

// A baton is held by one side of a pair at a time: by that which may run. The other waits for it,
// between two of its rounds.
type baton struct {
	mu     sync.Mutex
	passed sync.Cond
	holder int
	ended  [2]bool
}

// newBaton makes a baton that a side holds.
func newBaton(first int) *baton {
	b := &baton{holder: first}
	b.passed.L = &b.mu
	return b
}

// await returns when a side has the baton.
func (b *baton) await(side int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.awaitLocked(side)
}

// yield gives it to the other side, and returns when it is back: at once, if the other has ended.
func (b *baton) yield(side int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.passLocked(1 - side)
	b.awaitLocked(side)
}

// end gives it to the other side for good.
func (b *baton) end(side int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended[side] = true
	b.passLocked(1 - side)
}

func (b *baton) passLocked(to int) {
	if !b.ended[to] {
		b.holder = to
		b.passed.Broadcast()
	}
}

func (b *baton) awaitLocked(side int) {
	for b.holder != side {
		b.passed.Wait()
	}
}
