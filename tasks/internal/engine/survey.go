package engine

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A survey looks at many tasks of this node until its time is over. Tasks in memory it walks over
// as lists do; it reads those that the ledger lists.
type survey struct {
	*Engine
	list  *query.List
	until time.Time
}

// Survey carries a survey out. Errors: task.ErrClosed, task.ErrUnavailable, ErrReplaying; why ctx
// has ended.
func Survey(ctx context.Context, s *Engine, q *query.Survey) (p query.SurveyPart, err error) {
	if s.IsClosing() {
		return p, task.ErrClosed
	}
	x := &survey{Engine: s, list: &q.List, until: time.Now().Add(lookTime(ctx))}
	switch q.Kind {
	case query.SurveyReasons:
		r, err := x.reasons(ctx)
		return query.SurveyPart{Reasons: &r}, err
	case query.SurveyCounts:
		x.until = time.Now().Add(countTime(ctx, q.Within))
		c, err := x.counts(ctx)
		return query.SurveyPart{Counts: &c}, err
	}
	return p, task.Invalid("kind", "is not known by this version")
}

// countTime returns for how long a count goes on, so that its caller still gets an answer.
func countTime(ctx context.Context, within time.Duration) time.Duration {
	within = min(max(within, task.MinWithin), task.MaxWithin)
	if deadline, ok := ctx.Deadline(); ok {
		within = min(within, time.Until(deadline)*3/4)
	}
	return within
}

// counts counts the tasks that the list would have.
func (x *survey) counts(ctx context.Context) (task.TaskCounts, error) {
	var t task.CountTally
	var err error
	if x.list.Buried() {
		err = x.countBuried(ctx, &t)
	} else {
		err = x.countLive(ctx, &t)
	}
	for i := range t.Topics {
		t.Total.Add(&t.Topics[i].StateCount)
	}
	return t.TaskCounts, err
}

// countLive counts tasks in memory. A count of a topic is found by its number once a step, since
// numbers are given anew.
func (x *survey) countLive(ctx context.Context, t *task.CountTally) error {
	q := x.list
	w := x.walk(Pick{q.Topic, q.Patterns}, q.Group)
	w.earliest, w.latest = q.Filter.From, q.Filter.Latest()
	defer w.Leave()
	looked := 0
	for !w.over {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !time.Now().Before(x.until) {
			break
		}
		var number uint32
		var of *task.StateCount
		if err := w.step(func(_ uint32, sl *store.Slot) (cost int) {
			looked++
			if !hasState(sl, q.State) {
				return 0
			}
			topic := x.TopicTable.ByNumber[sl.Topic]
			retrying := false
			if shown := sl.State.Shown(); shown == task.Pending && topic.Retrying > 0 {
				retrying, cost = x.Store.Attempted(sl), 1
			}
			if q.Retrying && !retrying {
				return cost
			}
			if q.Filter.Searches() {
				cost = 1
				if !selects(&q.Filter, x.Store, sl, string(x.Store.ID(sl))) {
					return cost
				}
			}
			if of == nil || number != sl.Topic {
				number, of = sl.Topic, t.TopicOf(topic.Name)
			}
			countSlot(of, sl, retrying)
			return cost
		}); err != nil {
			return err
		}
	}
	x.mu.Lock()
	defer x.unlock()
	t.LookedAt, t.Of = looked, max(looked, x.Store.Len())
	if t.Complete = w.over && x.IsReplayed(); w.over {
		t.LookedAt = t.Of // the rest was not selected by its topic, its group or its time
	}
	return nil
}

// countSlot counts a task in memory.
func countSlot(c *task.StateCount, sl *store.Slot, retrying bool) {
	switch sl.State.Shown() {
	case task.Pending:
		c.Pending++
		if sl.Next == record.HeldUntil {
			c.Held++
		} else if retrying {
			c.Retrying++
		}
	case task.Ready:
		c.Ready++
	case task.Delivering:
		c.Delivering++
	}
}

// countBuried counts dead tasks, or finished ones that are kept. Of a whole topic their number is
// known.
func (x *survey) countBuried(ctx context.Context, t *task.CountTally) error {
	topics, bare := x.buriedTopics(), x.list.Filter == query.Filter{}
	look := search{Filter: &x.list.Filter, bare: true, patient: true, until: x.until}
	t.Complete = x.knowsDead()
	for i := range topics {
		of, one := t.TopicOf(topics[i].name), &topics[i]
		count := &of.Dead
		if x.list.State == task.Finished {
			count = &of.Finished
		}
		t.Of += one.buried
		switch {
		case bare:
			*count, t.LookedAt = one.buried, t.LookedAt+one.buried
		case look.over():
			t.Complete = false
		default:
			whole, err := x.visitBuried(ctx, one, math.MaxInt, &look, func(recovery.Ref, *record.Fields) { *count++ })
			if err != nil {
				return err
			}
			t.Complete = t.Complete && whole
		}
	}
	t.LookedAt += look.looks
	t.Of = max(t.Of, t.LookedAt)
	if t.Complete {
		t.LookedAt = t.Of
	}
	return nil
}

