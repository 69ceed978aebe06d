package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine/events"
	"github.com/lapsehq/lapse/tasks/task"
)

// EventsMethod asks a node for its events, for a FleetSubscription at the calling node. The first
// call begins a feed. Each of the following ones gets the next batch: it names the batch that the
// caller has, so that an answer that was lost is given again. A feed has a lease, which every call
// renews: no reader that has gone costs anything for long.
var EventsMethod = Method[eventsQuery, eventsReply]{Name: "events"}

type (
	// An eventsQuery asks for the batch after After.
	eventsQuery struct {
		Feed  string        // made by the caller, unique among its feeds
		After uint64        `json:",omitempty"` // the last batch that the caller has; 0: begin
		Wait  time.Duration `json:",omitempty"` // how long for events; 0: none are wanted yet
		End   bool          `json:",omitempty"` // the feed is not needed any more

		// The filter, in the query that begins a feed.
		Topics   []string         `json:",omitempty"`
		Patterns []string         `json:",omitempty"`
		Kinds    []task.EventKind `json:",omitempty"`
	}
	eventsReply struct {
		Number uint64       `json:",omitempty"` // of this batch; After if there is no new one
		Events []task.Event `json:",omitempty"`
		Lost   int64        `json:",omitempty"` // events that are missing after these
		Gone   bool         `json:",omitempty"` // the feed is not known: its lease has run out
	}
)

const (
	// EventLease is how long a feed lasts that its reader's node does not ask for.
	EventLease = 10 * time.Second
	// eventWait bounds how long a call waits for events.
	eventWait = time.Second
	// maxEventFeeds bounds the feeds of a node for others, and eventBuffer the events that wait in
	// each: they take about 1 MiB at most.
	maxEventFeeds = 128
	eventBuffer   = 2048
	// A batch has so many events, and about so many bytes of texts.
	eventBatch      = 1000
	eventBatchBytes = 128 << 10
	// eventRest is the least time between two batches. What happens alone is sent at once; of what
	// happens in quick succession, the rest is sent together.
	eventRest = 10 * time.Millisecond
	// eventShare is the time that each event takes in each feed. All feeds together send 200,000
	// events a second at most, which leaves most of any machine to deliveries.
	eventShare = 5 * time.Microsecond
)

// eventFeeds are the feeds of a node for readers at others.
type eventFeeds struct {
	mu sync.Mutex // guards of
	of map[feedKey]*eventFeed
}

// A feedKey identifies a feed.
type feedKey struct{ node, feed string }

// An eventFeed is what one FleetSubscription of another node hears of this one.
type eventFeed struct {
	subscription *events.Subscription
	lease        *time.Timer
	turn         chan struct{} // holds one token while no call is being answered

	// Of the call that has the token:
	last   eventsReply  // given again until it is known to have arrived
	events []task.Event // that are in no batch yet
	lost   int64        // after these
	rests  time.Time    // no batch before then
}

// get returns a feed, nil if there is none, and renews its lease.
func (s *eventFeeds) get(key feedKey) *eventFeed {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.of[key]
	if f != nil {
		f.lease.Reset(EventLease)
	}
	return f
}

// add adds a feed, unless it is there already. It reports false if there are too many.
func (s *eventFeeds) add(key feedKey, u *events.Subscription) (*eventFeed, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch f := s.of[key]; {
	case f != nil:
		return f, true
	case len(s.of) >= maxEventFeeds:
		return nil, false
	case s.of == nil:
		s.of = make(map[feedKey]*eventFeed)
	}
	f := &eventFeed{subscription: u, turn: make(chan struct{}, 1), last: eventsReply{Number: 1}}
	f.turn <- struct{}{}
	f.lease = time.AfterFunc(EventLease, func() { s.end(key) })
	s.of[key] = f
	return f, true
}

