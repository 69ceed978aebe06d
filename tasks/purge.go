package tasks

import (
	"context"
	"errors"
)

// Purged counts what a Purge has done.
type Purged struct {
	Cancelled  int // tasks that the ledger has forgotten: they are never delivered (again)
	Delivering int // tasks that were being delivered, and are left to their receivers
}

// purgeAtOnce bounds how many changes of one purge wait for the ledger.
const purgeAtOnce = 2048

// Purge cancels every pending and ready task of a topic, as Cancel would, a piece
// at a time: others get the lock in between, and no more than a piece waits for the
// ledger. Tasks that are being delivered are left and counted; the dead are not
// touched. Tasks of the topic that are scheduled while it runs may be cancelled or
// stay. Purged is always right about what was done before an error; repeating the
// call does the rest.
//
// It waits for the end of replay, since a task that was not read yet would survive
// unnoticed. Errors: ErrInvalid, ErrReplaying, ErrUnavailable, ErrUnknown, ErrClosed,
// or why ctx has ended. After ErrUnknown up to a piece more may be cancelled; none of
// it is delivered until the ledger has answered.
func (s *Scheduler) Purge(ctx context.Context, topic string) (Purged, error) {
	if !validName(topic) {
		return Purged{}, &InvalidError{Fields: []FieldError{{"topic", nameProblem}}}
	}
	p := purge{Scheduler: s, topic: topic}
	err := p.run(ctx)
	return Purged{Cancelled: p.cancelled, Delivering: p.delivering}, err
}

// A purge cancels all tasks of a topic, or of a group, that can be cancelled; or it kills
// them.
type purge struct {
	*Scheduler
	topic, group string // the one that is empty is not asked for
	kill         bool   // they become dead instead

	walk       *walk
	busy       []string // ids of visited tasks that somebody else was changing
	cancelled  int
	delivering int
	left       []string // ids of the first of those that were being delivered, up to keep
	keep       int
}

func (p *purge) run(ctx context.Context) error {
	if err := p.begin(ctx); err != nil {
		return err
	}
	defer p.walk.leave()
	for !p.walk.over || len(p.busy) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := p.piece(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (p *purge) begin(ctx context.Context) error {
	ctx, cancel := p.within(ctx)
	defer cancel()
	if err := p.waitReplayed(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.unlock()
	switch {
	case p.ended:
		return ErrClosed
	case p.unsure():
		return errUnsure
	}
	p.walk = p.walkLocked(p.topic, p.group)
	return nil
}

// piece cancels up to purgeAtOnce tasks, and waits until the ledger has forgotten
// them.
func (p *purge) piece(ctx context.Context) error {
	ctx, cancel := p.within(ctx)
	defer cancel()
	c := newCall(0)
	if p.kill {
		c.phase.Store(sent) // a death is never taken back
	}
	err := p.collect(ctx, c)
	p.mu.Lock()
	c.complete()
	p.unlock()
	// That an outcome is open weighs more than why no more was begun.
	if late := p.await(ctx, c); err == nil || errors.Is(late, ErrUnknown) {
		err = late
	}
	for _, answer := range p.answers(c) {
		switch {
		case answer == nil:
			p.cancelled++
		case err == nil:
			err = answer
		}
	}
	return err
}

// collect begins to cancel the tasks of a piece. First come those that were busy before,
// for which it waits.
func (p *purge) collect(ctx context.Context, c *call) error {
	sent := 0
	for ; len(p.busy) > 0 && sent < purgeAtOnce; p.busy = p.busy[1:] {
		n, sl, err := p.acquire(ctx, p.busy[0])
		switch {
		case errors.Is(err, ErrNotFound), errors.Is(err, ErrDead):
			continue
		case err != nil:
			return err
		}
		if p.belongsLocked(sl) {
			sent, err = p.visitLocked(n, sl, c, sent)
		}
		if p.unlock(); err != nil {
			return err
		}
	}
	for !p.walk.over && sent <= purgeAtOnce-atOnce && len(p.busy) < purgeAtOnce {
		n, err := p.some(c)
		if sent += n; err != nil {
			return err
		}
	}
	return nil
}

// some visits the next tasks, as many as are dealt with under one lock, and returns how
// many cancellations were sent.
func (p *purge) some(c *call) (sent int, err error) {
	p.mu.Lock()
	defer p.unlock()
	if p.ended {
		return 0, ErrClosed
	}
	for n, sl := range p.walk.pieceLocked() {
		if sent, err = p.visitLocked(n, sl, c, sent); err != nil || sent == atOnce {
			break
		}
	}
	return sent, err
}

// belongsLocked tells whether a task that was waited for is still one to be cancelled: it
// may have passed to another topic or group.
func (p *purge) belongsLocked(sl *slot) bool {
	if p.group != "" {
		return string(p.book.group(sl)) == p.group
	}
	t, ok := p.topics[p.topic]
	return ok && sl.topic == t.number
}

// visitLocked sends the cancellation of a task if it can be cancelled, and returns how
// many have been sent now.
func (p *purge) visitLocked(n uint32, sl *slot, c *call, sent int) (int, error) {
	switch sl.state {
	case pending, ready:
		if err := p.writable(int(sl.shard)); err != nil {
			return sent, err
		}
		if sent++; p.kill {
			p.killLocked(n, sl, c)
			break
		}
		p.disarmLocked(sl)
		p.setLocked(sl, cancelling)
		p.writeLocked(write{slot: n, op: opCancel, call: c, index: c.join(n)})
	case delivering:
		if p.delivering++; p.delivering <= p.keep {
			p.left = append(p.left, string(p.book.id(sl)))
		}
	case claiming, moving, cancelling:
		// It was there when the purge began, and may be pending again soon; that
		// somebody cancels it does not say that it works out.
		p.busy = append(p.busy, string(p.book.id(sl)))
	case vacant, creating, finishing, burying, requeuing, parking, checking:
		// Gone, going, or not there yet.
	}
	return sent, nil
}
