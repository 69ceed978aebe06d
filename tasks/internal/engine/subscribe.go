package engine

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A Subscription receives the events of tasks of this node, from Subscribe on, in the order in
// which they happen. An event that finds no room in its buffer, because the reader is slow, is lost
// and counted: no task ever waits for a reader, and one that does not read costs only the counting.
type Subscription struct {
	engine   *Engine
	topics   []string
	kinds    []task.EventKind
	patterns []string
	events   int  // that may wait
	text     int  // bytes of their ids and errors
	remote   bool // its reader is at another node
	wake     chan struct{}
	closed   chan struct{}
	once     sync.Once

	// The reader's, that is, of the caller of Next:
	batch  []task.Event // returned by Next
	others bool         // what other nodes have told comes next

	// A reader takes no lock but this one, which is held for a few instructions: so it cannot keep
	// deliveries waiting for Engine.Mu. Engine.Mu may be held before it.
	mu      sync.Mutex // guards everything below
	waiting []task.Event
	bytes   int // of text in them
	// lost counts events after those that wait. Where there are some already, one more is
	// counted without the lock: a reader that is stuck must cost nearly nothing.
	lost atomic.Int64
}

// A feed holds the subscriptions and the events that they get. Guarded by Engine.Mu.
type feed struct {
	events  []task.Event // for the observer, told at Unlock
	Count   int
	Remote  int                        // how many of them have their reader at another node
	Due     int                        // how many of them hear of EventDue
	All     []*Subscription            // that hear of every topic
	ByTopic map[string][]*Subscription // those of the others that hear of one
	Lost    int64                      // events, of all subscriptions there were
}

// Subscribe is tasks.Scheduler.Subscribe.
func (s *Engine) Subscribe(f task.EventFilter) (*Subscription, error) { return s.subscribe(f, false) }

// SubscribeRemote is Subscribe for a reader at another node.
func (s *Engine) SubscribeRemote(f task.EventFilter) (*Subscription, error) {
	return s.subscribe(f, true)
}

