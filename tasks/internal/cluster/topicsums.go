package cluster

import (
	"strings"
	"sync"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/ranking"
	"github.com/lapsehq/lapse/tasks/task"
)

// Figures that are shown again are used for at least sumsAtLeast, for nodes that ask for them at
// the same time, and for at most sumsAtMost.
const (
	sumsAtLeast = 50 * time.Millisecond
	sumsAtMost  = time.Second
)

// Sums are the counts of all topics at one moment.
type Sums struct {
	Topics []task.Topic // at most MaxStatsTopics, by name
	Others task.Counts  // of those beyond
	Beyond int          // how many those are
}

// figures computes the figures of topics for Stats, once for all callers at the same time.
type figures struct {
	sums   recalled[*Sums]
	totals recalled[*Sums] // without topics
	ranks  recalled[[]ranking.Rank]
	Names  Flight[[]string]

	gathered  gatherings    // what other nodes have answered
	forecasts gatherings    // this node's parts
	pasts     gatherings    // what the ledger keeps of the past
	surveying chan struct{} // has one for each survey under way
	shown     gatherings    // rates that receivers have shown
	ahead     ahead

	mu      sync.Mutex      // guards what follows
	emptied map[string]bool // processes that have ended and hold no shard, see fleetNodes
}

// A recalled computes a value once for all callers at about the same time. A value that took long
// is used again for as long as nine times that, within sumsAtLeast and sumsAtMost: so its readers
// cost at most a tenth of one processor.
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
			r.kept, r.until = v, began.Add(took+min(max(9*took, sumsAtLeast), sumsAtMost))
		}
		return v
	})
}

// TopicSums returns the sums, which are shared. If there are more than MaxStatsTopics topics, they
// may be a little old.
func (s *Cluster) TopicSums() *Sums {
	return s.Figures.sums.do(func() (*Sums, bool) { return s.sumTopics(task.MaxStatsTopics) })
}

// sumTopics computes sums with so many topics. It reports whether there are many.
func (s *Cluster) sumTopics(most int) (sums *Sums, many bool) {
	sums = &Sums{}
	sums.Topics, sums.Others, sums.Beyond = s.engine.SumTopics(most)
	return sums, len(sums.Topics)+sums.Beyond > task.MaxStatsTopics
}

// TopicPage is tasks.Admin.ListTopics of a query with a limit.
func (s *Cluster) TopicPage(q task.TopicQuery) task.TopicPage {
	if q.Sort != "" {
		return s.sortedPage(q, s.ranksOf(&q))
	}
	first := ranking.Smallest[string]{Limit: q.Limit + 1, Compare: strings.Compare}
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
