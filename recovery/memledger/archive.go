package memledger

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// Keep implements recovery.Archive.
func (l *Ledger) Keep(ctx context.Context, s recovery.Series, now time.Time, rows []recovery.Row) error {
	if err := l.lock(ctx); err != nil {
		return err
	}
	defer l.s.mu.Unlock()
	return l.s.rows.Keep(s, now, rows)
}

// Rows implements recovery.Archive. The rows are copied before they are visited.
func (l *Ledger) Rows(ctx context.Context, s recovery.Series, part string, from, to time.Time, visit func(recovery.Row) bool) error {
	if err := l.lock(ctx); err != nil {
		return err
	}
	rows := l.s.rows.Within(s, part, from, to)
	l.s.mu.Unlock()
	for _, row := range rows {
		if !visit(row) {
			return nil
		}
	}
	return nil
}
