package redisledger

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
)

// lookForDead finds out whether there are dead records at all. Until there are,
// asking for one, as every creation with an id of the caller's does, costs nothing.
func (l *Ledger) lookForDead(ctx context.Context) error {
	shards := l.table.Load().all()
	replies := make([]*redis.IntCmd, len(shards))
	err := l.pipeline(ctx, func(p redis.Pipeliner) {
		for n, s := range shards {
			replies[n] = p.Exists(ctx, s.keys.dead())
		}
	})
	for _, r := range replies {
		if r.Val() > 0 {
			l.buried.Store(true)
		}
	}
	return err
}

// GetDead implements recovery.Ledger.
func (l *Ledger) GetDead(ctx context.Context, ids []string, found func(i int, e recovery.Entry)) error {
	done, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	if !l.buried.Load() {
		return nil
	}
	positions := map[*shard][]int{} // of the ids that each shard may have
	for i, id := range ids {
		for _, s := range l.shardsOf(id) {
			positions[s] = append(positions[s], i)
		}
	}
	type question struct {
		shard     *shard
		positions []int
		reply     *redis.SliceCmd
	}
	var questions []question
	if err := l.pipeline(ctx, func(p redis.Pipeliner) {
		for s, at := range positions {
			for part := range slices.Chunk(at, readAtOnce) {
				reply := l.readRecords(ctx, p, s.keys.dead(), len(part), func(i int) *string { return &ids[part[i]] })
				questions = append(questions, question{s, part, reply})
			}
		}
	}); err != nil {
		return err
	}
	for _, q := range questions {
		h := handler{shard: q.shard.number}
		for k, v := range q.reply.Val() {
			value, ok := v.(string)
			if !ok {
				continue
			}
			i := q.positions[k]
			e, _ := h.dead(ids[i], value)
			found(i, e)
		}
	}
	return nil
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
		from = "(" + string(appendGrave(nil, label, after.Next, after.ID))
	}
	return l.listDead(ctx, l.table.Load().all(), from, to, visit)
}

// ScanDead implements recovery.Fleet.
func (l *Ledger) ScanDead(ctx context.Context, n int, visit func(e recovery.Entry)) error {
	done, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	s, err := l.held(n)
	if err != nil || !l.buried.Load() {
		return err
	}
	if err := l.listDead(ctx, []*shard{s}, "-", "+", func(e recovery.Entry) bool {
		e.Data = nil
		visit(e)
		return true
	}); err != nil {
		return err
	}
	return s.loss()
}

// listDead merges the lists of some shards, from one member of their indexes to another.
func (l *Ledger) listDead(ctx context.Context, shards []*shard, from, to string, visit func(e recovery.Entry) bool) error {
	lists := make([]*graveyard, len(shards))
	for i, s := range shards {
		lists[i] = &graveyard{shard: s, from: from, to: to, more: true}
	}
	for {
		if err := l.refill(ctx, lists); err != nil {
			return err
		}
		lists = slices.DeleteFunc(lists, func(g *graveyard) bool { return len(g.members) == 0 && !g.more })
		if len(lists) == 0 {
			return nil
		}
		first := slices.MinFunc(lists, func(a, b *graveyard) int { return strings.Compare(a.members[0], b.members[0]) })
		if e, ok := first.take(); ok && !visit(e) {
			return nil
		}
	}
}

// gravesAtOnce is how many dead records of each shard are read ahead.
const gravesAtOnce = 64

// A graveyard is one shard's part of a list of dead records.
type graveyard struct {
	shard    *shard
	from, to string // of what is not read yet
	more     bool   // there may be some
	members  []string
	records  []any // of the members; nil where it is gone
	h        handler
}

// refill reads on in those lists that have run empty, until none has or all
// have ended.
func (l *Ledger) refill(ctx context.Context, lists []*graveyard) error {
	var empty []*graveyard
	for _, g := range lists {
		if len(g.members) == 0 && g.more {
			empty = append(empty, g)
		}
	}
	if len(empty) == 0 {
		return nil
	}
	ranges := make([]*redis.StringSliceCmd, len(empty))
	if err := l.pipeline(ctx, func(p redis.Pipeliner) {
		for i, g := range empty {
			ranges[i] = p.ZRangeByLex(ctx, g.shard.keys.deadIndex(), &redis.ZRangeBy{Min: g.from, Max: g.to, Count: gravesAtOnce})
		}
	}); err != nil {
		return err
	}
	records := make([]*redis.SliceCmd, len(empty))
	err := l.pipeline(ctx, func(p redis.Pipeliner) {
		for i, g := range empty {
			g.members = ranges[i].Val()
			g.more = len(g.members) == gravesAtOnce
			if len(g.members) == 0 {
				continue
			}
			g.from = "(" + g.members[len(g.members)-1]
			ids := make([]string, len(g.members))
			for k, m := range g.members {
				_, _, ids[k], _ = decodeGrave(m) // take passes over what cannot be read
			}
			records[i] = l.readRecords(ctx, p, g.shard.keys.dead(), len(ids), func(k int) *string { return &ids[k] })
		}
	})
	if err != nil {
		return err
	}
	for i, g := range empty {
		if records[i] != nil {
			g.records = records[i].Val()
		}
	}
	return nil
}

// take returns the first record of the list, unless it has gone or moved since
// the list was read. One that cannot be read stands where the index says, without
// data: nobody else may have its id.
func (g *graveyard) take() (recovery.Entry, bool) {
	member, value := g.members[0], g.records[0]
	g.members, g.records = g.members[1:], g.records[1:]
	label, at, id, err := decodeGrave(member)
	record, there := value.(string)
	if err != nil || !there {
		return recovery.Entry{}, false
	}
	g.h.shard = g.shard.number
	e, readable := g.h.dead(id, record)
	if !readable {
		e.Spot.Label, e.Spot.At = label, at
	}
	return e, e.Spot.Label == label && e.Spot.At == at
}
