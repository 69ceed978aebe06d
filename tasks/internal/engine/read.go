package engine

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine/minutes"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// Get returns a task of this node. Errors: as of tasks.Scheduler.Get.
func (s *Engine) Get(ctx context.Context, id string) (t task.Task, err error) {
	defer func() {
		if err == nil {
			t.SeenAt = s.Config.Clock().UTC()
		}
	}()
	n, sl, err := s.lockTask(ctx, id)
	for rechecked := false; errors.Is(err, task.ErrDead) || errors.Is(err, ErrKept); {
		t, absent := s.getBuried(ctx, id)
		if rechecked || !errors.Is(absent, task.ErrNotFound) {
			return t, absent
		}
		// It has just been requeued or deleted, or the ledger has lost it.
		if err = s.RecheckDead(ctx, []string{id}); err != nil {
			return t, err
		}
		rechecked = true
		n, sl, err = s.lockTask(ctx, id)
	}
	switch {
	case err != nil:
		return task.Task{}, err
	}
	defer s.unlock()
	t, err = s.readLocked(n, sl, task.ConditionsOf(ctx))
	if err == nil {
		f := s.Store.Fields(sl)
		t.Attempts = attemptsOf(&f)
	}
	return t, err
}

// Peek is tasks.Admin.Peek.
func (s *Engine) Peek(ctx context.Context, id []byte, t *task.Task) (found, known bool) {
	defer func() {
		if found && known {
			t.SeenAt = s.Config.Clock().UTC()
		}
	}()
	hash := s.Store.Hash(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Ended || s.Unsure() {
		return false, false
	}
	n, at := s.lookupHashedLocked(hash, id)
	if at != InMemory {
		return false, s.Fleet == nil && at == Absent
	}
	sl := s.Store.Slot(n)
	h := s.OwnedLocked(int(sl.Shard))
	if sl.State.Busy() || !h.mine() || h.transferring || s.TopicTable.permit(task.ConditionsOf(ctx), s.Store, sl) != nil {
		return false, false
	}
	f := s.Store.Fields(sl)
	*t = task.Task{
		Topic: s.TopicTable.ByNumber[sl.Topic].Name, State: sl.State.Shown(), Due: record.FromMillis(f.Due),
		Payload: append(t.Payload[:0], f.Payload...), Attempt: int(f.Attempt),
	}
	if t.State == task.Pending && f.Flags&record.Held != 0 {
		t.State = task.Held
	}
	return true, true
}

// readLocked returns a task as it stands, or why the caller may not be told.
func (s *Engine) readLocked(n uint32, sl *store.Slot, conds *task.Conditions) (task.Task, error) {
	if h := s.OwnedLocked(int(sl.Shard)); h != nil && h.transferring {
		return task.Task{}, ErrHandedOver // the other node may have changed it
	}
	if err := s.TopicTable.permit(conds, s.Store, sl); err != nil {
		return task.Task{}, err
	}
	return s.ListedLocked(n, false), nil
}

// getBuried reads a task that is dead, or finished and kept.
func (s *Engine) getBuried(ctx context.Context, id string) (task.Task, error) {
	var t task.Task
	found, refused := false, error(nil)
	err := s.Ledger.GetDead(ctx, []string{id}, func(_ int, e recovery.Entry) {
		if f, err := record.Decode(e.Data); err == nil {
			t, found = s.describeBuried(id, &f), true
			refused = task.ConditionsOf(ctx).Permit(t.Topic, t.Revision, f.Created)
		}
	})
	switch {
	case err != nil:
		return task.Task{}, fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	case !found:
		return task.Task{}, task.ErrNotFound
	case refused != nil:
		return task.Task{}, refused
	}
	return t, nil
}

// ListedLocked describes a task as it stands for a list that is brief or not.
func (s *Engine) ListedLocked(n uint32, brief bool) task.Task {
	sl := s.Store.Slot(n)
	f := s.Store.Fields(sl)
	if brief {
		shorten(&f)
	}
	t := s.describe(string(s.Store.ID(sl)), &f, sl.State.Shown())
	if t.State != task.Held {
		t.Next = record.FromMillis(sl.Next)
	}
	t.Spooled = sl.Shard == SpoolShard
	if t.Target != nil {
		t.Target.Undeliverable = s.TopicTable.ByNumber[sl.Topic].missesTarget(string(t.Target.Kind))
	}
	if l, ok := s.Dispatch.Leases[n]; ok {
		t.Attempt = int(l.Attempt)
	}
	return t
}

// shorten leaves out what a brief list does not tell.
func shorten(f *record.Fields) {
	f.Payload, f.Headers, f.Target = nil, nil, nil
	if len(f.LastError) > task.MaxBriefError {
		f.LastError = []byte(task.Cut(string(f.LastError), task.MaxBriefError))
	}
}

// ListedBuried makes a Task of a record at the place of the dead, for a list that is brief or not.
func (s *Engine) ListedBuried(id string, f *record.Fields, brief bool) task.Task {
	if !brief {
		return s.describeBuried(id, f)
	}
	shorten(f)
	return s.describe(id, f, buriedState(f))
}

// buriedState is the state of a task whose record is at the place of the dead.
func buriedState(f *record.Fields) task.State {
	if record.IsFinished(f.State) {
		return task.Finished
	}
	return task.Dead
}

// describeBuried makes a Task of a record at the place of the dead, with its attempts.
func (s *Engine) describeBuried(id string, f *record.Fields) task.Task {
	t := s.describe(id, f, buriedState(f))
	t.Attempts = attemptsOf(f)
	return t
}

// ListPage returns the first tasks here, in their order, each with the time under which it stands
// in the list, and their shards. They end at about q.Bytes. It also returns the position behind
// which there may be more, or nil. With a Filter it may have found none before that.
//
// A page is never a part of the tasks told as all: one of tasks in memory waits for the end of
// replay, as long as Within allows. Errors: ErrReplaying, ErrUnavailable, ErrClosed; why ctx has
// ended.
func (s *Engine) ListPage(ctx context.Context, q *query.List) (all []query.Listed, shards []int, last *recovery.Ref, err error) {
	most, size := min(cmp.Or(q.Bytes, task.MaxPageBytes), task.MaxPageBytes), 0
	last, err = s.visitPage(ctx, q, false, func(t task.Task, at int64, shard int) bool {
		all, shards = append(all, query.Listed{Task: t, At: at}), append(shards, shard)
		size += query.SizeOf(&t)
		return size < most
	})
	return all, shards, last, err
}

// ListTasks is ListPage at a node without others, which need neither positions nor shards.
func (s *Engine) ListTasks(ctx context.Context, q *query.List) (tasks []task.Task, last *recovery.Ref, err error) {
	tasks = make([]task.Task, 0, min(q.Limit, 100))
	size := 0
	last, err = s.visitPage(ctx, q, false, func(t task.Task, _ int64, _ int) bool {
		tasks = append(tasks, t)
		size += query.SizeOf(&t)
		return size < task.MaxPageBytes
	})
	return tasks, last, err
}

// visitPage hands out what a page may have, until visit returns false. bare: of the tasks only the
// ids are wanted.
func (s *Engine) visitPage(ctx context.Context, q *query.List, bare bool, visit func(t task.Task, at int64, shard int) bool) (last *recovery.Ref, err error) {
	if q.Buried() {
		return s.visitDead(ctx, q, bare, visit)
	}
	if err := s.replayedWithin(ctx); err != nil {
		return nil, err
	}
	most := q.Limit
	if q.Filter.Searches() {
		most = query.LooksAtOnce
	}
	first, err := s.selectSoonest(ctx, q, most+1)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(first, query.CompareRefs)
	more := len(first) > most
	first = first[:min(len(first), most)]
	listed, full := 0, false
	for i := 0; i < len(first); {
		if listed == q.Limit || full {
			return &first[i-1], nil
		}
		if bare {
			some, n := s.nextPositions(q, first[i:], q.Limit-listed)
			for _, at := range some {
				visit(task.Task{ID: at.ID}, at.Next, at.shard)
			}
			listed, i = listed+len(some), i+n
			continue
		}
		t, shard, n, found := s.nextListed(q, first[i:])
		if i += n; found {
			listed++
			full = !visit(t, first[i-1].Next, shard)
		}
	}
	if more {
		return &first[most-1], nil
	}
	return nil, nil
}

// nextListed looks for a task that is still there and selected. It returns at how many of the
// tasks it has looked, the one that it has found being the last of them. If it has found none, it
// has looked at as many as is done under one lock.
func (s *Engine) nextListed(q *query.List, refs []recovery.Ref) (t task.Task, shard, looks int, found bool) {
	s.mu.Lock()
	defer s.unlock()
	refs = refs[:min(len(refs), AtOnce)]
	for i, ref := range refs {
		if n, sl := s.stillListedLocked(q, ref); sl != nil {
			return s.ListedLocked(n, q.Brief), int(sl.Shard), i + 1, true
		}
	}
	return t, 0, len(refs), false
}

// selectSoonest looks for the soonest tasks after a cursor.
func (s *Engine) selectSoonest(ctx context.Context, q *query.List, limit int) (first soonest, err error) {
	w := s.walk(Pick{q.Topic, q.Patterns}, q.Group)
	w.earliest, w.latest = q.After.Next, q.Filter.Latest()
	defer w.Leave()
	for !w.over {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := w.step(func(_ uint32, sl *store.Slot) (cost int) {
			if !hasState(sl, q.State) || q.Retrying && s.TopicTable.ByNumber[sl.Topic].Retrying == 0 {
				return 0
			}
			if !q.Retrying || s.Store.Attempted(sl) {
				first.consider(limit, sl.Next, s.Store.ID(sl), q.After)
			}
			if len(first) == limit {
				w.latest = first[0].Next
			}
			return 1 // for a look at an id or a record, which are not beside the slots
		}); err != nil {
			return nil, err
		}
	}
	return first, nil
}

// hasState reports whether a task is shown in a state, or is held; 0: in any.
func hasState(sl *store.Slot, state task.State) bool {
	shown := sl.State.Shown()
	if state == task.Held {
		return shown == task.Pending && sl.Next == record.HeldUntil
	}
	return shown != 0 && (state == 0 || shown == state)
}

// soonest keeps the soonest tasks seen so far. Once it is full, it is a heap with the last on top.
type soonest []recovery.Ref

// consider keeps a task if it is among the soonest so far. The ids of many tasks of one time are
// compared where they are.
func (h *soonest) consider(limit int, next int64, id []byte, after recovery.Ref) {
	switch all := *h; {
	case next == after.Next && string(id) <= after.ID:
	case len(all) < limit:
		*h = append(*h, recovery.Ref{Next: next, ID: string(id)})
		if len(*h) == limit {
			heap.Init(*h)
		}
	case next < all[0].Next || string(id) < all[0].ID:
		all[0] = recovery.Ref{Next: next, ID: string(id)}
		heap.Fix(all, 0)
	}
}

func (h soonest) Len() int { return len(h) }

func (h soonest) Less(i, j int) bool { return query.CompareRefs(h[i], h[j]) > 0 }

func (h soonest) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

func (h soonest) Push(any) { panic("it is never more than full") }

func (h soonest) Pop() any { panic("it is never less than full") }

// Forecast is tasks.Admin.Forecast, from a time on that is now, in Unix milliseconds. Several
// nodes that forecast together take the same one.
func (s *Engine) Forecast(ctx context.Context, o task.Outlook, now int64) (task.Forecast, error) {
	if err := o.Faults().Err(); err != nil {
		return task.Forecast{}, err
	}
	step := record.RoundUpMillis(o.Step)
	f := task.Forecast{
		From: time.UnixMilli(now), Step: time.Duration(step) * time.Millisecond,
		Counts:   make([]int64, (record.RoundUpMillis(o.Window)+step-1)/step),
		Complete: s.IsReplayed(),
	}
	if o.Topic != "" {
		if err := Granted(ctx, o.Topic); err != nil {
			return task.Forecast{}, err
		}
	}
	w := s.walk(Pick{o.Topic, task.PatternsOf(ctx)}, "")
	for !w.over {
		if err := ctx.Err(); err != nil {
			return task.Forecast{}, err
		}
		if err := w.step(func(_ uint32, sl *store.Slot) (cost int) {
			shown, next, t := sl.State.Shown(), sl.Next, s.TopicTable.ByNumber[sl.Topic]
			if t.Settings.Spread > 0 && shown == task.Pending && sl.Flags&store.Missed == 0 && next != record.HeldUntil && !s.Store.Attempted(sl) {
				next, cost = t.deadline(s.Store, sl, false), 1
			}
			switch k := (next - now) / step; {
			case shown == 0:
			case shown == task.Delivering:
				f.Delivering++
			case next == record.HeldUntil:
				f.Held++
			case next <= now:
				f.Ready++
				if t.Settings.Paused {
					f.ReadyPaused++
				}
			case k < int64(len(f.Counts)):
				f.Counts[k]++
			default:
				f.Later++
			}
			return cost
		}); err != nil {
			return f, err
		}
	}
	return f, nil
}

// Waves is tasks.Admin.Waves of a query that was checked. What is open is counted by a walk,
// what has ended by the minutes that are remembered. A task that ends meanwhile counts once.
func (s *Engine) Waves(ctx context.Context, q task.WaveQuery) (task.Wave, error) {
	if q.Topic != "" {
		if err := Granted(ctx, q.Topic); err != nil {
			return task.Wave{}, err
		}
	}
	from, to := record.Millis(q.From), record.Millis(q.To)
	v := task.Wave{From: q.From, To: q.To, At: s.Config.Clock().UTC(), Complete: s.IsReplayed()}
	v.Since = record.FromMillis(s.TopicTable.History.Ended.Since) // which never changes
	all := task.NewWaveTally(ctx, q.Topic)
	w, err := lookAtWave(ctx, s, Pick{q.Topic, task.PatternsOf(ctx)})
	if err != nil {
		return task.Wave{}, err
	}
	defer w.looked()
	w.earliest = from // no attempt comes before the deadline
	for !w.over {
		if err := ctx.Err(); err != nil {
			return task.Wave{}, err
		}
		if err := w.step(func(_ uint32, sl *store.Slot) (cost int) {
			if sl.State.Shown() == 0 || sl.State == store.Burying || sl.State == store.Requeuing {
				return 0 // the last two count as dead
			}
			due := sl.Next
			// Only of a task whose next attempt is its first is that its deadline.
			if sl.Flags&store.Missed != 0 || due == record.HeldUntil || sl.State != store.Pending {
				due, cost = record.Due(s.Store.Record(sl)), 1
			}
			if from <= due && due < to {
				open(all.Of(s.TopicTable.ByNumber[sl.Topic].Name), sl, record.FromMillis(due))
			}
			return cost
		}); err != nil {
			return task.Wave{}, err
		}
	}
	s.EachEnded(minutes.MinuteOf(from), minutes.MinuteOf(to), func(r *minutes.Row) {
		c := r.Wave()
		all.Enter(r.Topic, &c)
	})
	eachIn(s, all.Topics, func(name string, c *task.WaveCounts) {
		if t, ok := s.TopicTable.ByName[name]; ok && t.recent != nil {
			c.Per1000s = int64(1000 * t.recent.Rate(s.Elapsed()))
		}
	})
	all.AddTo(&v)
	return v, nil
}

// lookAtWave begins a walk that is alone in looking at what ends. looked ends it. Errors:
// ErrOverloaded if too many wait to do so; why ctx has ended.
func lookAtWave(ctx context.Context, s *Engine, p Pick) (*Walk, error) {
	ended := s.TopicTable.History.Ended
	select {
	case ended.Waits <- struct{}{}:
	default:
		return nil, task.KindOf(task.ErrOverloaded, "other waves are being counted")
	}
	defer func() { <-ended.Waits }()
	select {
	case ended.Looks <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.walkLocked(p, "")
	ended.Look(func(n uint32) bool { return n < w.from || n >= w.end })
	return w, nil
}

func (w *Walk) looked() {
	ended := w.TopicTable.History.Ended
	for all := false; !all; {
		w.mu.Lock()
		all = ended.Looked(AtOnce)
		w.mu.Unlock()
	}
	<-ended.Looks
}

// open counts a task that has not ended.
func open(c *task.WaveCounts, sl *store.Slot, due time.Time) {
	switch {
	case sl.Next == record.HeldUntil:
		c.Held++
		return
	case sl.State.Shown() == task.Delivering:
		c.Delivering++
	case sl.Flags.IsMissed():
		c.Retrying++
	default:
		c.Waiting++
	}
	if c.Oldest.IsZero() || due.Before(c.Oldest) {
		c.Oldest = due
	}
}

// EachEnded visits how the tasks have ended that were due from one minute on until before another
// one. The engine is locked meanwhile, for AtOnce rows at a time.
func (s *Engine) EachEnded(from, to int64, visit func(*minutes.Row)) {
	for minute := from; minute < to; minute++ {
		for at, more := 0, true; more; more = at != 0 {
			s.mu.Lock()
			at = s.TopicTable.History.Ended.Visit(minute, at, AtOnce, visit)
			s.mu.Unlock()
		}
	}
}

// reasons are what the states of dead records say. See package record.
var reasons = [record.States]task.Reason{record.Exhausted: task.Exhausted, record.Buried: task.Buried, record.TopicDeleted: task.TopicDeleted}

const (
	// Dead tasks are read with their payloads. One call reads about so much of them at most.
	deadLookBytes = 16 << 20
	// deadLookTime is after how long such a call reads no more, so that the caller gets an answer
	// from a slow ledger. It is a quarter of the time that the caller has left, if that is less.
	deadLookTime = time.Second
)

// lookTime returns for how long one call reads dead tasks.
func lookTime(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return deadLookTime
	}
	return min(deadLookTime, time.Until(deadline)/4)
}

// A search counts at how many dead tasks a call has looked.
type search struct {
	*query.Filter
	bare        bool // a page may be so long that it is bounded all the same
	patient     bool // only its bytes and until bound it
	until       time.Time
	looks, size int
}

// over reports whether the call has looked at enough of them. It looks at one at least, however
// late the ledger answers: a list that ends at no position cannot be continued.
func (x *search) over() bool {
	much := !x.patient && x.looks >= query.LooksAtOnce || x.size >= deadLookBytes
	return (x.Searches() || x.bare) && x.looks > 0 && (much || !time.Now().Before(x.until))
}

// look counts a record.
func (x *search) look(e *recovery.Entry) { x.looks, x.size = x.looks+1, x.size+len(e.Data) }

// ListPositions is ListPage for the positions of the tasks alone, up to query.LooksAtOnce of them.
// It waits for the end of replay, or what was not read yet would be missing.
func (s *Engine) ListPositions(ctx context.Context, q *query.List) (all []recovery.Ref, shards []int, last *recovery.Ref, err error) {
	if err = s.replayedWithin(ctx); err == nil && s.Unsure() {
		err = ErrUnsure
	}
	if err == nil {
		last, err = s.visitPage(ctx, q, true, func(t task.Task, at int64, shard int) bool {
			all, shards = append(all, recovery.Ref{ID: t.ID, Next: at}), append(shards, shard)
			return true
		})
	}
	return all, shards, last, err
}

// A position is where a task stands in the list, and its shard.
type position struct {
	recovery.Ref
	shard int
}

// nextPositions looks for tasks that are still there and selected, up to limit of them. It returns
// at how many it has looked: at most at as many as is done under one lock.
func (s *Engine) nextPositions(q *query.List, refs []recovery.Ref, limit int) (some []position, looks int) {
	s.mu.Lock()
	defer s.unlock()
	for ; looks < min(len(refs), AtOnce) && len(some) < limit; looks++ {
		if _, sl := s.stillListedLocked(q, refs[looks]); sl != nil {
			some = append(some, position{refs[looks], int(sl.Shard)})
		}
	}
	return some, looks
}

// stillListedLocked returns a task that was found for a list; nil if it is not there any more, or
// not selected.
func (s *Engine) stillListedLocked(q *query.List, ref recovery.Ref) (uint32, *store.Slot) {
	n, ok := s.Store.Find([]byte(ref.ID))
	if !ok {
		return 0, nil
	}
	sl := s.Store.Slot(n)
	if sl.State.Shown() == 0 || !selects(&q.Filter, s.Store, sl, ref.ID) {
		return 0, nil
	}
	return n, sl
}

// selects reports whether a filter selects a task of the store, as it stands now.
func selects(f *query.Filter, b *store.Store, sl *store.Slot, id string) bool {
	at := recovery.Ref{ID: id, Next: sl.Next}
	if !f.ReadsRecords() {
		return f.HasPosition(at)
	}
	r := b.Fields(sl)
	return f.HasRecord(at, &r, reasons[r.State])
}
