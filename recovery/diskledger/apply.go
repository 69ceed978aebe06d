package diskledger

import (
	"context"
	"fmt"
	"hash/maphash"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/diskledger/internal/journal"
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

	removed := int64(0)
	err = e.write(func(d *draft) {
		for i := range b.Len() {
			c := b.At(i)
			if c.From.Place != recovery.Nowhere && c.From != c.To {
				removed++
			}
			if c.To.Place == recovery.Dead {
				l.buried.Store(true)
			}
			d.change(c)
		}
		sum := maphash.Bytes(l.seed, d.frame[journal.HeaderLen:])
		d.repeats, l.sent = sum == l.sent, sum
	})
	l.removed.total.Add(removed)
	return err
}

// Get implements recovery.Ledger.
func (l *Ledger) Get(ctx context.Context, _ int, refs []recovery.Ref, found func(i int, e recovery.Entry)) error {
	e, err := l.use(ctx)
	if err != nil {
		return err
	}
	r := reader{engine: e}
	defer e.journal.Hold()()
	entry := func(i int, value []byte) recovery.Entry {
		return recovery.Entry{
			ID:   []byte(refs[i].ID),
			Spot: recovery.Spot{Place: recovery.Pending, At: refs[i].Next},
			Data: value,
		}
	}
	var key []byte
	var old []int
	for i := range refs {
		key = appendPending(key[:0], refs[i].Next, refs[i].ID)
		switch value, below, err := e.young.read(e.journal, key); {
		case err != nil:
			r.err = fmt.Errorf("reading the journal: %w", err)
		case value != nil:
			r.keep(i, entry(i, value))
		case below:
			old = append(old, i)
		}
	}
	r.seekEach(kindPending, len(old), func(i int) []byte {
		key = appendPending(key[:0], refs[old[i]].Next, refs[old[i]].ID)
		return key
	}, func(i int, value []byte) { r.keep(old[i], entry(old[i], value)) })
	return r.handOut(found)
}
