package diskledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lapsehq/lapse/recovery"
)

// Keep implements recovery.Archive. The rows are a frame of the journal, as a setting is. Once a
// period, what is too old is deleted by its range, in the store alone: a replay of the journal may
// bring some of it back, until the next time.
func (l *Ledger) Keep(ctx context.Context, s recovery.Series, now time.Time, rows []recovery.Row) error {
	rows, err := s.Keepable(now, rows)
	if err != nil {
		return err
	}
	if err := l.Condition(); err != nil {
		return fmt.Errorf("the archive is not written: %w", err)
	}
	e, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer e.users.Done()
	if err := e.forgetRows(s, now); err != nil {
		return err
	}
	return e.write(func(d *draft) {
		for i := range rows {
			r := &rows[i]
			d.put(appendRow(nil, s, s.Begins(r.At), r.Part, r.At.UnixMilli(), r.Name), r.Value)
		}
	})
}

// forgetRows deletes the periods of a series that are too old, unless it has done so since the
// present one began.
func (e *engine) forgetRows(s recovery.Series, now time.Time) error {
	e.mu.Lock()
	done := e.forgotten[s.Code]
	e.mu.Unlock()
	if done == s.Begins(s.Oldest(now)) {
		return nil
	}
	newest, there, err := e.newestPeriod(s)
	oldest := s.Begins(s.Forgets(newest, now))
	if err != nil || !there || done == oldest {
		return err
	}
	w := e.db.NewBatch()
	first := []byte{kindRow, s.Code}
	if err := errors.Join(w.DeleteRange(first, appendTime(first, oldest), nil), e.give(w)); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.forgotten == nil {
		e.forgotten = map[byte]int64{}
	}
	e.forgotten[s.Code] = oldest
	return nil
}

// newestPeriod returns when the newest period of a series began; false if it has no rows.
func (e *engine) newestPeriod(s recovery.Series) (began time.Time, there bool, err error) {
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: []byte{kindRow, s.Code}, UpperBound: []byte{kindRow, s.Code + 1}})
	if err != nil {
		return began, false, fmt.Errorf("reading the store: %w", err)
	}
	if there = it.Last() && len(it.Key()) >= 2+timeLen; there {
		began = time.Unix(decodeTime(it.Key()[2:]), 0)
	}
	if err := errors.Join(it.Error(), it.Close(), e.fence.broken()); err != nil {
		return began, false, fmt.Errorf("reading the store: %w", err)
	}
	return began, there, nil
}

// Rows implements recovery.Archive. The engine is in use while a page is read, not while it is
// visited.
func (l *Ledger) Rows(ctx context.Context, s recovery.Series, part string, from, to time.Time, visit func(recovery.Row) bool) error {
	for period := range s.Periods(from, to) {
		p := page{next: appendRowPart(nil, s, period, part)}
		upper := after(p.next)
		for prefix := len(p.next); !p.last; {
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
				row, err := decodeRow(p.key(i)[prefix:])
				if err != nil {
					return err
				}
				row.Part, row.Value = part, append([]byte{}, p.value(i)...)
				if row.Within(from, to) && !visit(row) {
					return nil
				}
			}
		}
	}
	return nil
}
