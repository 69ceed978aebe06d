package diskledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lapsehq/lapse/recovery/diskledger/internal/journal"
)

// An extent is how large the journal becomes. A crash leaves it to be read.
type extent struct {
	segment int // bytes
	// kept is how many closed segments are kept for their records to end. Together more are moved:
	// the store sorts what comes at once. When there are most, writes wait for the store.
	kept, together, most int
}

var usual = extent{segment: 8 << 20, kept: 6, together: 4, most: 14}

// write makes changes durable, and then takes them. After an error the outcome is open.
func (e *engine) write(fill func(d *draft)) error {
	e.writing.Lock()
	defer e.writing.Unlock()
	e.draft.reset()
	if fill(&e.draft); e.draft.empty() {
		return nil
	}
	at, begins, err := e.journal.Append(e.draft.frame)
	if err == nil && e.fence.broken() == nil {
		err = e.take(at, e.draft.frame, e.draft.repeats)
	}
	if cap(e.draft.frame) > 2*maxBytes {
		e.draft.frame = nil
	}
	if begins && err == nil {
		err = e.makeRoom()
	}
	return e.judge("writing to the store", err)
}

// makeRoom has closed segments retired. If the store is so far behind that the journal would grow
// without bound, the caller does that itself.
func (e *engine) makeRoom() error {
	select {
	case e.full <- struct{}{}:
	default:
	}
	if len(e.journal.Closed()) < e.extent.most {
		return nil
	}
	return e.retireTo(context.Background(), e.extent.kept, e.extent.together)
}

// judge cuts the fence because of an error, and says why the answers of the engine are of no use.
func (e *engine) judge(what string, err error) error {
	if err != nil {
		e.fence.cut(err)
	}
	if err := e.fence.broken(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// take notes the changes of a frame that is durable. Pending records are young; what else there is,
// and what has to be removed from the store, the store gets at once, without a sync: the journal
// has it until the store has written it to a table. A frame that repeats may have been taken
// before, and the store may have its records.
func (e *engine) take(at journal.Place, frame []byte, repeats bool) error {
	var w *pebble.Batch
	var failed error
	e.young.mu.Lock()
	err := eachChange(frame, func(v verb, key, value []byte, offset int) {
		switch pending := key[0] == kindPending; {
		case pending && v != verbRemove:
			e.young.putLocked(key, value, at, offset, v == verbPutAnew && !repeats)
			return
		case pending && !e.young.removeLocked(key):
			return
		}
		if w == nil {
			w = e.db.NewBatch()
		}
		if v == verbRemove {
			failed = errors.Join(failed, w.Delete(key, nil))
		} else {
			failed = errors.Join(failed, w.Set(key, value, nil))
		}
	})
	e.young.mu.Unlock()
	return errors.Join(err, failed, e.give(w))
}

// give applies a batch to the store, if there is one.
func (e *engine) give(w *pebble.Batch) error {
	if w == nil {
		return nil
	}
	err := errors.Join(e.db.Apply(w, pebble.NoSync), w.Close())
	e.unflushed.Store(true) // not before: the flush that a retiring begins would miss it
	return err
}

// retire moves to the store what is left of segments, the oldest ones, and frees them.
func (e *engine) retire(ctx context.Context, segments []uint64) error {
	if err := e.move(segments); err != nil {
		return err
	}
	if err := e.flushGiven(ctx); err != nil {
		return err
	}
	for _, segment := range segments {
		e.journal.Free(segment)
	}
	return nil
}

func (e *engine) move(segments []uint64) error {
	w, err := e.leftOf(segments)
	if err == nil {
		err = e.give(w)
	}
	if err != nil {
		return err
	}
	return e.forgetMoved()
}

// keyRoom is about what a record takes in a batch beside its value.
const keyRoom = 64

// leftOf begins a move. It returns what is left of segments, or nil.
func (e *engine) leftOf(segments []uint64) (w *pebble.Batch, err error) {
	records, bytes := e.young.beginMove(segments[len(segments)-1])
	if records == 0 {
		return nil, nil
	}
	w = e.db.NewBatchWithSize(bytes + records*keyRoom)
	for _, segment := range segments {
		failed := e.journal.Each(segment, func(at journal.Place, frame []byte) error {
			return eachChange(frame, func(v verb, key, value []byte, offset int) {
				if v != verbRemove && key[0] == kindPending && e.young.isAt(e.young.hash(key), segment, at.Offset+offset) {
					err = errors.Join(err, w.Set(key, value, nil))
				}
			})
		})
		err = errors.Join(err, failed)
	}
	return w, err
}

// forgetMoved ends a move: what was removed meanwhile, or written over, the store has to remove as
// well.
func (e *engine) forgetMoved() error {
	var w *pebble.Batch
	var failed error
	for _, key := range e.young.endMove() {
		if w == nil {
			w = e.db.NewBatch()
		}
		failed = errors.Join(failed, w.Delete(key, nil))
	}
	if err := errors.Join(failed, e.give(w)); err != nil {
		return err
	}
	e.young.forgetLate()
	return nil
}

// retireTo retires the oldest segments, if there are more closed ones than kept by at least that
// many. Then it goes on until only kept ones are left.
func (e *engine) retireTo(ctx context.Context, kept, together int) error {
	e.retiring.Lock()
	defer e.retiring.Unlock()
	closed := e.journal.Closed()
	for n := len(closed) - kept; n >= together && n > 0; n = len(closed) - kept {
		if err := ctx.Err(); err != nil {
			return err
		}
		n = min(n, e.extent.together)
		if err := e.retire(ctx, closed[:n]); err != nil {
			if ctx.Err() == nil {
				e.fence.cut(err)
			}
			return err
		}
		if err := e.fence.broken(); err != nil {
			return err
		}
		closed = closed[n:]
	}
	// A long backup has made more. Those that stay take what ends on a disk that is full.
	e.journal.Trim(e.extent.most - e.extent.kept)
	return nil
}

// settle moves to the store whatever is young, and leaves nothing of the journal to be read.
func (e *engine) settle(ctx context.Context) error {
	if err := e.beginSegment(); err != nil {
		return err
	}
	if err := e.retireTo(ctx, 0, 1); err != nil {
		return err
	}
	return e.beginSegment()
}

func (e *engine) beginSegment() error {
	e.writing.Lock()
	defer e.writing.Unlock()
	return e.judge("writing to the store", e.journal.Begin())
}

// keepYoung makes the files that the journal needs, and retires segments, until ctx ends or the
// fence is cut.
func (e *engine) keepYoung(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.full:
		}
		if e.judge("the journal", e.journal.Prepare()) != nil || e.retireTo(ctx, e.extent.kept, e.extent.together) != nil {
			return
		}
	}
}

// flushGiven writes what the store was given to tables.
func (e *engine) flushGiven(ctx context.Context) error {
	if !e.unflushed.Swap(false) {
		return nil
	}
	err := e.flushNow(ctx)
	if err != nil {
		e.unflushed.Store(true)
	}
	return err
}

// flushNow writes the memtable to a table.
func (e *engine) flushNow(ctx context.Context) error {
	flushed, err := e.db.AsyncFlush()
	if err != nil {
		return err
	}
	select {
	case <-flushed:
		return e.fence.broken()
	case <-e.fence.tripped:
		return e.fence.broken()
	case <-ctx.Done():
		return ctx.Err()
	}
}
