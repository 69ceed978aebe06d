package redisledger

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/member"
)

// GetDead implements recovery.Ledger.
func (l *Ledger) GetDead(ctx context.Context, ids []string, found func(i int, e recovery.Entry)) error {
	done, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	if !l.member.HasDead() {
		return nil
	}
	missing := make(map[int]bool, len(ids))
	var places []deadPlace // of the ids, where they may be
	for i, id := range ids {
		missing[i] = true
		for _, s := range l.member.ShardsOf(id) {
			places = append(places, deadPlace{s, i})
		}
	}
	if err := l.readDead(ctx, ids, places, func(i int, e recovery.Entry) {
		delete(missing, i)
		found(i, e)
	}); err != nil || len(missing) == 0 {
		return err
	}
	// A record that is not in its own shard may be in any, see AllFor.
	places = nil
	for i := range missing {
		first := l.member.ShardsOf(ids[i])
		for _, s := range l.member.AllFor(ids[i]) {
			if !slices.Contains(first, s) {
				places = append(places, deadPlace{s, i})
			}
		}
	}
	return l.readDead(ctx, ids, places, found)
}

// HasDead implements recovery.DeadChecker.
func (l *Ledger) HasDead(ctx context.Context, n int, ids []string) ([]bool, error) {
	done, err := l.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	s, err := l.member.Held(n)
	if err != nil {
		return nil, err
	}
	has := make([]bool, 0, len(ids))
	for part := range slices.Chunk(ids, deadAtOnce) {
		replies := make([]*redis.BoolCmd, len(part))
		if err := l.client.Pipe(ctx, func(p redis.Pipeliner) {
			for i, id := range part {
				replies[i] = p.HExists(ctx, s.Keys.Dead(), id)
			}
		}); err != nil {
			return nil, err
		}
		for _, r := range replies {
			has = append(has, r.Val())
		}
	}
	return has, s.Loss()
}

// A deadPlace is a shard that may have the dead record of one of the ids.
type deadPlace struct {
	shard *member.Shard
	i     int // in the ids
}

func (l *Ledger) readDead(ctx context.Context, ids []string, places []deadPlace, found func(i int, e recovery.Entry)) error {
	slices.SortStableFunc(places, func(a, b deadPlace) int { return cmp.Compare(a.shard.Number, b.shard.Number) })
	var h handler
	return l.bulk.ReadMany(ctx, &l.bulk.Dead, len(places),
		func(k int) (string, *string) { return places[k].shard.Keys.Dead(), &ids[places[k].i] },
		func(k int, value string, there bool) {
			if there {
				h.shard = places[k].shard.Number
				e, _ := h.dead(ids[places[k].i], value)
				found(places[k].i, e)
			}
		})
}

// ListDead implements recovery.Ledger. The shards' lists are merged.
func (l *Ledger) ListDead(ctx context.Context, label string, after recovery.Ref, visit func(e recovery.Entry) bool) error {
	if label == "" && after != (recovery.Ref{}) {
		return errors.New("a list of the dead of all labels cannot be continued")
	}
	done, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	from, to := "-", "+"
	if label != "" {
		from, to = "["+label+"\x00", "("+label+"\x01"
	}
	if after != (recovery.Ref{}) {
		from = "(" + string(layout.AppendDeadRef(nil, label, after.Next, after.ID))
	}
	var shards []*member.Shard
	var before []member.Position
	for _, s := range l.member.All() {
		if at, err := s.Position(); err == nil && s.Owned.Load() {
			shards, before = append(shards, s), append(before, at)
		}
	}
	if err := l.listDead(ctx, l.member.All(), from, to, visit); err != nil {
		return err
	}
	return l.member.Unchanged(ctx, shards, before)
}

// ScanDead implements recovery.Fleet.
func (l *Ledger) ScanDead(ctx context.Context, n int, visit func(e recovery.Entry)) error {
	done, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	s, err := l.member.Held(n)
	if err != nil || !l.member.HasDead() {
		return err
	}
	return errors.Join(l.scanDead(ctx, s, visit), s.Loss())
}

// scanDead is ScanDead of any shard.
func (l *Ledger) scanDead(ctx context.Context, s *member.Shard, visit func(e recovery.Entry)) error {
	list := deadList{shard: s, from: "-", to: "+", more: true}
	h := handler{shard: s.Number}
	var err error
	for list.more && err == nil {
		count, _ := l.bulk.IDs.Next()
		count = min(count, deadAtOnce)
		began := time.Now()
		if err = l.refill(ctx, []*deadList{&list}, int64(count)); conn.TimedOut(err) {
			l.bulk.IDs.LateShort(count)
			l.bulk.LogLate(&l.bulk.IDs, count, conn.IOTimeout)
			err = nil // the list stands where it stood
			if count == 1 {
				err = errIndexLate
			}
		}
		if err = errors.Join(err, l.closedError(ctx)); err != nil {
			break
		}
		if n := len(list.members); n > 0 {
			l.bulk.IDs.Came(n, n*len(list.members[0]), time.Since(began))
			l.waits.Clear(l.bulk.IDs.Name)
		}
		for _, m := range list.members {
			if label, at, id, fault := layout.DecodeDeadRef(m); fault == nil { // see listDead
				e := h.entry(id, recovery.Spot{Place: recovery.Dead, At: at, Label: label}, "")
				e.Data = nil
				visit(e)
			}
		}
		list.members = nil
	}
	return err
}

