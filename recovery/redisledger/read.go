package redisledger

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/member"
)

// Get implements recovery.Ledger. A Ref's Next is not needed.
func (l *Ledger) Get(ctx context.Context, n int, refs []recovery.Ref, found func(i int, e recovery.Entry)) error {
	done, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	s, err := l.member.Held(n)
	if err != nil {
		return err
	}
	h, key := handler{shard: n}, s.Keys.Tasks()
	return l.bulk.ReadMany(ctx, &l.bulk.Pending, len(refs), func(i int) (string, *string) { return key, &refs[i].ID },
		func(i int, value string, there bool) {
			if !there {
				s.Missing.Note(refs[i].ID)
				return
			}
			found(i, h.pending(refs[i].ID, value))
		})
}

// A handler makes the entries that callbacks get. An entry is valid until the next one.
type handler struct {
	shard int
	buf   []byte
}

// pending makes an entry without data from a value that is too short to be a record: the caller
// that reads the record finds out, and the others of its page are not delayed.
func (h *handler) pending(id, value string) recovery.Entry {
	at, data, err := layout.DecodePending(value)
	if err != nil {
		at, data = 0, ""
	}
	return h.entry(id, recovery.Spot{Place: recovery.Pending, At: at}, data)
}

// dead makes an entry in the same way. It reports whether the value could be read.
func (h *handler) dead(id, value string) (e recovery.Entry, readable bool) {
	at, label, data, err := layout.DecodeDead(value)
	return h.entry(id, recovery.Spot{Place: recovery.Dead, At: at, Label: label}, data), err == nil
}

func (h *handler) entry(id string, spot recovery.Spot, data string) recovery.Entry {
	h.buf = append(append(h.buf[:0], id...), data...)
	return recovery.Entry{
		Shard: h.shard,
		ID:    h.buf[:len(id):len(id)],
		Spot:  spot,
		Data:  h.buf[len(id):len(h.buf):len(h.buf)],
	}
}

// Find implements recovery.Finder. A record that does not come within conn.IOTimeout is read once
// more, with the timeout of bulk reads.
func (l *Ledger) Find(ctx context.Context, id string, found func(e recovery.Entry)) error {
	done, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	shards := l.member.AllFor(id)
	lane := &l.bulk.Finds
	if _, patience := lane.Next(); patience == conn.IOTimeout {
		err := l.findQuickly(ctx, shards, id, found)
		if err == nil || ctx.Err() != nil || !conn.TimedOut(err) {
			return err
		}
	}
	holder, err := l.holderOf(ctx, shards, id)
	if err != nil || holder == nil {
		return err
	}
	defer l.waits.Clear(lane.Name) // the caller may give up and never ask again
	if _, patience := lane.Next(); patience == conn.IOTimeout {
		lane.Late(1, patience)
		l.bulk.LogLate(lane, 1, patience)
	}
	h, key := handler{shard: holder.Number}, holder.Keys.Tasks()
	return l.bulk.ReadMany(ctx, lane, 1, func(int) (string, *string) { return key, &id },
		func(_ int, value string, there bool) {
			if there {
				found(h.pending(id, value))
			}
		})
}

// findQuickly reads a record from all shards at once.
func (l *Ledger) findQuickly(ctx context.Context, shards []*member.Shard, id string, found func(e recovery.Entry)) error {
	replies := make([]*redis.StringCmd, len(shards))
	if err := l.client.Pipe(ctx, func(p redis.Pipeliner) {
		for i, s := range shards {
			replies[i] = p.HGet(ctx, s.Keys.Tasks(), id)
		}
	}); err != nil {
		return err
	}
	for i, s := range shards {
		if errors.Is(replies[i].Err(), redis.Nil) {
			continue
		}
		h := handler{shard: s.Number}
		found(h.pending(id, replies[i].Val()))
		return nil
	}
	return nil
}

// holderOf returns the first of the shards that has a record of an id, or nil. It reads no
// record.
func (l *Ledger) holderOf(ctx context.Context, shards []*member.Shard, id string) (*member.Shard, error) {
	replies := make([]*redis.BoolCmd, len(shards))
	if err := l.client.Pipe(ctx, func(p redis.Pipeliner) {
		for i, s := range shards {
			replies[i] = p.HExists(ctx, s.Keys.Tasks(), id)
		}
	}); err != nil {
		return nil, err
	}
	for i, s := range shards {
		if replies[i].Val() {
			return s, nil
		}
	}
	return nil, nil
}

// FindMany implements recovery.ManyFinder: one shard after the other, in chunks.
func (l *Ledger) FindMany(ctx context.Context, ids []string, found func(i int, e recovery.Entry)) error {
	done, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	left := make([]int, len(ids)) // of ids that no shard has had yet
	for i := range left {
		left[i] = i
	}
	defer l.waits.Clear(l.bulk.Finds.Name) // the caller may give up and never ask again
	var absent []int
	for _, s := range l.member.All() {
		h, key := handler{shard: s.Number}, s.Keys.Tasks()
		absent = absent[:0]
		if err := l.bulk.ReadMany(ctx, &l.bulk.Finds, len(left), func(i int) (string, *string) { return key, &ids[left[i]] },
			func(i int, value string, there bool) {
				if !there {
					absent = append(absent, left[i])
					return
				}
				found(left[i], h.pending(ids[left[i]], value))
			}); err != nil {
			return err
		}
		left, absent = absent, left
	}
	return nil
}
