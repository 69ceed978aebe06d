package recovery

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"
)

// A lone caller writes its change itself, where the lane's goroutine would only be woken to do so,
// and would then wake the caller. It carries one batch, whatever has joined that by then, and hands
// the rest to the lane's goroutine: what has gathered meanwhile, and a batch that was not answered.

// carryRoom is how much time a caller must have left to carry a batch: as long as a ledger takes at
// most to find that a server does not answer.
const carryRoom = time.Second

// SubmitCarry is Submit for a caller that is about to wait for the outcome. It reports whether the
// caller has to call Carry next, without locks: nothing else is under way, and nothing is
// written until then.
func (c *Committer[T]) SubmitCarry(shard int, ch Change, tag T) bool {
	return (*c.lanes.Load())[shard].submit([]Change{ch}, []T{tag}, true)
}

// Carry writes the batch of a change for which SubmitCarry has returned true, on the caller's
// goroutine, which also calls Done. It returns after that, or when the batch is the lane's: at the
// latest soon after the deadline of ctx. The end of ctx for another reason does not end the write.
// Without a deadline, or with less than a second left, the lane writes the batch.
func (c *Committer[T]) Carry(ctx context.Context, shard int) {
	(*c.lanes.Load())[shard].carry(ctx)
}

// carriesLocked makes the caller the lane's writer, if nothing is under way, and reports whether it
// did.
func (l *lane[T]) carriesLocked() bool {
	if !l.cfg.Terms.Prompt || l.writer != noWriter || l.writing.Load() > 0 || l.closing || l.final != nil {
		return false
	}
	l.passLocked(carrier)
	return true
}

func (l *lane[T]) carry(ctx context.Context) {
	defer l.putDown()
	deadline, ok := ctx.Deadline()
	if !ok || time.Until(deadline) < carryRoom || l.ctx.Err() != nil || !l.tryTurn() {
		return
	}
	l.mu.Lock()
	l.since = time.Now()
	l.mu.Unlock()
	ctx, cancel := context.WithDeadline(l.ctx, deadline)
	defer cancel()
	l.send(ctx)
	if l.current.err == nil {
		l.finish()
		return
	}
	l.current.open = true
	l.endTurn()
}

// putDown gives what is left to the lane's goroutine.
func (l *lane[T]) putDown() {
	if p := recover(); p != nil {
		// A server of HTTP recovers the panics of its handlers; this one has to end the process.
		go panic(fmt.Sprintf("%v\n\n%s", p, debug.Stack()))
		select {}
	}
	l.mu.Lock()
	rest := len(l.queue) > 0 || l.current.open || l.closing
	if rest {
		l.passLocked(ownWriter)
	} else {
		l.passLocked(noWriter)
	}
	l.mu.Unlock()
	if rest {
		l.signal()
	}
}

// tryTurn is beginTurn if that does not have to wait.
func (l *lane[T]) tryTurn() bool {
	if l.turns == nil {
		return true
	}
	select {
	case l.turns <- struct{}{}:
		return true
	default:
		return false
	}
}