var errIndexLate = errors.New("not even one member of an index of the dead has come in time")

// deadAtOnce is how many members of a shard's index of the dead are read at once, and
// listedAtOnce how many of each shard where several are merged.
const deadAtOnce, listedAtOnce = 1000, 64

// A deadList is one shard's part of a list of the dead, read from the shard's index.
type deadList struct {
	shard    *member.Shard
	from, to string // of what is not read yet
	more     bool   // there may be some
	members  []string
}

// indexesAtOnce bounds of how many shards the indexes are read at once.
const indexesAtOnce = 16

// refill reads up to n more members for each list that has run empty and has not ended.
func (l *Ledger) refill(ctx context.Context, lists []*deadList, n int64) error {
	var empty []*deadList
	for _, d := range lists {
		if len(d.members) == 0 && d.more {
			empty = append(empty, d)
		}
	}
	for part := range slices.Chunk(empty, indexesAtOnce) {
		ranges := make([]*redis.StringSliceCmd, len(part))
		if err := l.client.Pipe(ctx, func(p redis.Pipeliner) {
			for i, d := range part {
				ranges[i] = p.ZRangeByLex(ctx, d.shard.Keys.DeadIndex(), &redis.ZRangeBy{Min: d.from, Max: d.to, Count: n})
			}
		}); err != nil {
			return err
		}
		for i, d := range part {
			d.members = ranges[i].Val()
			if d.more = len(d.members) == int(n); len(d.members) > 0 {
				d.from = "(" + d.members[len(d.members)-1]
			}
		}
	}
	return nil
}

// A deadMember is a member of the index of a shard.
type deadMember struct {
	shard *member.Shard
	raw   string
	label string
	at    int64
	id    string
}

// listDead merges the lists of some shards, from one member of their indexes to another. It
// reads the records of as many members at a time as fit into a chunk.
func (l *Ledger) listDead(ctx context.Context, shards []*member.Shard, from, to string, visit func(e recovery.Entry) bool) error {
	lists := make([]*deadList, len(shards))
	for i, s := range shards {
		lists[i] = &deadList{shard: s, from: from, to: to, more: true}
	}
	for {
		n, _ := l.bulk.Dead.Next()
		var members []deadMember
		for n = min(n, 4*listedAtOnce); len(members) < n; {
			if err := l.refill(ctx, lists, listedAtOnce); err != nil {
				return err
			}
			lists = slices.DeleteFunc(lists, func(d *deadList) bool { return len(d.members) == 0 && !d.more })
			if len(lists) == 0 {
				break
			}
			first := slices.MinFunc(lists, func(a, b *deadList) int { return strings.Compare(a.members[0], b.members[0]) })
			m := deadMember{shard: first.shard, raw: first.members[0]}
			first.members = first.members[1:]
			var err error
			if m.label, m.at, m.id, err = layout.DecodeDeadRef(m.raw); err == nil {
				members = append(members, m)
			}
		}
		if len(members) == 0 {
			return l.closedError(ctx)
		}
		if more, err := l.visitMembers(ctx, members, visit); err != nil || !more {
			return err
		}
	}
}

// visitMembers reads the records of members and visits them in their order. It skips those
// whose record is gone, or has moved since the index was read. A record that cannot be read is
// visited with the place that the index has, without data: its id is still in use.
func (l *Ledger) visitMembers(ctx context.Context, members []deadMember, visit func(e recovery.Entry) bool) (more bool, err error) {
	order := make([]int, len(members)) // by shard, so that the records of one are read together
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(members[a].shard.Number, members[b].shard.Number)
	})
	records := make([]string, len(members))
	exists := make([]bool, len(members))
	err = l.bulk.ReadMany(ctx, &l.bulk.Dead, len(members),
		func(k int) (string, *string) {
			m := &members[order[k]]
			return m.shard.Keys.Dead(), &m.id
		},
		func(k int, value string, there bool) { records[order[k]], exists[order[k]] = value, there })
	if err != nil {
		return false, err
	}
	var h handler
	for i := range members {
		if !exists[i] {
			continue
		}
		m := &members[i]
		h.shard = m.shard.Number
		e, readable := h.dead(m.id, records[i])
		if !readable {
			e.Spot.Label, e.Spot.At = m.label, m.at
		}
		if e.Spot.Label == m.label && e.Spot.At == m.at && !visit(e) {
			return false, nil
		}
	}
	return true, nil
}
