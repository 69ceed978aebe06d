package engine

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

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
	until       time.Time
	looks, size int
}

// over reports whether the call has looked at enough of them. It looks at one at least, however
// late the ledger answers: a list that ends at no position cannot be continued.
func (x *search) over() bool {
	return (x.Searches() || x.bare) && x.looks > 0 && (x.looks >= query.LooksAtOnce || x.size >= deadLookBytes || !time.Now().Before(x.until))
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

// DeadReasons says why dead tasks of this node are dead: those of a topic, or of all topics of
// q.Patterns, that a query selects. It looks at query.LooksAtOnce of them, as for a page of a list.
// Of several topics each has a share of that, so that one with many dead tasks leaves the others
// some; those with most come first. Errors: task.ErrClosed, task.ErrUnavailable.
func (s *Engine) DeadReasons(ctx context.Context, q *query.List, limit int) (task.DeadReasons, error) {
	if s.IsClosing() {
		return task.DeadReasons{}, task.ErrClosed
	}
	topics := s.deadTopics(q)
	var t task.DeadTally
	t.Complete = isClosed(s.Reading.deadRead)
	x := search{Filter: &q.Filter, bare: true, until: time.Now().Add(lookTime(ctx))}
	shares, spare := sharesOf(topics, query.LooksAtOnce), 0
	for i := range topics {
		t.Dead += topics[i].dead
		if !t.Complete && x.over() {
			continue
		}
		looked := x.looks
		whole, err := s.tallyDead(ctx, topics[i].name, shares[i]+spare, &x, &t)
		if err != nil {
			return task.DeadReasons{}, err
		}
		spare += shares[i] - (x.looks - looked)
		t.Complete = t.Complete && whole
	}
	t.LookedAt = x.looks
	return t.Most(limit), nil
}

// tallyDead counts the dead tasks of a topic. It looks at so many of them at most, and reports
// whether these are all that a filter may select.
func (s *Engine) tallyDead(ctx context.Context, topic string, most int, x *search, t *task.DeadTally) (whole bool, err error) {
	whole = true
	err = s.ListDead(ctx, topic, x.Start(recovery.Ref{}), func(e recovery.Entry) bool {
		switch {
		case x.Passed(e.Spot.At):
			return false
		case most <= 0 || x.over():
			whole = false
			return false
		}
		x.look(&e)
		most--
		f, err := record.Decode(e.Data)
		if err != nil || !x.HasRecord(recovery.Ref{ID: string(e.ID), Next: e.Spot.At}, &f, reasons[f.State]) {
			return true
		}
		text, died := string(f.LastError), record.FromMillis(e.Spot.At)
		t.AddReason(task.DeadReason{
			Topic: topic, Reason: reasons[f.State], Error: task.LikeError(text), Example: task.Cut(text, task.MaxBriefError),
			Count: 1, FirstDied: died, LastDied: died,
		})
		return true
	})
	return whole, err
}

// A topicOfDead is a topic with dead tasks.
type topicOfDead struct {
	name string
	dead int
}

// deadTopics returns the topics whose dead tasks a query is about, those with most first.
func (s *Engine) deadTopics(q *query.List) (topics []topicOfDead) {
	if q.Topic != "" {
		return []topicOfDead{{q.Topic, s.DeadCount(q.Topic)}}
	}
	s.EachTopic(func(t *Topic) {
		if dead := t.Gauges[task.Dead]; dead > 0 && task.AnyMatches(q.Patterns, t.Name) {
			topics = append(topics, topicOfDead{t.Name, int(dead)})
		}
	})
	slices.SortFunc(topics, func(a, b topicOfDead) int { return cmp.Or(cmp.Compare(b.dead, a.dead), cmp.Compare(a.name, b.name)) })
	return topics
}

// sharesOf divides a number of looks among topics, the one with most dead tasks being the first: as
// many as it has to each, if that is no more than its equal part of what those with fewer leave. A
// single one gets all, since its count may be behind.
//
//	9 looks among topics of 100, 4 and 1  ->  4, 4, 1
func sharesOf(topics []topicOfDead, looks int) []int {
	shares := make([]int, len(topics))
	for i := len(topics) - 1; i > 0; i-- {
		shares[i] = min(topics[i].dead, looks/(i+1))
		looks -= shares[i]
	}
	if len(topics) > 0 {
		shares[0] = looks
	}
	return shares
}
