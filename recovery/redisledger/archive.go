package redisledger

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
)

// Keep implements recovery.Archive. A script writes the rows of one part and period.
func (l *Ledger) Keep(ctx context.Context, s recovery.Series, now time.Time, rows []recovery.Row) error {
	rows, err := s.Keepable(now, rows)
	if err != nil {
		return err
	}
	done, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	var keys []string // in order of their first rows
	args := map[string][]any{}
	for i := range rows {
		r := &rows[i]
		period := s.Begins(r.At)
		key := l.keys.Rows(s.Name, period, r.Part)
		if args[key] == nil {
			keys = append(keys, key)
			left := time.Unix(period, 0).Add(s.Period + s.Kept).Sub(now)
			args[key] = []any{left.Milliseconds()}
		}
		args[key] = append(args[key], rowField(r), r.Value)
	}
	for _, key := range keys {
		if err := conn.KeepScript.Run(ctx, l.client, []string{key}, args[key]...).Err(); err != nil {
			return fmt.Errorf("writing the archive: %w", err)
		}
	}
	return nil
}

// rowField is the field of a row in the hash of its period.
func rowField(r *recovery.Row) string {
	return strconv.FormatInt(r.At.UnixMilli(), 10) + " " + r.Name
}

// rowsAtOnce is how many rows one command reads, about.
const rowsAtOnce = 500

// Rows implements recovery.Archive.
func (l *Ledger) Rows(ctx context.Context, s recovery.Series, part string, from, to time.Time, visit func(recovery.Row) bool) error {
	done, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	full := false
	for key, err := range l.rowKeys(ctx, s, part, from, to) {
		var rows []recovery.Row
		if err == nil {
			rows, err = l.readRows(ctx, key)
		}
		for i := range rows {
			rows[i].Part = part
			if rows[i].Within(from, to) && !visit(rows[i]) {
				return nil
			}
		}
		if full = full || errors.Is(err, recovery.ErrArchiveFull); err != nil && !errors.Is(err, recovery.ErrArchiveFull) {
			return fmt.Errorf("reading the archive: %w", err)
		}
	}
	if full {
		return fmt.Errorf("reading the archive: %w", recovery.ErrArchiveFull)
	}
	return nil
}

// rowKeys yields the keys of the periods that have rows. An error ends it.
func (l *Ledger) rowKeys(ctx context.Context, s recovery.Series, part string, from, to time.Time) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		var all []string
		for period := range s.Periods(from, to) {
			all = append(all, l.keys.Rows(s.Name, period, part))
		}
		for keys := range slices.Chunk(all, rowsAtOnce) {
			p := l.client.Pipeline()
			there := make([]*redis.IntCmd, len(keys))
			for i, key := range keys {
				there[i] = p.HLen(ctx, key)
			}
			if _, err := p.Exec(ctx); err != nil {
				yield("", err)
				return
			}
			for i, key := range keys {
				if there[i].Val() > 0 && !yield(key, nil) {
					return
				}
			}
		}
	}
}

// readRows reads the rows of one key, in order. A field that is none of a row is left out. With
// ErrArchiveFull it returns what fits.
func (l *Ledger) readRows(ctx context.Context, key string) ([]recovery.Row, error) {
	found := map[string]recovery.Row{} // a scan may visit one twice
	bytes := 0
	for cursor, more := uint64(0), true; more; more = cursor != 0 {
		if err := l.closedError(ctx); err != nil {
			return nil, err
		}
		pairs, next, err := l.client.HScan(ctx, key, cursor, "", rowsAtOnce).Result()
		if err != nil {
			return nil, err
		}
		cursor = next
		for i := 0; i+1 < len(pairs); i += 2 {
			at, name, there := strings.Cut(pairs[i], " ")
			unix, err := strconv.ParseInt(at, 10, 64)
			if !there || err != nil {
				continue
			}
			row := recovery.Row{At: time.UnixMilli(unix).UTC(), Name: name, Value: []byte(pairs[i+1])}
			if bytes += row.Size(); bytes > recovery.MaxPeriodBytes {
				return inOrder(found), recovery.ErrArchiveFull
			}
			found[pairs[i]] = row
		}
	}
	return inOrder(found), nil
}

func inOrder(found map[string]recovery.Row) []recovery.Row {
	rows := make([]recovery.Row, 0, len(found))
	for _, row := range found {
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b recovery.Row) int { return a.Compare(&b) })
	return rows
}
