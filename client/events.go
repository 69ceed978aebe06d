package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-json"
)

// EventKind names what happened to a task.
type EventKind string

// The kinds of events. A newer server may have more.
const (
	EventScheduled EventKind = "scheduled" // accepted and recorded
	EventStarted   EventKind = "started"   // a delivery has begun
	EventDelivered EventKind = "delivered" // acknowledged
	EventRetried   EventKind = "retried"   // an attempt failed, another follows
	EventDied      EventKind = "dead"      // attempts exhausted, or buried
	EventCancelled EventKind = "cancelled"
	EventSkipped   EventKind = "skipped" // later than its MaxLateness, or misfired
	EventRescued   EventKind = "rescued" // the server's sweep found it overdue
	// EventDue says that a task has become ready for its first attempt. It comes only if
	// EventFilter.Kinds names it, and for some tasks more than once.
	EventDue EventKind = "due"
	// EventsLost is not an event of a task: the reader was too slow for Event.Count events of
	// Event.Node.
	EventsLost EventKind = "lost"
	// NodeCovered is not an event of a task: the stream has those of Event.Node from here on. With
	// Event.Gap some of those before may be missing.
	NodeCovered EventKind = "covered"
	// NodeMissing is not an event of a task: the stream has those of Event.Node no more, since the
	// node does not answer. Event.Error says why.
	NodeMissing EventKind = "missing"
	// NodeLeft is not an event of a task: Event.Node has ended, and holds none.
	NodeLeft EventKind = "left"
)

// EventFilter selects events. Its zero value selects all.
type EventFilter struct {
	Topics []string    // up to 100. Empty: all
	Kinds  []EventKind // empty: all but EventDue. EventsLost and the changes of nodes always come
	Scope  Scope       // empty: ScopeFleet
}

const (
	// silence is how long a stream may be silent before it counts as broken: a server writes
	// something every 15 seconds.
	silence   = 45 * time.Second
	longEvent = 1 << 20 // bytes of a line
)

var errSilent = errors.New("the server has fallen silent")

// Events opens a stream of the events of tasks at all nodes, beginning with those after Events has
// returned. Events of one node come in order, those of several as they arrive. NodeCovered says
// that the events of another node than the server's are in the stream, NodeMissing that they are
// not. Range over it: it goes on until the loop is left, ctx ends, or there is an
// error, which comes last. Events between the end of a stream and the next one are missed.
//
// Errors of Events: ErrInvalid, ErrOverloaded (too many streams are open), ErrUnavailable,
// ErrUnreachable. Of the stream: that of ctx; ErrUnavailable when the server has ended it, because
// it shuts down or the token was revoked; ErrUnreachable.
func (c *Client) Events(ctx context.Context, f EventFilter) (iter.Seq2[*Event, error], error) {
	q := call{method: http.MethodGet, path: "/v1/events", query: url.Values{}, effect: reads}
	for _, t := range f.Topics {
		q.query.Add("topic", t)
	}
	for _, k := range f.Kinds {
		q.query.Add("kind", string(k))
	}
	if f.Scope != "" {
		q.query.Set("scope", string(f.Scope))
	}
	var s *eventStream
	_, err := c.repeat(ctx, &q, func(ctx context.Context, q *call) (_ *answer, err error) {
		s, err = c.openEvents(ctx, q)
		return nil, err
	})
	if err != nil {
		return nil, err
	}
	return s.all, nil
}

// An eventStream reads server-sent events. Its context ends with the caller's, or with the reason
// for giving up.
type eventStream struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	body   io.Closer
	lines  *bufio.Scanner
	timer  *time.Timer // runs while a read waits
}

func (c *Client) openEvents(ctx context.Context, q *call) (_ *eventStream, err error) {
	within, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(c.timeout, func() { cancel(errSilent) })
	defer func() {
		timer.Stop()
		if err != nil {
			cancel(nil)
		}
	}()
	r, err := c.request(within, q)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "text/event-stream, application/problem+json")
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, q.broken(ctx, within, err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		text, err := io.ReadAll(io.LimitReader(resp.Body, longEvent))
		if err != nil {
			return nil, q.broken(ctx, within, err)
		}
		return nil, problemOf(resp, text)
	}
	if media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); media != "text/event-stream" {
		resp.Body.Close()
		return nil, fmt.Errorf("%w: the server sends no event stream", ErrUnreachable)
	}
	s := &eventStream{ctx: within, cancel: cancel, body: resp.Body, lines: bufio.NewScanner(resp.Body), timer: timer}
	s.lines.Buffer(nil, longEvent)
	return s, nil
}

// all yields the events.
func (s *eventStream) all(yield func(*Event, error) bool) {
	defer s.body.Close()
	defer s.cancel(nil)
	for {
		e, err := s.next()
		if err != nil {
			yield(nil, err)
			return
		}
		if !yield(e, nil) {
			return
		}
	}
}

// next reads one event. Comments only show that the server is alive.
func (s *eventStream) next() (*Event, error) {
	e := &Event{}
	s.timer.Reset(silence)
	defer s.timer.Stop()
	for s.lines.Scan() {
		s.timer.Reset(silence)
		name, value, _ := strings.Cut(s.lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case s.lines.Text() == "" && e.Data == nil:
			e.Number = 0 // not an event
		case s.lines.Text() == "":
			if err := json.Unmarshal(e.Data, e); err != nil {
				return nil, fmt.Errorf("an event cannot be read: %w", err)
			}
			return e, nil
		case name == "id":
			e.Number, _ = strconv.ParseInt(value, 10, 64)
		case name == "data" && e.Data == nil:
			e.Data = []byte(value)
		case name == "data":
			e.Data = append(append(e.Data, '\n'), value...)
		}
	}
	err := s.lines.Err()
	switch {
	case s.ctx.Err() != nil && !errors.Is(context.Cause(s.ctx), errSilent):
		return nil, context.Cause(s.ctx)
	case s.ctx.Err() != nil:
		err = errSilent
	case err == nil:
		return nil, fmt.Errorf("%w: the server has ended the event stream", ErrUnavailable)
	}
	return nil, fmt.Errorf("%w: the event stream broke: %w", ErrUnreachable, err)
}
