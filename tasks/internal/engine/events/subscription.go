package events

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/lapsehq/lapse/tasks/task"
)

// A Subscription receives the events of tasks of this node, from Subscribe on, in the order in
// which they happen. An event that finds no room in its buffer, because the reader is slow, is lost
// and counted: no task ever waits for a reader, and one that does not read costs only the counting.
type Subscription struct {
	feed     *Feed
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

	// A reader takes no lock but this one. The locks of the engine and of the feed may be held
	// before it.
	mu      sync.Mutex // guards everything below
	waiting []task.Event
	bytes   int // of text in them
	// lost counts events after those that wait. Where there are some already, one more is
	// counted without the lock: a reader that is stuck must cost nearly nothing.
	lost atomic.Int64
}

// Close ends the subscription, and a Next that waits. It is idempotent, and may be called
// from any goroutine.
func (u *Subscription) Close() {
	u.once.Do(func() {
		u.feed.remove(u)
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
		case <-u.feed.done:
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

// offer keeps an event for the reader, if the subscription is to it. Its topic is one of those of
// the subscription.
func (u *Subscription) offer(e *task.Event, id []byte) {
	if !u.hears(e.Kind) || len(u.patterns) > 0 && !task.AnyMatches(u.patterns, e.Topic) {
		return
	}
	// Once something is lost all else is, until the reader comes: so that it can be told
	// where the gap is.
	for n := u.lost.Load(); n > 0; n = u.lost.Load() {
		if u.lost.CompareAndSwap(n, n+1) {
			u.feed.lost.Add(1)
			return
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.waiting) >= u.events || u.bytes >= u.text {
		u.lost.Store(1)
		u.feed.lost.Add(1)
		return
	}
	u.feed.Complete(e, id)
	u.bytes += len(e.ID) + len(e.Err)
	if u.waiting = append(u.waiting, *e); len(u.waiting) == 1 {
		select {
		case u.wake <- struct{}{}:
		default:
		}
	}
}