func (s *Engine) subscribe(f task.EventFilter, remote bool) (*Subscription, error) {
	if err := f.Validate(); err != nil {
		return nil, err
	}
	if f.Buffer == 0 {
		f.Buffer = task.DefaultEventBuffer
	}
	topics := slices.Sorted(slices.Values(f.Topics))
	u := &Subscription{
		engine: s, topics: slices.Compact(topics), kinds: slices.Clone(f.Kinds), patterns: slices.Clone(f.Patterns),
		events: f.Buffer, text: task.TextPerEvent * f.Buffer, remote: remote,
		wake: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Ended {
		return nil, task.ErrClosed
	}
	s.Feed.add(u)
	return u, nil
}

func (f *feed) add(u *Subscription) {
	f.Count++
	if u.remote {
		f.Remote++
	}
	if u.hears(task.EventDue) {
		f.Due++
	}
	if len(u.topics) == 0 {
		f.All = append(f.All, u)
		return
	}
	if f.ByTopic == nil {
		f.ByTopic = make(map[string][]*Subscription)
	}
	for _, t := range u.topics {
		f.ByTopic[t] = append(f.ByTopic[t], u)
	}
}

func (f *feed) remove(u *Subscription) {
	is := func(o *Subscription) bool { return o == u }
	f.Count--
	if u.remote {
		f.Remote--
	}
	if u.hears(task.EventDue) {
		f.Due--
	}
	f.All = slices.DeleteFunc(f.All, is)
	for _, t := range u.topics {
		if left := slices.DeleteFunc(f.ByTopic[t], is); len(left) > 0 {
			f.ByTopic[t] = left
		} else {
			delete(f.ByTopic, t)
		}
	}
}

// Close ends the subscription, and a Next that waits. It is idempotent, and may be called
// from any goroutine.
func (u *Subscription) Close() {
	u.once.Do(func() {
		s := u.engine
		s.Mu.Lock()
		s.Feed.remove(u)
		s.Mu.Unlock()
		u.mu.Lock()
		u.waiting = nil
		u.lost.Store(0)
		u.mu.Unlock()
		close(u.closed)
	})
}

// Next waits until something has happened, and returns all of it, the oldest first. Lost
// is how many events found no room after these; what the next call returns came after
// them. The events are valid until the next call. One goroutine at a time may call it.
//
// Errors: that of ctx; ErrClosed once the subscription was closed, or the engine has
// ended and everything was returned.
func (u *Subscription) Next(ctx context.Context) (events []task.Event, lost int64, err error) {
	n, err := u.NextOf(ctx, nil)
	return n.Events, n.Lost, err
}

// NextOf is Next, and returns what comes on the channel others too. If there is always something of
// both, it returns them in turn.
func (u *Subscription) NextOf(ctx context.Context, others <-chan task.NodeEvents) (n task.NodeEvents, err error) {
	if err := ctx.Err(); err != nil {
		return n, err
	}
	if u.others {
		u.others = false
		select {
		case n = <-others:
			return n, nil
		default:
		}
	}
	for ended := false; ; {
		if n.Events, n.Lost = u.take(); len(n.Events) > 0 || n.Lost > 0 {
			u.others = true
			return n, nil
		}
		if ended {
			return n, task.ErrClosed
		}
		select {
		case n = <-others:
			return n, nil
		case <-u.wake:
		case <-u.closed:
			return n, task.ErrClosed
		case <-u.engine.Life.done:
			ended = true // but something may have happened just before
		case <-ctx.Done():
			return n, ctx.Err()
		}
	}
}

// take exchanges the events that wait for the batch before, whose memory is used again.
func (u *Subscription) take() (events []task.Event, lost int64) {
	clear(u.batch) // its texts
	u.mu.Lock()
	defer u.mu.Unlock()
	u.batch, u.waiting = u.waiting, u.batch[:0]
	u.bytes = 0
	return u.batch, u.lost.Swap(0)
}

// hears reports whether the subscription is to events of a kind. To hear of EventDue, it must name
// that.
func (u *Subscription) hears(k task.EventKind) bool {
	if len(u.kinds) == 0 {
		return k != task.EventDue
	}
	return slices.Contains(u.kinds, k)
}

// offerLocked gives an event to a subscription that hears of its topic. The event has no
// id until a subscription has room for it.
func (s *Engine) offerLocked(u *Subscription, sl *store.Slot, e *task.Event) {
	if !u.hears(e.Kind) || len(u.patterns) > 0 && !task.AnyMatches(u.patterns, e.Topic) {
		return
	}
	// Once something is lost all else is, until the reader comes: so that it can be told
	// where the gap is.
	for n := u.lost.Load(); n > 0; n = u.lost.Load() {
		if u.lost.CompareAndSwap(n, n+1) {
			s.Feed.Lost++
			return
		}
	}
	u.mu.Lock()
	if len(u.waiting) >= u.events || u.bytes >= u.text {
		u.lost.Store(1)
		s.Feed.Lost++
	} else {
		s.completeLocked(sl, e)
		u.bytes += len(e.ID) + len(e.Err)
		if u.waiting = append(u.waiting, *e); len(u.waiting) == 1 {
			select {
			case u.wake <- struct{}{}:
			default:
			}
		}
	}
	u.mu.Unlock()
}

// completeLocked fills in the fields of an event that cost something. All subscriptions share its
// texts.
func (s *Engine) completeLocked(sl *store.Slot, e *task.Event) {
	if e.ID == "" {
		e.ID, e.At = string(s.Store.ID(sl)), s.Config.Clock()
		if len(e.Err) > task.MaxReason {
			e.Err = strings.Clone(task.Cut(e.Err, task.MaxReason))
		}
	}
}

// emitLocked emits an event of a task: to the subscriptions now, so that they get events in this
// order, and to the observer at Unlock. It costs nothing without either.
func (s *Engine) emitLocked(kind task.EventKind, sl *store.Slot, e task.Event) {
	if s.Config.Observer == nil && s.Feed.Count == 0 {
		return
	}
	e.Kind, e.Topic = kind, s.TopicTable.ByNumber[sl.Topic].Name
	s.offerAllLocked(sl, &e)
	if s.Config.Observer != nil {
		s.completeLocked(sl, &e)
		s.Feed.events = append(s.Feed.events, e)
	}
}

// offerAllLocked gives an event to all subscriptions that hear of its topic.
func (s *Engine) offerAllLocked(sl *store.Slot, e *task.Event) {
	for _, u := range s.Feed.All {
		s.offerLocked(u, sl, e)
	}
	for _, u := range s.Feed.ByTopic[e.Topic] {
		s.offerLocked(u, sl, e)
	}
}

// emitDueLocked emits EventDue of a task that has become ready, if it is for the first attempt.
func (s *Engine) emitDueLocked(sl *store.Slot, now int64) {
	if s.Feed.Due == 0 || record.Attempt(s.Store.Record(sl)) != 0 {
		return
	}
	t := s.TopicTable.ByNumber[sl.Topic]
	late := max(0, millisDuration(now-s.deadlineLocked(t, sl, true)))
	s.offerAllLocked(sl, &task.Event{Kind: task.EventDue, Topic: t.Name, Lateness: late})
}
