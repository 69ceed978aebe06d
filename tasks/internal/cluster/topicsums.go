package cluster

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// sumsAtMost bounds the age of Sums that are shown again.
const sumsAtMost = time.Second

// Sums are the counts of all topics at one moment.
type Sums struct {
	Topics []task.Topic // at most MaxStatsTopics, by name
	Others task.Counts  // of those beyond
	Beyond int          // how many those are
}

// figures computes the figures of topics for Stats, once for all callers at the same time.
type figures struct {
	sums  recalled[*Sums]
	ranks recalled[[]engine.Rank]
	Names Flight[[]string]

	gathered gatherings // what other nodes have answered

	mu      sync.Mutex      // guards what follows
	emptied map[string]bool // processes that have ended and hold no shard, see fleetNodes
}

// A recalled computes a value once for all callers at the same time. A value that took long is used
// again for as long as nine times that, and at most sumsAtMost: so its readers cost at most a tenth
// of one processor.
type recalled[T any] struct {
	flight Flight[T]

	mu    sync.Mutex // guards what follows
	kept  T          // used again until then
	until time.Time
}

// do returns the value, which is shared. compute reports whether it is to be used again.
func (r *recalled[T]) do(compute func() (v T, keep bool)) T {
	r.mu.Lock()
	if time.Now().Before(r.until) {
		defer r.mu.Unlock()
		return r.kept
	}
	r.mu.Unlock()
	return r.flight.Do(func() T {
		began := time.Now()
		v, keep := compute()
		var none T
		r.mu.Lock()
		defer r.mu.Unlock()
		r.kept, r.until = none, time.Time{}
		if keep {
			took := time.Since(began)
			r.kept, r.until = v, began.Add(took+min(9*took, sumsAtMost))
		}
		return v
	})
}

// TopicSums returns the sums, which are shared. If there are more than MaxStatsTopics topics, they
// may be a little old.
func (s *Cluster) TopicSums() *Sums {
	return s.Figures.sums.do(func() (*Sums, bool) {
		sums := s.sumTopics()
		return sums, sums.Beyond > 0
	})
}

// sumTopics visits all topics, and those that are many twice: to choose the ones that are
// shown, and to describe these and add up the others.
func (s *Cluster) sumTopics() *Sums {
	many := s.engine.TopicCount() > task.MaxStatsTopics
	sums := &Sums{}
	shown := func(*engine.Topic) bool { return true }
	if many {
		chosen := s.chooseTopics(task.MaxStatsTopics)
		shown = func(t *engine.Topic) bool { return chosen[t] }
	}
	s.engine.EachTopic(func(t *engine.Topic) {
		if shown(t) && len(sums.Topics) < task.MaxStatsTopics {
			sums.Topics = append(sums.Topics, s.engine.DescribeLocked(t))
			return
		}
		c := s.engine.CountsLocked(t).WithoutRest(t.Settings.Paused)
		sums.Others.Add(&c)
		sums.Beyond++
	})
	engine.SortTopics(sums.Topics)
	return sums
}

// chooseTopics returns so many topics: first those that were set up, then the busiest.
func (s *Cluster) chooseTopics(limit int) map[*engine.Topic]bool {
	type candidate struct {
		topic *engine.Topic
		set   int
		busy  int64
	}
	best := Smallest[candidate]{Limit: limit, Compare: func(a, b candidate) int {
		return cmp.Or(b.set-a.set, cmp.Compare(b.busy, a.busy), strings.Compare(a.topic.Name, b.topic.Name))
	}}
	var part []candidate
	s.engine.EachTopicThen(func(t *engine.Topic) {
		c := candidate{topic: t, busy: t.Counts.Scheduled + t.Counts.Delivered}
		for _, n := range t.Gauges {
			c.busy += n
		}
		if s.engine.SetUpLocked(t) {
			c.set = 1
		}
		part = append(part, c)
	}, func() {
		for _, c := range part {
			best.Add(c)
		}
		part = part[:0]
	})
	chosen := make(map[*engine.Topic]bool, limit)
	for _, c := range best.Sorted() {
		chosen[c.topic] = true
	}
	return chosen
}

// TopicPage is tasks.Scheduler.ListTopics of a query with a limit.
func (s *Cluster) TopicPage(q task.TopicQuery) task.TopicPage {
	if q.Sort != "" {
		return s.sortedPage(q)
	}
	first := Smallest[string]{Limit: q.Limit + 1, Compare: strings.Compare}
	for _, name := range s.Figures.Names.Do(s.engine.TopicNames) {
		if name > q.Cursor && (q.Allows == nil || q.Allows(name)) {
			first.Add(name)
		}
	}
	names := first.Sorted()
	page := s.engine.DescribeSome(names[:min(len(names), q.Limit)])
	if page.NextCursor == "" && len(names) > q.Limit {
		page.NextCursor = names[q.Limit-1]
	}
	return page
}

// Smallest keeps the smallest of many values.
type Smallest[T any] struct {
	Limit   int
	Compare func(a, b T) int
	kept    []T
	full    bool // kept has been sorted: its value at limit-1 bounds what is added
}

// Add takes a value in, if it is among the smallest.
func (k *Smallest[T]) Add(v T) {
	if k.full && k.Compare(v, k.kept[k.Limit-1]) >= 0 {
		return
	}
	if k.kept = append(k.kept, v); len(k.kept) >= 4*k.Limit {
		k.Sorted()
	}
}

// Sorted returns what is kept, in order.
func (k *Smallest[T]) Sorted() []T {
	slices.SortFunc(k.kept, k.Compare)
	if len(k.kept) >= k.Limit {
		k.kept, k.full = k.kept[:k.Limit], true
	}
	return k.kept
}

// A Flight computes a value for all callers that wait for it at the same time. One computation runs
// at a time. Callers that come while it runs share the next one, so that each caller gets a value
// whose computation began after its call.
type Flight[T any] struct {
	mu            sync.Mutex  // guards what follows
	running, next *landing[T] // the last computation that has begun, and the one after it
}

// A landing is the result of one computation.
type landing[T any] struct {
	done  chan struct{}
	value T
}

// Do returns the result of compute, called by this caller or by another one. The result is
// shared: it must not be changed.
func (f *Flight[T]) Do(compute func() T) T {
	f.mu.Lock()
	if l := f.next; l != nil {
		f.mu.Unlock()
		<-l.done
		return l.value
	}
	l := &landing[T]{done: make(chan struct{})}
	before := f.running
	f.next = l
	f.mu.Unlock()
	if before != nil {
		<-before.done
	}
	f.mu.Lock()
	f.running, f.next = l, nil
	f.mu.Unlock()
	defer close(l.done)
	l.value = compute()
	return l.value
}
