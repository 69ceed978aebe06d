package main

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"time"

	"github.com/lapsehq/lapse/client"
)

// unpaid is the topic of the deadlines.
var unpaid = client.NewTopic[Order]("order.unpaid.outbox")

// Relay carries what Place and Pay have written over to Lapse, until ctx ends. There is one for a
// database: SQLite has no row locks that would keep two of them apart.
func Relay(ctx context.Context, db *sql.DB, c *client.Client) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		found, err := carry(ctx, db, c)
		if err != nil && ctx.Err() == nil {
			log.Print("the relay tries again: ", err)
		}
		if found && err == nil {
			continue // there may be more
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// carry tells Lapse of one row, and reports whether there was one. A row that fails waits for a
// second, and holds up no others.
func carry(ctx context.Context, db *sql.DB, c *client.Client) (found bool, err error) {
	var (
		r   = client.Request{Topic: unpaid.Name()}
		due sql.NullInt64
	)
	now := time.Now().UnixMilli()
	err = db.QueryRowContext(ctx, `SELECT task_id, due_at, payload FROM deadlines
		WHERE try_at <= ? ORDER BY try_at LIMIT 1`, now).Scan(&r.ID, &due, &r.Payload)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	if due.Valid {
		r.Due = time.UnixMilli(due.Int64)
		_, err = c.Replace(ctx, r)
	} else if err = c.Cancel(ctx, r.ID); errors.Is(err, client.ErrNotFound) {
		err = nil // delivered, or never scheduled
	}
	if err != nil {
		_, failed := db.ExecContext(ctx, `UPDATE deadlines SET try_at = ? WHERE task_id = ?`, now+1000, r.ID)
		return true, errors.Join(err, failed)
	}
	// A row that has changed meanwhile stays, and is carried again.
	_, err = db.ExecContext(ctx, `DELETE FROM deadlines WHERE task_id = ? AND due_at IS ?`, r.ID, due)
	return true, err
}
