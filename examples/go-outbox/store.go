package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

const schema = `
CREATE TABLE orders (
  id     INTEGER PRIMARY KEY,
  state  TEXT NOT NULL,
  pay_by INTEGER NOT NULL          -- ms since 1970
);
CREATE TABLE deadlines (           -- what Lapse has yet to be told
  task_id TEXT PRIMARY KEY,
  due_at  INTEGER,                 -- ms since 1970; null: there is no deadline any more
  payload TEXT,
  try_at  INTEGER NOT NULL         -- ms since 1970
);`

// An Order is what the task of a deadline carries.
type Order struct {
	ID int64 `json:"order"`
}

func (o Order) task() string { return fmt.Sprintf("order-%d", o.ID) }

// Place writes an order and its deadline: both, or none of them.
func Place(ctx context.Context, db *sql.DB, o Order, payBy time.Time) error {
	payload, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return inTx(ctx, db, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO orders VALUES (?, 'unpaid', ?)`, o.ID, payBy.UnixMilli())
		if err != nil {
			return err
		}
		return setDeadline(ctx, tx, o.task(), payBy.UnixMilli(), string(payload))
	})
}

// ErrNotUnpaid is returned for an order that was paid or cancelled before, or does not exist.
var ErrNotUnpaid = errors.New("the order is not unpaid")

// Pay makes an order paid, and calls its deadline off: both, or none of them.
func Pay(ctx context.Context, db *sql.DB, o Order) error {
	return inTx(ctx, db, func(tx *sql.Tx) error {
		r, err := tx.ExecContext(ctx, `UPDATE orders SET state = 'paid' WHERE id = ? AND state = 'unpaid'`, o.ID)
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil || n == 0 {
			return errors.Join(ErrNotUnpaid, err)
		}
		return setDeadline(ctx, tx, o.task(), nil, nil)
	})
}

// CancelUnpaid cancels an order whose time to pay is over, and reports whether it did. It may be
// called twice, and late.
func CancelUnpaid(ctx context.Context, db *sql.DB, o Order) (bool, error) {
	r, err := db.ExecContext(ctx, `UPDATE orders SET state = 'cancelled'
		WHERE id = ? AND state = 'unpaid' AND pay_by <= ?`, o.ID, time.Now().UnixMilli())
	if err != nil {
		return false, err
	}
	n, err := r.RowsAffected()
	return n > 0, err
}

// StateOf returns the state of an order.
func StateOf(ctx context.Context, db *sql.DB, o Order) (state string, err error) {
	err = db.QueryRowContext(ctx, `SELECT state FROM orders WHERE id = ?`, o.ID).Scan(&state)
	return state, err
}

// setDeadline says how the task of a deadline shall stand. A later word replaces an earlier one.
func setDeadline(ctx context.Context, tx *sql.Tx, task string, due, payload any) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO deadlines VALUES (?, ?, ?, 0) ON CONFLICT (task_id)
		DO UPDATE SET due_at = excluded.due_at, payload = excluded.payload, try_at = 0`, task, due, payload)
	return err
}

func inTx(ctx context.Context, db *sql.DB, do func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}
