package tasks

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A walk goes over the tasks in memory: those of a group, or all, and of these only those
// of a topic if it is about one. It goes a piece at a time, so that others get the lock in
// between. What is there from its begin to its end comes by once; what leaves or joins
// meanwhile, once or not at all.
type walk struct {
	*engine
	pick

	group     *store.Cursor // nil: a walk over the slots
	from, end uint32        // of the slots, those that are still to come
	over      bool          // nothing more comes
}

// A pick says which topics something is about. The zero value is all of them.
type pick struct {
	topic    string   // the only one, or the beginning of names and an asterisk; empty: any
	patterns []string // of a grant, one of which the topic must match as well; empty: any
}

// A picked is a pick for as long as the lock is held: topics by their numbers.
type picked struct {
	only  uint32          // 0: not just one
	known map[uint32]bool // of others, those that were asked for; nil: all are picked
	pick  *pick
	*engine
}

// pickedLocked reports false if no caller has met a topic that is picked, or if its last task
// has gone.
func (s *engine) pickedLocked(p *pick) (picked, bool) {
	one := p.topic != "" && !strings.HasSuffix(p.topic, "*")
	if one {
		t, ok := s.topics[p.topic]
		if !ok || !task.AnyMatches(p.patterns, p.topic) {
			return picked{}, false
		}
		return picked{only: t.number}, true
	}
	k := picked{pick: p, engine: s}
	if p.topic != "" || len(p.patterns) > 0 {
		k.known = make(map[uint32]bool)
	}
	return k, true
}

// has tells whether a topic is picked.
func (k *picked) has(topic uint32) bool {
	if k.only != 0 || k.known == nil {
		return k.only == 0 || topic == k.only
	}
	is, known := k.known[topic]
	if !known {
		is = k.pick.has(k.byNumber[topic].name)
		k.known[topic] = is
	}
	return is
}

func (p *pick) has(topic string) bool {
	return topic != "" && (p.topic == "" || task.Matches(p.topic, topic)) && task.AnyMatches(p.patterns, topic)
}

// walkLocked begins a walk. An empty group means any. It must be left.
func (s *engine) walkLocked(p pick, group string) *walk {
	w := &walk{engine: s, pick: p, end: s.store.Slots()}
	if group != "" {
		w.group = s.store.OpenGroup(group)
	}
	return w
}

// leave ends a walk, at whatever point.
func (w *walk) leave() {
	if w.group != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.store.CloseGroup(w.group)
	}
}

// pieceLocked yields as many tasks as are dealt with under one lock, or fewer: a piece may
// hold none and yet not be the last one. A loop that breaks off goes on behind the task
// that it has seen last.
func (w *walk) pieceLocked() iter.Seq2[uint32, *store.Slot] {
	return func(yield func(uint32, *store.Slot) bool) {
		topics, ok := w.pickedLocked(&w.pick)
		switch {
		case !ok:
			w.over = true
		case w.group != nil:
			w.members(&topics, yield)
		default:
			w.slots(&topics, yield)
		}
	}
}

// members goes over some tasks of the group. Each of them is a wait for memory or two,
// so that they are not as many as slots would be.
func (w *walk) members(topics *picked, yield func(uint32, *store.Slot) bool) {
	for range atOnce {
		n := w.store.Advance(w.group)
		if n == 0 {
			w.over = true
			return
		}
		if sl := w.store.Slot(n); topics.has(sl.Topic) && !yield(n, sl) {
			return
		}
	}
}

// slots goes over the rest of a chunk.
func (w *walk) slots(topics *picked, yield func(uint32, *store.Slot) bool) {
	if w.over = w.from >= w.end; w.over {
		return
	}
	rest := w.store.Rest(w.from)
	for i := range rest {
		if sl := &rest[i]; sl.State != store.Vacant && topics.has(sl.Topic) && !yield(w.from+uint32(i), sl) {
			w.from += uint32(i) + 1
			return
		}
	}
	w.from += uint32(len(rest))
	w.over = w.from >= w.end
}

// A snapshot is the shards that this node holds, with all their tasks in memory, for as long as
// an operation on all of them runs: by number, as long as the term is the same. The
// spool counts as one of them.
type snapshot map[int]snapshotShard

// A snapshotShard is one of them, with its ID as the ledger names it now: once Redis has lost
// the numbers of the nodes, it may be another one than when the term began.
type snapshotShard struct {
	*ownedShard
	shardID recovery.Home
}

// beginSnapshot waits until all that this node holds is in memory. It also returns how many moves
// of spooled tasks have ever been in doubt. Errors: ErrReplaying, ErrUnavailable, ErrClosed.
func (s *engine) beginSnapshot(ctx context.Context) (st snapshot, movesInDoubt int, err error) {
	ctx, cancel := s.within(ctx)
	defer cancel()
	if err := s.waitReplayed(ctx); err != nil {
		return nil, 0, err
	}
	s.mu.Lock()
	defer s.unlock()
	switch {
	case s.ended:
		return nil, 0, ErrClosed
	case s.unsure():
		return nil, 0, errUnsure
	case s.spool != nil && len(s.spool.inDoubt) > 0:
		return nil, 0, errInDoubt
	}
	st = make(snapshot)
	for n, h := range s.shards {
		if h != nil && h.stage == active {
			st[n] = snapshotShard{h, s.fleet.Home(n)}
		}
	}
	if s.spool != nil {
		st[spoolShard], movesInDoubt = snapshotShard{ownedShard: s.spool.ownedShard}, s.spool.movesInDoubt
	}
	return st, movesInDoubt, nil
}

// errInDoubt: spooled tasks have left memory, and may come back to it. It is passing.
var errInDoubt = fmt.Errorf("%w: it is not known yet whether what was spooled has moved there", errNotHeld)

// endSnapshot leaves out what has changed hands meanwhile, and lists the others.
func (s *engine) endSnapshot(st snapshot, movesInDoubt int) (covered []recovery.Home, err error) {
	s.mu.Lock()
	defer s.unlock()
	switch {
	case s.ended:
		return nil, ErrClosed
	case s.unsure():
		return nil, errUnsure
	case s.spool != nil && s.spool.movesInDoubt != movesInDoubt:
		return nil, errInDoubt
	}
	for n, h := range st {
		switch {
		case h.stage != active: // a term that is over is never held again
			delete(st, n)
		case h.shardID != 0:
			covered = append(covered, h.shardID)
		}
	}
	slices.Sort(covered)
	return covered, nil
}

// keepHeld leaves out what the ledger has lost without having told it yet: it has not read
// the dead of that.
func (s *engine) keepHeld(ctx context.Context, st snapshot) {
	for n, h := range st {
		if n == spoolShard {
			continue
		}
		if at, err := s.fleet.Locate(ctx, h.ownedShard.shardID, false); err != nil || at.Shard != n {
			delete(st, n)
		}
	}
}
