package redisledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/bulk"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/member"
)

// pagesAhead is how many pages are read while one is visited.
const pagesAhead = 2

// shardsAtOnce is how many shards are read at the same time, so that Redis reads one shard while
// the records of another are being armed.
const shardsAtOnce = 2

// Scan implements recovery.Ledger. It only nominates.
func (l *Ledger) Scan(ctx context.Context, page func([]recovery.Entry) error) error {
	done, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	scans, scanning := errgroup.WithContext(ctx)
	scans.SetLimit(shardsAtOnce)
	for _, s := range l.member.All() {
		scans.Go(func() error {
			err := l.scanShard(scanning, s, page)
			if s.Loss() != nil && !errors.Is(err, recovery.ErrClosed) {
				return nil // memory was notified, and the other shards are still ours
			}
			return err
		})
	}
	if err := scans.Wait(); err != nil {
		return err
	}
	return l.member.RetireSurplus(ctx)
}

// ScanShard implements recovery.Rewinder.
func (l *Ledger) ScanShard(ctx context.Context, n int, page func([]recovery.Entry) error) error {
	done, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	s, err := l.member.Held(n)
	if err != nil || !s.Owned.Load() {
		return err
	}
	return l.scanShard(ctx, s, page)
}

// A shardScan reads one shard over one connection. A cursor is invalid on another server, and on
// the same one after a restart: a scan that continued with it would miss ids. So a scan ends
// when its connection breaks.
type shardScan struct {
	l     *Ledger
	s     *member.Shard
	conn  *redis.Conn
	began member.Position
	page  func([]recovery.Entry) error

	entries []recovery.Entry
	buf     []byte
}

func (l *Ledger) scanShard(ctx context.Context, s *member.Shard, page func([]recovery.Entry) error) error {
	began, err := s.Position()
	if err != nil {
		return err
	}
	conn, err := l.client.Connection(ctx, s.Keys.Tasks())
	if err != nil {
		return err
	}
	defer conn.Close()
	scan := shardScan{l: l, s: s, conn: conn, began: began, page: page}
	if err := scan.run(ctx); err != nil {
		l.client.Redirected(ctx, err) // it is scanned again
		return fmt.Errorf("scan of shard %d: %w", s.Number, err)
	}
	s.Unread.Store(0)
	return nil
}

func (r *shardScan) run(ctx context.Context) error {
	if err := walk(ctx, r, r.members, r.handOut); err != nil {
		return err
	}
	if missing := r.s.Missing.Take(); len(missing) > 0 {
		if err := r.repair(ctx, missing); err != nil {
			return err
		}
	}
	records, ids, err := r.verify(ctx)
	if err != nil || records == ids {
		return err
	}
	r.l.log.Error("a shard's set of ids and its records disagree; repairing the set",
		"shard", r.s.Number, "records", records, "ids", ids)
	for _, source := range []pageSource[string]{r.members, r.fields} {
		if err := walk(ctx, r, source, func(ids []string) error { return r.repair(ctx, ids) }); err != nil {
			return err
		}
	}
	_, _, err = r.verify(ctx)
	return err
}

// A pageSource reads one page of ids or records, and returns the cursor of the next one. It leaves
// out what is no task.
type pageSource[T any] func(ctx context.Context, cursor uint64) (page []T, next uint64, err error)

func (r *shardScan) members(ctx context.Context, cursor uint64) ([]string, uint64, error) {
	var ids []string
	var next uint64
	err := r.measured(&r.l.bulk.IDs, func(count int) (found, bytes int, err error) {
		ids, next, err = r.conn.SScan(ctx, r.s.Keys.Pending(), cursor, "", int64(count)).Result()
		for _, id := range ids {
			bytes += len(id)
		}
		return len(ids), bytes, err
	})
	return slices.DeleteFunc(ids, layout.IsReserved), next, err
}

// fields reads ids with their records, which HSCAN cannot leave out.
func (r *shardScan) fields(ctx context.Context, cursor uint64) ([]string, uint64, error) {
	pairs, next, err := r.pairs(ctx, cursor)
	ids := pairs[:0]
	for i := 0; i < len(pairs); i += 2 {
		ids = append(ids, pairs[i])
	}
	return slices.DeleteFunc(ids, layout.IsReserved), next, err
}

// records reads pending records.
func (r *shardScan) records(ctx context.Context, cursor uint64) ([]recovery.Entry, uint64, error) {
	pairs, next, err := r.pairs(ctx, cursor)
	entries := make([]recovery.Entry, 0, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		if layout.IsReserved(pairs[i]) {
			continue
		}
		var h handler // of each its own bytes: they are kept
		entries = append(entries, h.pending(pairs[i], pairs[i+1]))
	}
	return entries, next, err
}

