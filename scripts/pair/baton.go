package main

// A baton is held by one side of a pair at a time: by that which may run. The other waits for it,
// between two of its rounds.
type baton struct {
	given [2]chan struct{} // holds a token when it is that side's
	ended [2]chan struct{} // closed when that side needs it no more
}

// newBaton makes a baton that a side holds.
func newBaton(first int) *baton {
	b := &baton{}
	for side := range b.given {
		b.given[side], b.ended[side] = make(chan struct{}, 1), make(chan struct{})
	}
	b.given[first] <- struct{}{}
	return b
}

// await returns when a side has the baton.
func (b *baton) await(side int) {
	select {
	case <-b.given[side]:
	case <-b.ended[1-side]:
	}
}

// yield gives it to the other side, and returns when it is back: at once, if the other has ended.
func (b *baton) yield(side int) {
	select {
	case <-b.ended[1-side]:
	case b.given[1-side] <- struct{}{}:
		b.await(side)
	}
}

// end gives it to the other side for good.
func (b *baton) end(side int) { close(b.ended[side]) }
