package engine

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A Filter selects tasks of a list by more than their topic, group and state. The zero value
// selects all of them.
//
// A list is ordered by the time of the next attempt, of dead tasks by that of their death. The
// window is of the same time. So a list begins at the start of the window and ends at its end. All
// else has to be looked up in the records, which are far apart in memory, or in the ledger: one
// call looks at LooksAtOnce of them at most. Its page may be short, or empty, although there is
// more.
type Filter struct {
	IDPrefix string
	Error    string      // in small letters; a part of the last error, whose letters may be capital
	Like     string      // a pattern of task.LikeError, that of the last error
	Group    string      // of tasks that the ledger lists; those in memory are found by their group
	Reason   task.Reason // of a death
	From, To int64       // Unix milliseconds: the window, without To; To 0: it has no end
}

const (
	// LooksAtOnce is at how many tasks one call with a Filter looks, at each node.
	LooksAtOnce = 20_000
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

// NewFilter returns the filter of a query. It adds to the faults what is wrong with it.
func NewFilter(q *task.Query, f *task.Faults) Filter {
	filter := Filter{IDPrefix: q.IDPrefix, Error: strings.ToLower(q.Error), Reason: q.Reason}
	if q.ErrorLike != "" {
		filter.Like = task.LikeError(q.ErrorLike)
	}
	if ListsBuried(q.State) {
		filter.Group = q.Group
	}
	if q.IDPrefix != "" && !task.ValidName(q.IDPrefix) {
		f.Add("id_prefix", task.NameProblem)
	}
	if len(q.Error) > task.MaxErrorPart {
		f.Add("error", "must be at most 256 bytes")
	}
	if len(q.ErrorLike) > task.MaxReason {
		f.Add("error_like", "must be at most 1024 bytes")
	}
	const withDead, withoutDead = "needs the state dead", "must not stand beside the state dead: give died_from and died_to"
	const withoutFinished = "must not stand beside the state finished"
	switch q.Reason {
	case "", task.Exhausted, task.Buried, task.TopicDeleted:
	default:
		f.Add("reason", "must be exhausted, buried or deleted")
	}
	if q.Reason != "" && q.State != task.Dead {
		f.Add("reason", withDead)
	}
	due, died := "", withDead
	switch q.State {
	case task.Dead:
		due, died = withoutDead, ""
	case task.Finished:
		due = withoutFinished
	}
	filter.window(f, "due", q.DueFrom, q.DueTo, due)
	filter.window(f, "died", q.DiedFrom, q.DiedTo, died)
	return filter
}

// window reads one of the two windows of a query. refused says why it must not be given.
func (f *Filter) window(faults *task.Faults, name string, from, to time.Time, refused string) {
	if !from.IsZero() {
		if refused != "" {
			faults.Add(name+"_from", refused)
		}
		f.From = max(Millis(from), 0)
	}
	if !to.IsZero() {
		f.To = Millis(to)
		switch {
		case refused != "":
			faults.Add(name+"_to", refused)
		case !to.After(from) || f.To <= 0:
			faults.Add(name+"_to", "must be after "+name+"_from, and after 1970-01-01T00:00:00Z")
		}
	}
}

// Start is the position behind which a list begins that would begin behind after without the
// window.
func (f *Filter) Start(after recovery.Ref) recovery.Ref {
	if after.Next < f.From {
		return recovery.Ref{Next: f.From} // every id comes behind the empty one
	}
	return after
}

// Passed reports whether a position is behind the window: nothing follows. A held task has no next
// attempt, and is in no window.
func (f *Filter) Passed(at int64) bool {
	return at > f.latest()
}

// latest is the last time that has not passed.
func (f *Filter) latest() int64 {
	last := int64(math.MaxInt64)
	if f.To != 0 {
		last = f.To - 1
	}
	if f.From != 0 {
		last = min(last, record.HeldUntil-1)
	}
	return last
}

// hasPosition reports whether a task at a position of the list may be selected.
func (f *Filter) hasPosition(at recovery.Ref) bool {
	return at.Next >= f.From && !f.Passed(at.Next) && strings.HasPrefix(at.ID, f.IDPrefix)
}

// hasError reports whether the last error of a task is selected.
func (f *Filter) hasError(text string) bool {
	return (f.Error == "" || strings.Contains(strings.ToLower(text), f.Error)) && (f.Like == "" || task.LikeError(text) == f.Like)
}

// readsErrors reports whether the last errors of tasks decide which are selected.
func (f *Filter) readsErrors() bool { return f.Error != "" || f.Like != "" }

// hasRecord reports whether the task of a record is selected.
func (f *Filter) hasRecord(at recovery.Ref, r *record.Fields) bool {
	return f.hasPosition(at) && (f.Reason == "" || reasons[r.State] == f.Reason) && (f.Group == "" || string(r.Group) == f.Group) &&
		(!f.readsErrors() || f.hasError(string(r.LastError)))
}

// searches reports whether tasks have to be looked at one by one to find those that are selected.
func (f *Filter) searches() bool {
	return f.IDPrefix != "" || f.readsErrors() || f.Reason != "" || f.Group != ""
}

// A search counts at how many dead tasks a call has looked.
type search struct {
	*Filter
	bare        bool // a page may be so long that it is bounded all the same
	until       time.Time
	looks, size int
}

// over reports whether the call has looked at enough of them. It looks at one at least, however
// late the ledger answers: a list that ends at no position cannot be continued.
func (x *search) over() bool {
	return (x.searches() || x.bare) && x.looks > 0 && (x.looks >= LooksAtOnce || x.size >= deadLookBytes || !time.Now().Before(x.until))
}

// look counts a record.
func (x *search) look(e *recovery.Entry) { x.looks, x.size = x.looks+1, x.size+len(e.Data) }

// VisitPositions is VisitPage for the positions of the tasks alone. One call visits up to
// LooksAtOnce of them. It waits for the end of replay, or what was not read yet would be missing.
func (s *Engine) VisitPositions(ctx context.Context, q *ListQuery, visit func(at recovery.Ref, shard int)) (last *recovery.Ref, err error) {
	if err := s.replayedWithin(ctx); err != nil {
		return nil, err
	}
	if s.Unsure() {
		return nil, ErrUnsure
	}
	return s.visitPage(ctx, q, true, func(t task.Task, at int64, shard int) bool {
		visit(recovery.Ref{ID: t.ID, Next: at}, shard)
		return true
	})
}

// A position is where a task stands in the list, and its shard.
type position struct {
	recovery.Ref
	shard int
}

// nextPositions looks for tasks that are still there and selected, up to limit of them. It returns
// at how many it has looked: at most at as many as is done under one lock.
func (s *Engine) nextPositions(q *ListQuery, refs []recovery.Ref, limit int) (some []position, looks int) {
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
func (s *Engine) stillListedLocked(q *ListQuery, ref recovery.Ref) (uint32, *store.Slot) {
	n, ok := s.Store.Find([]byte(ref.ID))
	if !ok {
		return 0, nil
	}
	sl := s.Store.Slot(n)
	if sl.State.Shown() == 0 || !s.selectedLocked(&q.Filter, sl, ref.ID) {
		return 0, nil
	}
	return n, sl
}

// selectedLocked reports whether a filter selects a task, as it stands now.
func (s *Engine) selectedLocked(f *Filter, sl *store.Slot, id string) bool {
	at := recovery.Ref{ID: id, Next: sl.Next}
	if !f.readsErrors() {
		return f.hasPosition(at)
	}
	r := s.Store.Fields(sl)
	return f.hasRecord(at, &r)
}

// DeadReasons says why dead tasks of this node are dead: those of a topic, or of all topics of
// q.Patterns, that a query selects. It looks at LooksAtOnce of them, as a page of a list does. Of
// several topics each has a share of that, so that one with many dead tasks leaves the others some;
// those with most come first. Errors: task.ErrClosed, task.ErrUnavailable.
func (s *Engine) DeadReasons(ctx context.Context, q *ListQuery, limit int) (task.DeadReasons, error) {
	if s.IsClosing() {
		return task.DeadReasons{}, task.ErrClosed
	}
	topics := s.deadTopics(q)
	var t task.DeadTally
	t.Complete = isClosed(s.Reading.deadRead)
	x := search{Filter: &q.Filter, bare: true, until: time.Now().Add(lookTime(ctx))}
	shares, spare := sharesOf(topics, LooksAtOnce), 0
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
		if err != nil || !x.hasRecord(recovery.Ref{ID: string(e.ID), Next: e.Spot.At}, &f) {
			return true
		}
		text, died := string(f.LastError), FromMillis(e.Spot.At)
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
func (s *Engine) deadTopics(q *ListQuery) (topics []topicOfDead) {
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