// pairs reads fields and values of the hash of records.
func (r *shardScan) pairs(ctx context.Context, cursor uint64) ([]string, uint64, error) {
	var pairs []string
	var next uint64
	err := r.measured(&r.l.bulk.Pending, func(count int) (found, bytes int, err error) {
		pairs, next, err = r.conn.HScan(ctx, r.s.Keys.Tasks(), cursor, "", int64(count)).Result()
		for i := 1; i < len(pairs); i += 2 {
			bytes += len(pairs[i])
		}
		return len(pairs) / 2, bytes, err
	})
	return pairs, next, err
}

// measured reads a page that is sized like a chunk of ReadMany. If it does not come in time the
// scan ends with an error; the pages of the next scan are smaller.
func (r *shardScan) measured(c *bulk.Lane, read func(count int) (found, bytes int, err error)) error {
	count, _ := c.Next()
	began := time.Now()
	found, bytes, err := read(count)
	switch {
	case err == nil:
		c.Came(found, bytes, time.Since(began))
		r.l.waits.Clear(c.Name)
	case conn.TimedOut(err):
		c.LateShort(count)
		r.l.bulk.LogLate(c, count, conn.IOTimeout)
	}
	return err
}

// walk reads pages from a source ahead of their use.
func walk[T any](ctx context.Context, r *shardScan, source pageSource[T], use func(page []T) error) error {
	ctx, cancel := context.WithCancel(ctx)
	pages := make(chan []T, pagesAhead)
	var failed error
	go func() {
		defer close(pages)
		for cursor, more := uint64(0), true; more; more = cursor != 0 {
			var page []T
			page, cursor, failed = source(ctx, cursor)
			if failed == nil {
				failed = r.l.closedError(ctx)
			}
			if failed != nil {
				return
			}
			select {
			case pages <- page:
			case <-ctx.Done():
				failed = context.Cause(ctx)
				return
			}
		}
	}()
	var err error
	for page := range pages {
		if err != nil || len(page) == 0 {
			continue // after an error, until the reader has seen that ctx ended
		}
		if err = use(page); err != nil {
			cancel()
		}
	}
	cancel()
	if err == nil {
		err = failed
	}
	return err
}

// handOut nominates ids.
func (r *shardScan) handOut(ids []string) error {
	r.entries, r.buf = r.entries[:0], r.buf[:0]
	for _, id := range ids {
		r.buf = append(r.buf, id...)
	}
	start := 0
	for _, id := range ids {
		end := start + len(id)
		r.entries = append(r.entries, recovery.Entry{
			Shard: r.s.Number,
			ID:    r.buf[start:end:end],
			Spot:  recovery.Spot{Place: recovery.Pending},
		})
		start = end
	}
	return r.page(r.entries)
}

// verify checks that the pages came from this process's shard, on a server that takes its
// writes, with all that was confirmed before the scan began.
func (r *shardScan) verify(ctx context.Context) (records, ids int64, err error) {
	v, err := member.Verify(ctx, r.conn, r.s.Keys)
	if err != nil {
		return 0, 0, err
	}
	if _, err := r.l.member.Check(ctx, r.s, r.began, v.Owner, v.Sequence); err != nil {
		return 0, 0, err
	}
	if v.Owner != r.began.Token.String() || v.Sequence < r.began.Sequence {
		return 0, 0, fmt.Errorf("shard owner changed during the scan: the records are of %s, batch %d, not of %s, batch %d",
			v.Owner, v.Sequence, r.began.Token, r.began.Sequence)
	}
	return v.Records, v.IDs, nil
}

// repair makes the set agree with the records for some ids, and nominates those that were not in
// it.
func (r *shardScan) repair(ctx context.Context, ids []string) error {
	args := make([]any, 1, 1+len(ids))
	args[0] = r.began.Token.String()
	for i := range ids {
		args = append(args, &ids[i])
	}
	v, err := conn.Judge(conn.RepairScript.Run(ctx, r.conn, r.s.Keys.Living(), args...))
	if err != nil {
		return fmt.Errorf("repair of the set: %w", err)
	}
	back := make([]string, len(v.Values))
	for i := range back {
		back[i] = v.Text(i)
	}
	if v.Code > 0 || len(back) > 0 {
		r.l.log.Warn("the set of ids was made to agree with the records", "shard", r.s.Number, "taken out", v.Code, "put back", len(back))
	}
	if len(back) == 0 {
		return nil
	}
	return r.handOut(back)
}