// reasons says why dead tasks of this node are dead: those of a topic, or of all topics of the
// Patterns, that the list selects. It looks at query.LooksAtOnce of them, as for a page. Of several
// topics each has a share of that, so that one with many dead tasks leaves the others some; those
// with most come first.
func (x *survey) reasons(ctx context.Context) (task.DeadReasons, error) {
	topics := x.buriedTopics()
	var t task.DeadTally
	t.Complete = x.knowsDead()
	look := search{Filter: &x.list.Filter, bare: true, until: x.until}
	shares, spare := sharesOf(topics, query.LooksAtOnce), 0
	for i := range topics {
		one := &topics[i]
		t.Dead += one.buried
		if !t.Complete && look.over() {
			continue
		}
		looked := look.looks
		whole, err := x.visitBuried(ctx, one, shares[i]+spare, &look, func(at recovery.Ref, f *record.Fields) {
			text, died := string(f.LastError), record.FromMillis(at.Next)
			t.AddReason(task.DeadReason{
				Topic: one.name, Reason: reasons[f.State], Error: task.LikeError(text), Example: task.Cut(text, task.MaxBriefError),
				Count: 1, FirstDied: died, LastDied: died,
			})
		})
		if err != nil {
			return task.DeadReasons{}, err
		}
		spare += shares[i] - (look.looks - looked)
		t.Complete = t.Complete && whole
	}
	t.LookedAt = look.looks
	return t.DeadReasons, nil
}

// knowsDead reports whether memory knows the dead tasks of all shards that this process holds.
func (x *survey) knowsDead() bool {
	x.mu.Lock()
	defer x.unlock()
	return !x.opensLocked()
}

// visitBuried calls visit for the tasks of a topic that the ledger lists and the filter selects. It
// looks at so many of them at most, and reports whether these are all that the filter may select.
func (x *survey) visitBuried(ctx context.Context, of *buriedTopic, most int, look *search, visit func(at recovery.Ref, f *record.Fields)) (whole bool, err error) {
	whole = true
	err = x.ListDead(ctx, of.label, look.Start(recovery.Ref{}), func(e recovery.Entry) bool {
		switch {
		case look.Passed(e.Spot.At):
			return false
		case most <= 0 || look.over():
			whole = false
			return false
		}
		look.look(&e)
		most--
		at := recovery.Ref{ID: string(e.ID), Next: e.Spot.At}
		if f, err := record.Decode(e.Data); err == nil && look.HasRecord(at, &f, reasons[f.State]) {
			visit(at, &f)
		}
		return true
	})
	return whole, err
}

// A buriedTopic is a topic with dead tasks, or with finished ones that are kept.
type buriedTopic struct {
	name, label string
	buried      int
}

// buriedTopics returns the topics whose tasks a survey of what the ledger lists is about, those
// with most first.
func (x *survey) buriedTopics() (topics []buriedTopic) {
	suffix := ""
	if x.list.State == task.Finished {
		suffix = keptSuffix
	}
	if name := x.list.Topic; name != "" {
		return []buriedTopic{{name, name + suffix, x.DeadCount(name + suffix)}}
	}
	x.EachTopic(func(t *Topic) {
		of := t
		if suffix != "" {
			of = t.kept
		}
		if of != nil && of.Gauges[task.Dead] > 0 && task.AnyMatches(x.list.Patterns, t.Name) {
			topics = append(topics, buriedTopic{t.Name, of.Name, int(of.Gauges[task.Dead])})
		}
	})
	slices.SortFunc(topics, func(a, b buriedTopic) int {
		return cmp.Or(cmp.Compare(b.buried, a.buried), cmp.Compare(a.name, b.name))
	})
	return topics
}

// sharesOf divides a number of looks among topics, the one with most dead tasks being the first: as
// many as it has to each, if that is no more than its equal part of what those with fewer leave. A
// single one gets all, since its count may be behind.
//
//	9 looks among topics of 100, 4 and 1  ->  4, 4, 1
func sharesOf(topics []buriedTopic, looks int) []int {
	shares := make([]int, len(topics))
	for i := len(topics) - 1; i > 0; i-- {
		shares[i] = min(topics[i].buried, looks/(i+1))
		looks -= shares[i]
	}
	if len(topics) > 0 {
		shares[0] = looks
	}
	return shares
}
