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
	if err := p.begin(ctx); err != nil {
		return Purged{}, err
	}
	for p.from < p.end || len(p.busy) > 0 {
		if err := ctx.Err(); err != nil {
			return p.done, err
		}
		if err := p.piece(ctx); err != nil {
			return p.done, err
		}
	}
	return p.done, nil
}

// A purge is a Purge under way: a walk over the slots that were there at its start.
type purge struct {
	*Scheduler
	topic     string
	from, end uint32   // slots that are not visited yet
	busy      []string // ids of visited tasks that somebody else was changing
	done      Purged
}

func (p *purge) begin(ctx context.Context) error {
	ctx, cancel := p.within(ctx)
	defer cancel()
	if err := p.waitReplayed(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.unlock()
	if p.ended {
		return ErrClosed
	}
	p.end = uint32(len(p.book.chunks) * chunkSlots)
	return nil
}

// piece cancels up to purgeAtOnce tasks, and waits until the ledger has forgotten
// them.
func (p *purge) piece(ctx context.Context) error {
	ctx, cancel := p.within(ctx)
	defer cancel()
	for shard := range p.terms.Shards {
		if err := p.writable(shard); err != nil {
			return err
		}
	}
	c := newCall(purgeAtOnce)
	sent, err := p.collect(ctx, c)
	p.mu.Lock()
	c.complete()
	p.unlock()
	// That an outcome is open weighs more than why no more was begun.
	if late := p.await(ctx, c); err == nil || errors.Is(late, ErrUnknown) {
		err = late
	}
	for _, answer := range p.answers(c)[:sent] {
		switch {
		case answer == nil:
			p.done.Cancelled++
		case err == nil:
			err = answer
		}
	}
	return err
}

// collect begins to cancel the tasks of a piece and returns how many. First come those
// that were busy before, for which it waits.
func (p *purge) collect(ctx context.Context, c *call) (sent int, err error) {
	for ; len(p.busy) > 0 && sent < purgeAtOnce; p.busy = p.busy[1:] {
		n, sl, err := p.acquire(ctx, p.busy[0])
		switch {
		case errors.Is(err, ErrNotFound), errors.Is(err, ErrDead):
			continue
		case err != nil:
			return sent, err
		}
		// It may have passed to another topic.
		if t, ok := p.topics[p.topic]; ok && sl.topic == t.number {
			sent += p.visitLocked(n, sl, c, sent)
		}
		p.unlock()
	}
	for p.from < p.end && sent <= purgeAtOnce-atOnce && len(p.busy) < purgeAtOnce {
		n, err := p.walk(c, sent)
		if sent += n; err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// walk visits the rest of a chunk of slots, or as much of it as is dealt with under one
// lock, and returns how many cancellations were sent.
func (p *purge) walk(c *call, first int) (sent int, err error) {
	p.mu.Lock()
	defer p.unlock()
	if p.ended {
		return 0, ErrClosed
	}
	t, ok := p.topics[p.topic]
	if !ok {
		p.from = p.end
		return 0, nil
	}
	for last := p.from - p.from%chunkSlots + chunkSlots; p.from < last && sent < atOnce; p.from++ {
		if sl := p.book.slot(p.from); sl.topic == t.number {
			sent += p.visitLocked(p.from, sl, c, first+sent)
		}
	}
	return sent, nil
}

// visitLocked sends the cancellation of a task, which is write i of the call, and
// returns how many it has sent: 1 or 0.
func (p *purge) visitLocked(n uint32, sl *slot, c *call, i int) int {
	switch sl.state {
	case pending, ready:
		p.disarmLocked(sl)
		p.setLocked(sl, cancelling)
		c.expect(i, n)
		p.writeLocked(write{slot: n, op: opCancel, call: c, index: i})
		return 1
	case delivering:
		p.done.Delivering++
	case claiming, moving, cancelling:
		// It was there when the purge began, and may be pending again soon; that
		// somebody cancels it does not say that it works out.
		p.busy = append(p.busy, string(p.book.id(sl)))
	case vacant, creating, finishing, burying, requeuing, parking, checking:
		// Gone, going, or not there yet.
	}
	return 0
}
