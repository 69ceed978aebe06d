package diskledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lapsehq/lapse/recovery"
)

// lookForDead finds out whether there are dead records at all.
func (l *Ledger) lookForDead(e *engine) error {
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: []byte{kindDead}, UpperBound: []byte{kindDead + 1}})
	if err != nil {
		return fmt.Errorf("reading the store: %w", err)
	}
	l.buried.Store(it.First())
	return errors.Join(it.Error(), it.Close())
}

// GetDead implements recovery.Ledger.
func (l *Ledger) GetDead(ctx context.Context, ids []string, found func(i int, e recovery.Entry)) error {
	e, err := l.use(ctx)
	if err != nil {
		return err
	}
	r := reader{engine: e}
	if !l.buried.Load() {
		return r.handOut(found)
	}
	var key []byte
	r.seekEach(kindDead, len(ids), func(i int) []byte {
		key = appendDead(key[:0], ids[i])
		return key
	}, func(i int, where []byte) { r.keepDead(i, ids[i], where) })
	return r.handOut(found)
}

// keepDead reads the dead record of an id.
func (r *reader) keepDead(i int, id string, where []byte) {
	at, label, err := decodeWhere(where)
	if err != nil {
		r.err = err
		return
	}
	if r.get(appendDeadRecord(nil, label, at, id)) { // else it was removed in between
		r.keep(i, recovery.Entry{
			ID:   []byte(id),
			Spot: recovery.Spot{Place: recovery.Dead, At: at, Label: label},
			Data: r.value,
		})
	}
}

// ListDead implements recovery.Ledger.
func (l *Ledger) ListDead(ctx context.Context, label string, from recovery.Ref, visit func(e recovery.Entry) bool) error {
	var p page
	upper := []byte{kindDeadRecord + 1}
	switch {
	case label == "" && from != recovery.Ref{}:
		return errors.New("a list of the dead of all labels cannot be continued")
	case label == "":
		p.next = []byte{kindDeadRecord}
	case from == recovery.Ref{}:
		p.next = appendDeadLabel(nil, label)
		upper = after(p.next)
	default:
		p.next = append(appendDeadRecord(nil, label, from.Next, from.ID), 0)
		upper = after(appendDeadLabel(nil, label))
	}
	for !p.last {
		e, err := l.use(ctx)
		if err != nil {
			return err
		}
		err = p.read(e, e.db, upper)
		e.users.Done()
		if err != nil {
			return err
		}
		for i := range p.items {
			label, at, id, err := decodeDeadRecord(p.key(i))
			if err != nil {
				return err
			}
			spot := recovery.Spot{Place: recovery.Dead, At: at, Label: label}
			if !visit(recovery.Entry{ID: id, Spot: spot, Data: p.value(i)}) {
				return nil
			}
		}
	}
	return nil
}

// ScanDead implements recovery.DeadScanner. There is one shard.
func (l *Ledger) ScanDead(ctx context.Context, _ int, visit func(e recovery.Entry)) error {
	p := page{next: []byte{kindDead}}
	for !p.last {
		if err := ctx.Err(); err != nil {
			return err
		}
		e, err := l.use(ctx)
		if err != nil {
			return err
		}
		err = p.read(e, e.db, []byte{kindDead + 1})
		e.users.Done()
		if err != nil {
			return err
		}
		for i := range p.items {
			at, label, err := decodeWhere(p.value(i))
			if err != nil {
				return err
			}
			visit(recovery.Entry{ID: p.key(i)[1:], Spot: recovery.Spot{Place: recovery.Dead, At: at, Label: label}})
		}
	}
	return nil
}
