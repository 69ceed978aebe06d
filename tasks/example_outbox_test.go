package tasks_test

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// The relay of a transactional outbox: it carries deadlines from the application's
// own database to Lapse. docs/outbox.md tells why each line is as it is. It is compiled
// here, and not run: it needs a database.
func Example_outbox() {
	// relay carries one row, and reports whether there was one.
	relay := func(ctx context.Context, db *sql.DB, s *tasks.Scheduler) (found bool, err error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return false, err
		}
		defer func() { _ = tx.Rollback() }()
		var r tasks.Request
		var due sql.NullTime
		err = tx.QueryRowContext(ctx, `SELECT task_id, topic, due_at, payload FROM deadlines
			WHERE try_at <= now() ORDER BY try_at LIMIT 1 FOR UPDATE SKIP LOCKED`).Scan(&r.ID, &r.Topic, &due, &r.Payload)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return false, nil
		case err != nil:
			return false, err
		case due.Valid:
			r.Due = due.Time
			_, err = s.Replace(ctx, r)
		default:
			if err = s.Cancel(ctx, r.ID); errors.Is(err, tasks.ErrNotFound) {
				err = nil // delivered, or never scheduled
			}
		}
		done := `DELETE FROM deadlines WHERE task_id = $1`
		if err != nil { // an outage, too much at once, or being delivered: later
			done = `UPDATE deadlines SET try_at = now() + interval '1 second' WHERE task_id = $1`
		}
		if _, failed := tx.ExecContext(ctx, done, r.ID); failed != nil {
			return true, failed
		}
		return true, errors.Join(err, tx.Commit())
	}

	// The loop around it. Several may run; each takes other rows.
	run := func(ctx context.Context, db *sql.DB, s *tasks.Scheduler) {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			if found, err := relay(ctx, db, s); found && err == nil {
				continue
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}

	var db *sql.DB         // of the application
	var s *tasks.Scheduler // or a client of the HTTP API: its PUT and DELETE do the same
	run(context.Background(), db, s)
}
