package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A Walk visits the tasks in memory: those of a group, or all, and of these only the tasks of
// topics that match its Pick and whose time is from earliest to latest. A task that is present
// throughout is visited once; one that joins or leaves, at most once.
type Walk struct {
	*Engine
	Pick

	group     *store.Cursor // nil: a walk over the slots
	from, end uint32        // of the slots, those that are still to come
	over      bool          // nothing more comes

	earliest, latest int64 // may be narrowed at any time

	gaveWay time.Duration // when it gave way to other goroutines
}

// A Pick selects topics. The zero value selects all of them.
type Pick struct {
	topic    string   // the only one, or the beginning of names and an asterisk; empty: any
	patterns []string // of a grant, one of which the topic must match as well; empty: any
}

// picked caches which topics match a Pick, by their numbers. It is valid while mu is held.
type picked struct {
	only  uint32          // 0: not just one
	known map[uint32]bool // of others, those that were asked for; nil: all are picked
	pick  *Pick
	in    *topicTable
}

// picked reports false if no caller has met a topic that is picked, or if its last task
// has gone.
func (k *topicTable) picked(p *Pick) (picked, bool) {
	one := p.topic != "" && !strings.HasSuffix(p.topic, "*")
	if one {
		t, ok := k.ByName[p.topic]
		if !ok || !task.AnyMatches(p.patterns, p.topic) {
			return picked{}, false
		}
		return picked{only: t.Number}, true
	}
	all := picked{pick: p, in: k}
	if p.topic != "" || len(p.patterns) > 0 {
		all.known = make(map[uint32]bool)
	}
	return all, true
}

// has reports whether a topic is picked.
func (k *picked) has(topic uint32) bool {
	return k.only != 0 && topic == k.only || k.only == 0 && (k.known == nil || k.matches(topic))
}

func (k *picked) matches(topic uint32) bool {
	is, known := k.known[topic]
	if !known {
		is = k.pick.has(k.in.ByNumber[topic].Name)
		k.known[topic] = is
	}
	return is
}

func (p *Pick) has(topic string) bool {
	return topic != "" && (p.topic == "" || task.Matches(p.topic, topic)) && task.AnyMatches(p.patterns, topic)
}

// walk begins a walk. An empty group means any. A walk over a group must be left.
func (s *Engine) walk(p Pick, group string) *Walk {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.walkLocked(p, group)
}

func (s *Engine) walkLocked(p Pick, group string) *Walk {
	w := &Walk{Engine: s, Pick: p, end: s.Store.Slots(), earliest: math.MinInt64, latest: math.MaxInt64, gaveWay: s.Elapsed()}
	if group != "" {
		w.group = s.Store.OpenGroup(group)
	}
	return w
}

// Leave ends a walk, at whatever point.
func (w *Walk) Leave() {
	if w.group != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.Store.CloseGroup(w.group)
	}
}

// giveWayEvery is after how long a walk gives way to other goroutines. The runtime would interrupt
// it only after 10 ms, and so late would be a task that is due; but each time wakes a processor.
const giveWayEvery = time.Millisecond

// step visits some tasks under one hold of the lock: those of a chunk of slots, or until visits
// have cost AtOnce together. A step may visit none and yet not be the last one. Error:
// task.ErrClosed.
func (w *Walk) step(visit func(n uint32, sl *store.Slot) (cost int)) error {
	if now := w.Elapsed(); now-w.gaveWay >= giveWayEvery {
		w.gaveWay = now
		runtime.Gosched()
	}
	w.mu.Lock()
	defer w.unlock()
	if w.Ended {
		return task.ErrClosed
	}
	topics, ok := w.TopicTable.picked(&w.Pick)
	switch {
	case !ok:
		w.over = true
	case w.group != nil:
		w.Life.pieces.note(w.membersLocked(&topics, visit))
	default:
		w.Life.pieces.note(w.slotsLocked(&topics, visit))
	}
	return nil
}

func (w *Walk) in(sl *store.Slot) bool { return w.earliest <= sl.Next && sl.Next <= w.latest }

