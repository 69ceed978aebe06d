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
	if err := r.walk(ctx, r.members, r.handOut); err != nil {
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
	for _, source := range []pageSource{r.members, r.fields} {
		if err := r.walk(ctx, source, func(ids []string) error { return r.repair(ctx, ids) }); err != nil {
			return err
		}
	}
	_, _, err = r.verify(ctx)
	return err
}

// A pageSource reads one page of ids, and returns the cursor of the next one.
type pageSource func(ctx context.Context, cursor uint64) (ids []string, next uint64, err error)

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
	return ids, next, err
}

// fields reads ids with their records, which HSCAN cannot leave out.
func (r *shardScan) fields(ctx context.Context, cursor uint64) ([]string, uint64, error) {
	var pairs []string
	var next uint64
	err := r.measured(&r.l.bulk.Pending, func(count int) (found, bytes int, err error) {
		pairs, next, err = r.conn.HScan(ctx, r.s.Keys.Tasks(), cursor, "", int64(count)).Result()
		for i := 1; i < len(pairs); i += 2 {
			bytes += len(pairs[i])
		}
		return len(pairs) / 2, bytes, err
	})
	ids := pairs[:0]
	for i := 0; i < len(pairs); i += 2 {
		ids = append(ids, pairs[i])
	}
	return ids, next, err
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
func (r *shardScan) walk(ctx context.Context, source pageSource, use func(ids []string) error) error {
	ctx, cancel := context.WithCancel(ctx)
	pages := make(chan []string, pagesAhead)
	var failed error
	go func() {
		defer close(pages)
		for cursor, more := uint64(0), true; more; more = cursor != 0 {
			var ids []string
			ids, cursor, failed = source(ctx, cursor)
			if failed == nil {
				failed = r.l.closedError(ctx)
			}
			if failed != nil {
				return
			}
			select {
			case pages <- ids:
			case <-ctx.Done():
				failed = context.Cause(ctx)
				return
			}
		}
	}()
	var err error
	for ids := range pages {
		if err != nil {
			continue // until the reader has seen that ctx ended
		}
		ids = slices.DeleteFunc(ids, layout.IsReserved)
		if len(ids) == 0 {
			continue
		}
		if err = use(ids); err != nil {
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
	values, err := conn.VerifyScript.Run(ctx, r.conn, r.s.Keys.Living()).Slice()
	if err != nil {
		return 0, 0, err
	}
	if len(values) != 4 {
		return 0, 0, fmt.Errorf("unexpected reply of a script: %v", values)
	}
	v := conn.Verdict{Values: values}
	if _, err := r.l.member.Check(ctx, r.s, r.began, v.Text(0), v.Number(1)); err != nil {
		return 0, 0, err
	}
	if v.Text(0) != r.began.Token.String() || v.Number(1) < r.began.Sequence {
		return 0, 0, fmt.Errorf("shard owner changed during the scan: the records are of %s, batch %d, not of %s, batch %d",
			v.Text(0), v.Number(1), r.began.Token, r.began.Sequence)
	}
	return v.Number(2), v.Number(3), nil
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
