package respapi

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/lapsehq/lapse/edge"
)

const (
	// turnWithin is how long a change waits for its turn.
	turnWithin = 5 * time.Second
	// turnStripes is how many keys can be changed at the same time at most.
	turnStripes = 1024
	// mostChained is how many drafts are written together, and chainedWithin the time after which
	// no more of them are run before the write: others may change the key meanwhile, and all wait.
	mostChained   = 128
	chainedWithin = 3 * time.Millisecond
)

// Turns make the clients of this node change a key one after the other. Drafts that wait for their
// turn with the same key make a chain: the first one runs them all, each on what the one before has
// made of the key, and writes the last value. So they wait for the ledger once.
type turns struct {
	seed    maphash.Seed
	within  time.Duration // chainedWithin
	stripes [turnStripes]stripe
}

// A stripe is a turn that some keys share.
type stripe struct {
	mu      sync.Mutex // guards everything below
	taken   bool
	waiting []*waiter // in their order
}

// A waiter waits for a turn.
type waiter struct {
	id     string // of the key
	draft  *draft // which may be one of a chain; nil: it may not
	plan   *plan  // of the draft
	caller *edge.Caller
	until  time.Time // how long it waits
	// called is closed when it has the turn, with the rest of its chain, or when another one has
	// run its draft.
	called chan struct{}
	chain  []*waiter
	ran    bool
	err    error // of its draft; once it ran
}

func newTurns() *turns { return &turns{seed: maphash.MakeSeed(), within: chainedWithin} }

func (t *turns) stripe(id string) *stripe {
	return &t.stripes[maphash.String(t.seed, id)%turnStripes]
}

// tryTake takes the turn of a task's changes if it is free.
func (t *turns) tryTake(id string) (done func(), ok bool) {
	s := t.stripe(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken {
		return nil, false
	}
	s.taken = true
	return s.leave, true
}

// takeAll waits for the turns of the changes of many tasks, and returns what ends them. It never
// waits for one that waits for it: all take the stripes in one order. Errors: as of enter.
func (t *turns) takeAll(ctx context.Context, ids []string) (done func(), err error) {
	numbers := make([]int, 0, len(ids))
	for _, id := range ids {
		numbers = append(numbers, int(maphash.String(t.seed, id)%turnStripes))
	}
	slices.Sort(numbers)
	numbers = slices.Compact(numbers)
	until, taken := time.Now().Add(turnWithin), 0
	done = func() {
		for _, n := range numbers[:taken] {
			t.stripes[n].leave()
		}
	}
	for ; taken < len(numbers); taken++ {
		if err := t.stripes[numbers[taken]].enter(ctx, &waiter{until: until}); err != nil {
			done()
			return nil, err
		}
	}
	return done, nil
}

// enter waits until a waiter has the turn, or another one has run its draft. Errors: errContended
// if it has waited for too long; why ctx has ended.
func (s *stripe) enter(ctx context.Context, w *waiter) error {
	s.mu.Lock()
	if !s.taken {
		s.taken = true
		s.mu.Unlock()
		return nil
	}
	w.called = make(chan struct{})
	s.waiting = append(s.waiting, w)
	s.mu.Unlock()
	timer := time.NewTimer(time.Until(w.until))
	defer timer.Stop()
	select {
	case <-w.called:
		return nil
	case <-ctx.Done():
	case <-timer.C:
	}
	for !s.withdraw(w) { // it is one of a chain, which may put it back into the line
		timer.Reset(chainedWithin)
		select {
		case <-w.called:
			return nil
		case <-timer.C:
		}
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return errContended
}

// withdraw takes a waiter out of the line. It reports false if it is not there any more.
func (s *stripe) withdraw(w *waiter) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.waiting, w)
	if i < 0 {
		return false
	}
	s.waiting = slices.Delete(s.waiting, i, i+1)
	return true
}

// leave gives the turn to the next one in the line, with those behind it that make a chain.
func (s *stripe) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		s.taken = false
		s.waiting = nil
		return
	}
	first, n := s.waiting[0], 1
	for n < len(s.waiting) && n < mostChained && first.chains(s.waiting[n]) {
		n++
	}
	first.chain = slices.Clone(s.waiting[1:n])
	s.waiting = slices.Delete(s.waiting, 0, n)
	close(first.called)
}

// chains reports whether two waiters can be of one chain: they are about the same key, and their
// clients have shown the same token.
func (w *waiter) chains(next *waiter) bool {
	return w.draft != nil && next.draft != nil && w.id == next.id && w.caller == next.caller
}

// putBack puts those of a chain from number n on back to the front of the line.
func (s *stripe) putBack(w *waiter, n int) {
	if n >= len(w.chain) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, next := range w.chain[n:] {
		next.err = nil
	}
	s.waiting = slices.Concat(w.chain[n:], s.waiting)
	w.chain = w.chain[:n]
}

// release ends the wait of the rest of a chain. err is that of all that have none yet.
func (w *waiter) release(err error) {
	for _, next := range w.chain {
		if next.err == nil {
			next.err = err
		}
		next.ran = true
		close(next.called)
	}
	w.chain = nil
}
