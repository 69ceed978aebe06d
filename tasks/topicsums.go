package tasks

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// sumsAtMost bounds the age of topicSums that are shown again.
const sumsAtMost = time.Second

// topicSums are the counts of all topics at one moment.
type topicSums struct {
	topics []Topic // at most MaxStatsTopics, by name
	others Counts  // of those beyond
	beyond int     // how many those are
}

// figures computes what Stats says of topics, once for all who ask at the same time.
type figures struct {
	sums  engine.Flight[*topicSums]
	names engine.Flight[[]string]

	mu    sync.Mutex // guards what follows
	kept  *topicSums // shown again until then; nil if there are few topics
	until time.Time
}

// topicSums returns the sums, which are shared. If there are more than MaxStatsTopics topics,
// they may be as old as nine times the time that they took, and at most sumsAtMost: so readers
// of Stats cost at most a tenth of one processor.
func (s *cluster) topicSums() *topicSums {
	f := &s.figures
	f.mu.Lock()
	if f.kept != nil && time.Now().Before(f.until) {
		defer f.mu.Unlock()
		return f.kept
	}
	f.mu.Unlock()
	return f.sums.Do(func() *topicSums {
		began := time.Now()
		sums := s.sumTopics()
		f.mu.Lock()
		defer f.mu.Unlock()
		f.kept = nil
		if sums.beyond > 0 {
			took := time.Since(began)
			f.kept, f.until = sums, began.Add(took+min(9*took, sumsAtMost))
		}
		return sums
	})
}

// sumTopics visits all topics, and those that are many twice: to choose the ones that are
// shown, and to describe these and add up the others.
func (s *cluster) sumTopics() *topicSums {
	s.engine.Mu.Lock()
	many := len(s.engine.TopicTable.ByName) > MaxStatsTopics
	s.engine.Mu.Unlock()
	sums := &topicSums{}
	shown := func(*engine.Topic) bool { return true }
	if many {
		chosen := s.chooseTopics(MaxStatsTopics)
		shown = func(t *engine.Topic) bool { return chosen[t] }
	}
	s.engine.EachTopic(func(t *engine.Topic) {
		if shown(t) && len(sums.topics) < MaxStatsTopics {
			sums.topics = append(sums.topics, s.engine.DescribeLocked(t))
			return
		}
		c := t.CountsLocked()
		sums.others.Add(&c)
		sums.beyond++
	})
	engine.SortTopics(sums.topics)
	return sums
}

// chooseTopics returns so many topics: first those that were set up, then the busiest.
func (s *cluster) chooseTopics(limit int) map[*engine.Topic]bool {
	type candidate struct {
		topic *engine.Topic
		set   int
		busy  int64
	}
	best := smallest[candidate]{limit: limit, compare: func(a, b candidate) int {
		return cmp.Or(b.set-a.set, cmp.Compare(b.busy, a.busy), strings.Compare(a.topic.Name, b.topic.Name))
	}}
	var part []candidate
	s.engine.EachTopicThen(func(t *engine.Topic) {
		c := candidate{topic: t, busy: t.Counts.Scheduled + t.Counts.Delivered}
		for _, n := range t.Gauges {
			c.busy += n
		}
		if s.engine.SetUp(t) {
			c.set = 1
		}
		part = append(part, c)
	}, func() {
		for _, c := range part {
			best.add(c)
		}
		part = part[:0]
	})
	chosen := make(map[*engine.Topic]bool, limit)
	for _, c := range best.sorted() {
		chosen[c.topic] = true
	}
	return chosen
}

// smallest keeps the smallest of many values.
type smallest[T any] struct {
	limit   int
	compare func(a, b T) int
	kept    []T
	full    bool // kept has been sorted: its value at limit-1 bounds what is added
}

func (k *smallest[T]) add(v T) {
	if k.full && k.compare(v, k.kept[k.limit-1]) >= 0 {
		return
	}
	if k.kept = append(k.kept, v); len(k.kept) >= 4*k.limit {
		k.sorted()
	}
}

// sorted returns what is kept, in order.
func (k *smallest[T]) sorted() []T {
	slices.SortFunc(k.kept, k.compare)
	if len(k.kept) >= k.limit {
		k.kept, k.full = k.kept[:k.limit], true
	}
	return k.kept
}
