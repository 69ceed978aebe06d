package diskledger

import (
	"context"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lapsehq/lapse/recovery"
)

// Apply implements recovery.Ledger.
func (l *Ledger) Apply(ctx context.Context, _ int, b *recovery.Batch) error {
	if b.Len() == 0 {
		return ctx.Err()
	}
	e, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer e.users.Done()

	w := e.db.NewBatch()
	removed := int64(0)
	for i := range b.Len() {
		c := b.At(i)
		if c.From.Place != recovery.Nowhere && c.From != c.To {
			err = remove(w, c)
			removed++
		}
		if err == nil {
			err = l.put(w, c)
		}
		if err != nil {
			return err
		}
	}
	l.removed.total.Add(removed)
	return e.commit(w)
}

// remove takes a record away from where it stood.
func remove(w *pebble.Batch, c recovery.Change) error {
	switch c.From.Place {
	case recovery.Pending:
		op := w.DeleteDeferred(1 + timeLen + len(c.ID))
		appendPending(op.Key[:0], c.From.At, c.ID)
		return op.Finish()
	case recovery.Dead:
		if err := w.Delete(appendDead(nil, c.ID), nil); err != nil {
			return err
		}
		return w.Delete(appendDeadRecord(nil, c.From.Label, c.From.At, c.ID), nil)
	}
	return nil
}

// put writes a record to where it shall stand.
func (l *Ledger) put(w *pebble.Batch, c recovery.Change) error {
	switch c.To.Place {
	case recovery.Pending:
		op := w.SetDeferred(1+timeLen+len(c.ID), len(c.Data))
		appendPending(op.Key[:0], c.To.At, c.ID)
		copy(op.Value, c.Data)
		return op.Finish()
	case recovery.Dead:
		l.buried.Store(true)
		if err := w.Set(appendDead(nil, c.ID), appendWhere(nil, c.To.At, c.To.Label), nil); err != nil {
			return err
		}
		return w.Set(appendDeadRecord(nil, c.To.Label, c.To.At, c.ID), c.Data, nil)
	}
	return nil
}

// Get implements recovery.Ledger.
func (l *Ledger) Get(ctx context.Context, _ int, refs []recovery.Ref, found func(i int, e recovery.Entry)) error {
	e, err := l.use(ctx)
	if err != nil {
		return err
	}
	r := reader{engine: e}
	var key []byte
	r.seekEach(kindPending, len(refs), func(i int) []byte {
		key = appendPending(key[:0], refs[i].Next, refs[i].ID)
		return key
	}, func(i int, value []byte) {
		r.keep(i, recovery.Entry{
			ID:   []byte(refs[i].ID),
			Spot: recovery.Spot{Place: recovery.Pending, At: refs[i].Next},
			Data: value,
		})
	})
	return r.handOut(found)
}
