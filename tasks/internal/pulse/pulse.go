// Package pulse finds out whether an engine moves: whether its lock can be taken, its wheel fires,
// and its sweep goes on. A server that hangs there answers requests that need none of these, and
// seems to be well.
//
// It owns one goroutine at most, which waits for the parts one after the other. The engine hands in
// how. The ledger is no part, on purpose: while it does not answer, memory holds what could not be
// recorded, and a restart would lose it. Nothing can fail but the engine itself.
package pulse

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// A Pulse is the state of the check of one engine. Its zero value is ready for use.
type Pulse struct {
	sweeping atomic.Bool   // a sweep is under way
	steps    atomic.Uint64 // of the sweep and the wheel: a long sweep is no hung one

	mu    sync.Mutex // guards what follows
	round *round     // under way; nil if there is none
	ended bool       // no round begins any more
}

// A round is one look at all parts. It ends when each of them has moved.
type round struct {
	began time.Time
	part  atomic.Value // string: what it waits for
	over  chan struct{}
}

// poll is how often a round looks whether a sweep under way has come further.
const poll = 20 * time.Millisecond

// A Part is what an engine consists of: its name, and how to wait until it has moved. Wait returns
// at once when the engine has ended.
type Part struct {
	Name string
	Wait func()
}

// Step notes that the sweep or the wheel has come further.
func (p *Pulse) Step() { p.steps.Add(1) }

// Sweep calls sweep, which is watched meanwhile.
func (p *Pulse) Sweep(sweep func()) {
	p.sweeping.Store(true)
	sweep()
	p.sweeping.Store(false)
}

// Swept waits until the sweep that is under way is over or has come further, or until done.
func (p *Pulse) Swept(done <-chan struct{}) {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for before := p.steps.Load(); p.sweeping.Load() && p.steps.Load() == before; {
		select {
		case <-tick.C:
		case <-done:
			return
		}
	}
}

// Moving waits until each part has moved. It returns nil then, and after End, or a *task.StuckError
// when ctx ends. Callers share one round, so a hung engine has one waiting goroutine, however often
// it is asked.
func (p *Pulse) Moving(ctx context.Context, parts []Part) error {
	r := p.join(parts)
	if r == nil {
		return nil
	}
	select {
	case <-r.over:
		return nil
	case <-ctx.Done():
		return &task.StuckError{Part: r.part.Load().(string), For: time.Since(r.began)}
	}
}

// join returns the round under way, or begins one. It is nil after End.
func (p *Pulse) join(parts []Part) *round {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.round == nil && !p.ended {
		r := &round{began: time.Now(), over: make(chan struct{})}
		r.part.Store(parts[0].Name)
		p.round = r
		go func() {
			for _, part := range parts {
				r.part.Store(part.Name)
				part.Wait()
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			p.round = nil
			close(r.over)
		}()
	}
	return p.round
}

// End waits for the round under way until ctx ends, and lets none begin.
func (p *Pulse) End(ctx context.Context) {
	p.mu.Lock()
	p.ended = true
	r := p.round
	p.mu.Unlock()
	if r == nil {
		return
	}
	select {
	case <-r.over:
	case <-ctx.Done():
	}
}