// end ends a feed.
func (s *eventFeeds) end(key feedKey) {
	s.mu.Lock()
	f := s.of[key]
	delete(s.of, key)
	s.mu.Unlock()
	if f != nil {
		f.lease.Stop()
		f.subscription.Close()
	}
}

// close ends all feeds.
func (s *eventFeeds) close() {
	s.mu.Lock()
	all := s.of
	s.of = nil
	s.mu.Unlock()
	for _, f := range all {
		f.lease.Stop()
		f.subscription.Close()
	}
}

func (s *eventFeeds) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.of)
}

// EventFeeds returns how many feeds other nodes have here, for tests.
func (s *Cluster) EventFeeds() int { return s.Fleet.feeds.len() }

func (s *Cluster) handleEvents(ctx context.Context, from string, q eventsQuery) (eventsReply, error) {
	key := feedKey{from, q.Feed}
	if q.End {
		s.Fleet.feeds.end(key)
		return eventsReply{}, nil
	}
	f := s.Fleet.feeds.get(key)
	if f == nil && q.After == 0 {
		var err error
		if f, err = s.beginFeed(key, &q); err != nil {
			return eventsReply{}, err
		}
	}
	if f == nil {
		return eventsReply{Gone: true}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, min(q.Wait, eventWait))
	defer cancel()
	select {
	case <-f.turn:
		defer func() { f.turn <- struct{}{} }()
	case <-ctx.Done():
		return eventsReply{Number: q.After}, nil
	}
	switch f.last.Number {
	case q.After:
		return s.nextBatch(ctx, f)
	case q.After + 1:
		return f.last, nil
	}
	return eventsReply{Gone: true}, nil
}

// beginFeed begins a feed, or returns the one that a copy of the call has begun.
func (s *Cluster) beginFeed(key feedKey, q *eventsQuery) (*eventFeed, error) {
	u, err := s.engine.Feed.Subscribe(task.EventFilter{Topics: q.Topics, Patterns: q.Patterns, Kinds: q.Kinds, Buffer: eventBuffer}, true)
	if err != nil {
		return nil, err
	}
	f, ok := s.Fleet.feeds.add(key, u)
	if !ok {
		err = fmt.Errorf("%w: %d readers at other nodes", task.ErrOverloaded, maxEventFeeds)
	}
	if !ok || f.subscription != u {
		u.Close()
	}
	return f, err
}

// nextBatch waits for events, and makes a batch of them. Without any it returns the number of the
// last batch.
func (s *Cluster) nextBatch(ctx context.Context, f *eventFeed) (eventsReply, error) {
	none := eventsReply{Number: f.last.Number}
	if !sleepUntil(ctx, f.rests) {
		return none, nil
	}
	if len(f.events) == 0 && f.lost == 0 {
		var err error
		f.events, f.lost, err = f.subscription.Next(ctx)
		switch {
		case errors.Is(err, task.ErrClosed) && !s.engine.IsClosing():
			return eventsReply{Gone: true}, nil
		case errors.Is(err, task.ErrClosed):
			return none, err
		case err != nil:
			return none, nil
		}
	}
	f.last = eventsReply{Number: f.last.Number + 1}
	for bytes := 0; len(f.events) > 0 && len(f.last.Events) < eventBatch && bytes < eventBatchBytes; f.events = f.events[1:] {
		e := &f.events[0]
		e.At = e.At.UTC()
		f.last.Events = append(f.last.Events, *e)
		bytes += len(e.ID) + len(e.Topic) + len(e.Err) + 64
	}
	if len(f.events) == 0 {
		f.last.Lost, f.lost = f.lost, 0
	}
	f.rests = time.Now().Add(max(eventRest, eventShare*time.Duration(len(f.last.Events)*s.Fleet.feeds.len())))
	return f.last, nil
}

// sleepUntil reports false if ctx has ended before.
func sleepUntil(ctx context.Context, t time.Time) bool {
	d := time.Until(t)
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