// membersLocked goes over some tasks of the group. Each of them is a wait for memory or two,
// so that they are not as many as slots would be.
func (w *Walk) membersLocked(topics *picked, visit func(uint32, *store.Slot) int) (cost int) {
	for looks := 0; looks < AtOnce && cost < AtOnce; looks++ {
		n := w.Store.Advance(w.group)
		if n == 0 {
			w.over = true
			return cost
		}
		if sl := w.Store.Slot(n); w.in(sl) && topics.has(sl.Topic) {
			cost += visit(n, sl)
		}
	}
	return cost
}

// slotsLocked goes over the rest of a chunk.
func (w *Walk) slotsLocked(topics *picked, visit func(uint32, *store.Slot) int) (cost int) {
	from := w.from
	if from < w.end {
		rest := w.Store.Rest(from)
		w.from += uint32(len(rest))
		for i := range rest {
			sl := &rest[i]
			if sl.State == store.Vacant || !w.in(sl) || !topics.has(sl.Topic) {
				continue
			}
			if cost += visit(from+uint32(i), sl); cost >= AtOnce {
				w.from = from + uint32(i) + 1
				break
			}
		}
	}
	w.over = w.over || w.from >= w.end
	return cost
}

// eachIn calls visit for the members of a map, under the lock, which others get in between. They
// may change the map.
func eachIn[K comparable, V any](s *Engine, members map[K]V, visit func(K, V)) {
	s.mu.Lock()
	defer func() { s.unlock() }()
	count := 0
	for k, v := range members {
		if count++; count%AtOnce == 0 {
			s.unlock()
			runtime.Gosched() // see giveWayEvery
			s.mu.Lock()
		}
		visit(k, v)
	}
}

// A Snapshot is the shards that this node holds, with all their tasks in memory, for as long as
// an operation on all of them runs: by number, as long as the term is the same. The
// spool counts as one of them.
type Snapshot map[int]snapshotShard

// A snapshotShard is one of them, with its ID as the ledger names it now: once Redis has lost
// the numbers of the nodes, it may be another one than when the term began.
type snapshotShard struct {
	*OwnedShard
	ShardID recovery.ShardID
}

// Covering runs an operation on all tasks of this node, which ends before the time of ctx is over,
// so that its caller still gets an answer. It returns the shards that the operation covers. Results
// of a shard count only if its number is in the snapshot. Errors: those of the operation, and of
// beginSnapshot and Snapshot.end.
func (s *Engine) Covering(ctx context.Context, do func(ctx context.Context) error) (st Snapshot, covered []recovery.ShardID, err error) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, time.Until(deadline)*9/10, ErrLate)
		defer cancel()
	}
	st, movesInDoubt, err := s.beginSnapshot(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := do(ctx); err != nil {
		if errors.Is(err, ctx.Err()) && !errors.Is(err, task.ErrUnknown) {
			err = fmt.Errorf("%w: %w", task.ErrUnavailable, context.Cause(ctx))
		}
		return nil, nil, Late(err)
	}
	covered, err = st.end(ctx, s, movesInDoubt)
	return st, covered, err
}

// beginSnapshot waits until all that this node holds is in memory. It also returns how many moves
// of spooled tasks have ever been in doubt. Errors: ErrReplaying, ErrUnavailable, ErrClosed.
func (s *Engine) beginSnapshot(ctx context.Context) (st Snapshot, movesInDoubt int, err error) {
	ctx, cancel := s.Within(ctx)
	defer cancel()
	if err := s.waitReplayed(ctx); err != nil {
		return nil, 0, err
	}
	s.mu.Lock()
	defer s.unlock()
	switch {
	case s.Ended:
		return nil, 0, task.ErrClosed
	case s.Unsure():
		return nil, 0, ErrUnsure
	case s.Spool != nil && len(s.Spool.InDoubt) > 0:
		return nil, 0, ErrInDoubt
	}
	st = make(Snapshot)
	for n, h := range s.Shards.List {
		if h != nil && h.stage == active {
			st[n] = snapshotShard{h, s.Fleet.ShardID(n)}
		}
	}
	if s.Spool != nil {
		st[SpoolShard], movesInDoubt = snapshotShard{OwnedShard: s.Spool.ownedShard}, s.Spool.MovesInDoubt
	}
	return st, movesInDoubt, nil
}

