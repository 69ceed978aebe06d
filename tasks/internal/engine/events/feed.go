package events

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// A Feed has the subscriptions to the events of a node.
type Feed struct {
	clock   func() time.Time
	closing <-chan struct{} // once it is closed, there are no new subscriptions
	done    <-chan struct{} // once it is closed, nothing happens any more
	heard   atomic.Int32    // how many subscriptions there are
	due     atomic.Int32    // how many of them are to EventDue
	lost    atomic.Int64    // events, of all subscriptions there were

	mu      sync.Mutex // guards everything below
	remote  int        // how many of them have their reader at another node
	all     []*Subscription
	byTopic map[string][]*Subscription // those that are to some topics, and not in all
}

// NewFeed returns a feed without subscriptions. Clock tells when an event has happened. Subscribe
// fails once closing is closed, and readers are told that there is nothing more once done is.
func NewFeed(clock func() time.Time, closing, done <-chan struct{}) *Feed {
	return &Feed{clock: clock, closing: closing, done: done, byTopic: make(map[string][]*Subscription)}
}

// Counts are the figures of a feed.
type Counts struct {
	Subscriptions int
	Remote        int // how many of them have their reader at another node
	Lost          int64
}

// Counts returns the figures of the feed.
func (f *Feed) Counts() Counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	return Counts{Subscriptions: int(f.heard.Load()), Remote: f.remote, Lost: f.lost.Load()}
}

// Subscribe is tasks.Scheduler.Subscribe. Remote says that the reader is at another node.
func (f *Feed) Subscribe(filter task.EventFilter, remote bool) (*Subscription, error) {
	if err := filter.Validate(); err != nil {
		return nil, err
	}
	buffer, topics := cmp.Or(filter.Buffer, task.DefaultEventBuffer), slices.Sorted(slices.Values(filter.Topics))
	u := &Subscription{
		feed: f, topics: slices.Compact(topics), kinds: slices.Clone(filter.Kinds), patterns: slices.Clone(filter.Patterns),
		events: buffer, text: task.TextPerEvent * buffer, remote: remote,
		wake: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.closing:
		return nil, task.ErrClosed
	default:
	}
	f.count(u, 1)
	if len(u.topics) == 0 {
		f.all = append(f.all, u)
	}
	for _, t := range u.topics {
		f.byTopic[t] = append(f.byTopic[t], u)
	}
	return u, nil
}

// count counts a subscription that comes or goes.
func (f *Feed) count(u *Subscription, by int) {
	f.heard.Add(int32(by))
	if u.remote {
		f.remote += by
	}
	if u.hears(task.EventDue) {
		f.due.Add(int32(by))
	}
}

func (f *Feed) remove(u *Subscription) {
	is := func(o *Subscription) bool { return o == u }
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count(u, -1)
	f.all = slices.DeleteFunc(f.all, is)
	for _, t := range u.topics {
		if left := slices.DeleteFunc(f.byTopic[t], is); len(left) > 0 {
			f.byTopic[t] = left
		} else {
			delete(f.byTopic, t)
		}
	}
}

// IsHeard reports whether there are subscriptions.
func (f *Feed) IsHeard() bool { return f.heard.Load() > 0 }

// HearsDue reports whether there are subscriptions to EventDue.
func (f *Feed) HearsDue() bool { return f.due.Load() > 0 }

// Offer gives an event of a task to all subscriptions that are to it. It is completed for the first
// one that has room for it.
func (f *Feed) Offer(e *task.Event, id []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, u := range f.all {
		u.offer(e, id)
	}
	for _, u := range f.byTopic[e.Topic] {
		u.offer(e, id)
	}
}

// Complete fills in the fields of an event that cost something, unless it has them. All
// subscriptions share its texts.
func (f *Feed) Complete(e *task.Event, id []byte) {
	if e.ID == "" {
		e.ID, e.At = string(id), f.clock()
		if len(e.Err) > task.MaxReason {
			e.Err = strings.Clone(task.Cut(e.Err, task.MaxReason))
		}
	}
}