// ErrInDoubt is returned while the outcome of a move out of the spool is not known: its tasks have
// left memory and may come back. It is a passing error.
var ErrInDoubt = task.KindOf(ErrNotHeld, "spool move outcome unknown; retry")

// end removes shards that have left this process since beginSnapshot, or that the ledger
// has lost and has not reported yet: it has not read their dead. It lists the others. Errors:
// task.ErrClosed; ErrUnsure; ErrInDoubt if a move out of the spool became doubtful since.
func (st Snapshot) end(ctx context.Context, s *Engine, movesInDoubt int) (covered []recovery.ShardID, err error) {
	for n, h := range st {
		if n == SpoolShard {
			continue
		}
		if at, err := s.Fleet.Locate(ctx, h.OwnedShard.ShardID, false); err != nil || at.Shard != n {
			delete(st, n)
		}
	}
	s.mu.Lock()
	defer s.unlock()
	switch {
	case s.Ended:
		return nil, task.ErrClosed
	case s.Unsure():
		return nil, ErrUnsure
	case s.Spool != nil && s.Spool.MovesInDoubt != movesInDoubt:
		return nil, ErrInDoubt
	}
	for n, h := range st {
		switch {
		case h.stage != active: // a term that is over is never held again
			delete(st, n)
		case h.ShardID != 0:
			covered = append(covered, h.ShardID)
		}
	}
	slices.Sort(covered)
	return covered, nil
}

// orderedAtOnce is how many slots are read into the store's Order under one lock.
const orderedAtOnce = 4 * AtOnce

// ErrOrder is the cause of an error when the Order could not be completed in time. What was read
// into it stays for the next call.
var ErrOrder = errors.New("the tasks in memory could not be put in order in time; repeat the call")

// OrderedSlots returns the first list of the store's Order from one on that has slots, and these
// slots, after it had the store complete the Order. It returns store.OrderLists if there is none.
// Another export may have the Order begin anew at any time, and it is dropped when it was not used:
// so it is complete under the lock under which the list is taken. Errors: ErrClosed; ErrUnavailable
// when ctx ends.
func (s *Engine) OrderedSlots(ctx context.Context, from int) (list int, slots []uint32, err error) {
	for {
		s.mu.Lock()
		ended, whole := s.Ended, s.Store.OrderSome(orderedAtOnce, time.Now())
		if list = s.Store.NextList(from); whole && list < store.OrderLists {
			slots, _ = s.Store.Ordered(list)
		}
		s.unlock()
		switch {
		case ended:
			return 0, nil, task.ErrClosed
		case whole:
			return list, slots, nil
		case ctx.Err() != nil:
			return 0, nil, fmt.Errorf("%w: %w", task.ErrUnavailable, context.Cause(ctx))
		}
	}
}

// VisitSlots calls visit, under the lock, for those of at most AtOnce slots that have tasks, until
// it reports that there is to be no more.
func (s *Engine) VisitSlots(slots []uint32, visit func(i int, sl *store.Slot) (more bool)) {
	s.mu.Lock()
	defer s.unlock()
	for i, n := range slots {
		if sl := s.Store.Slot(n); sl.State.Shown() != 0 && !visit(i, sl) {
			return
		}
	}
}

// VisitNamed calls visit, under the lock, for those of some ids whose tasks are in memory, and
// returns those whose tasks are dead or kept. A task that exists is one or the other: the slot of
// one that is requeued is entered before it counts as buried no longer, and leaves after it does.
// Errors: ErrClosed.
func (s *Engine) VisitNamed(ids []string, visit func(id string, sl *store.Slot)) (buried []string, err error) {
	s.mu.Lock()
	defer s.unlock()
	if s.Ended {
		return nil, task.ErrClosed
	}
	for _, id := range ids {
		n, at := s.LookupLocked([]byte(id))
		if at == InMemory && s.Store.Slot(n).State.Shown() != 0 {
			visit(id, s.Store.Slot(n))
		} else if s.OutsideLocked(s.Store.Hash([]byte(id))).Buried() {
			buried = append(buried, id)
		}
	}
	return buried, nil
}
