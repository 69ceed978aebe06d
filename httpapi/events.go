package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humagin"
	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/internal/timespan"
	"github.com/lapsehq/lapse/tasks"
)

// Event is one thing that happened to a task: the data of a server-sent event.
type Event struct {
	Kind     string    `json:"kind" enum:"scheduled,started,delivered,retried,dead,cancelled,skipped,rescued,due" doc:"What happened; also the event's type."`
	At       string    `json:"at" format:"date-time" doc:"When."`
	ID       string    `json:"id" doc:"The task."`
	Topic    string    `json:"topic"`
	Node     string    `json:"node" doc:"The node that has the task."`
	Attempt  int       `json:"attempt,omitempty" doc:"Of started: the attempt that begins; of delivered, retried and dead: the one that ended so."`
	By       string    `json:"by,omitempty" doc:"Of started: the node whose receiver has the task, or which helps with it, if it is another one."`
	Lateness *duration `json:"lateness,omitempty" doc:"Of due, and of started if it is the first attempt: how long after its deadline."`
	Error    string    `json:"error,omitempty" doc:"Of retried and dead: why."`
}

// EventsLost is the data of the event that reports a gap to a slow reader.
type EventsLost struct {
	Kind  string `json:"kind" enum:"lost"`
	Node  string `json:"node" doc:"The node whose events they are."`
	Count int64  `json:"count" doc:"Events of the node that this reader was too slow for, between the one before and the one after."`
}

// NodeChange is the data of the event that says whether a node's events are in the stream.
type NodeChange struct {
	Kind  string `json:"kind" enum:"covered,missing,left" doc:"covered: the stream has the node's events from here on. missing: it has none, since the node does not answer, or has died and still holds tasks. left: the node has ended, and holds none."`
	Node  string `json:"node" doc:"The node. Never the one that is asked."`
	Gap   bool   `json:"gap,omitempty" doc:"Of covered: events of the node before, since the stream began, may be missing."`
	Error string `json:"error,omitempty" doc:"Of missing: why."`
}

const (
	mediaEvents = "text/event-stream"
	eventsPath  = "/v1/events"

	// maxEventStreams bounds the streams at once; one token has half of them. Each costs a busy
	// scheduler some nanoseconds for every event that may match.
	maxEventStreams = 100
	// heartbeat is how often a stream writes something, so that proxies do not take it for dead and
	// a client that is gone is noticed. It is shorter than answerTimeout, since HTTP/2 ends a
	// stream at its write deadline also when nothing is being written.
	heartbeat = 15 * time.Second
	// gather is the least time from one piece to the next. A single event is written at once;
	// events in quick succession are written together.
	gather = 10 * time.Millisecond
	// fairShare is the time that each event takes on each open stream. All streams together encode
	// at most a million events a second, which leaves most of any machine to deliveries. Beyond
	// that streams fall behind and lose events.
	fairShare = time.Microsecond
	// eventPiece is about how much is written at once. Each piece has answerTimeout to arrive. The
	// caller's token is checked again before each piece.
	eventPiece = 32 << 10
	// lastPiece is the time that the piece under way has when the server ends.
	lastPiece = time.Second
)

type eventsInput struct {
	request
	ScopeInput
	Topics []string `query:"topic,explode" maxItems:"100" nullable:"false" doc:"Only events of this topic. May be repeated, for several."`
	Kinds  []string `query:"kind,explode" enum:"scheduled,started,delivered,retried,dead,cancelled,skipped,rescued,due" nullable:"false" doc:"Only events of this kind. May be repeated, for several. Without it, all but due."`
}

// events answers GET /v1/events.
func (s *Server) events(ctx context.Context, in *eventsInput) (*huma.StreamResponse, error) {
	f := tasks.EventFilter{Topics: in.Topics}
	limit := tasks.GrantOf(ctx)
	if limit != nil {
		f.Patterns = limit.Topics
	}
	for _, k := range in.Kinds {
		f.Kinds = append(f.Kinds, tasks.EventKind(k))
	}
	if s.ending.Err() != nil {
		return nil, closing.with("")
	}
	caller := callerOf(in.gin)
	switch err := s.streams.Begin(caller); {
	case errors.Is(err, edge.ErrTokenFull):
		return nil, s.refuse(refusedStream, overloaded.with(strconv.Itoa(maxEventStreams/2)+" event streams of this token are open"))
	case err != nil:
		return nil, s.refuse(refusedStream, overloaded.with(strconv.Itoa(maxEventStreams)+" event streams are open"))
	}
	subscription, err := s.subscribe(ctx, f, in.ofNode() || ctx.Value(headOnly{}) != nil)
	if err != nil {
		s.streams.End(caller)
		return nil, err
	}
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		defer s.streams.End(caller)
		defer subscription.Close()
		s.streamEvents(humagin.Unwrap(ctx), subscription, limit)
	}}, nil
}

// A subscription is a tasks.FleetSubscription, or ownEvents.
type subscription interface {
	Next(ctx context.Context) (tasks.NodeEvents, error)
	Close()
}

// ownEvents are the events of this node alone.
type ownEvents struct {
	*tasks.Subscription
	node string
}

// Next implements subscription.
func (o ownEvents) Next(ctx context.Context) (tasks.NodeEvents, error) {
	events, lost, err := o.Subscription.Next(ctx)
	return tasks.NodeEvents{Node: o.node, Events: events, Lost: lost}, err
}

// subscribe subscribes to the events of this node, or of all. It waits for the other nodes, for
// about a second at most.
func (s *Server) subscribe(ctx context.Context, f tasks.EventFilter, own bool) (subscription, error) {
	if own {
		u, err := s.scheduler.Subscribe(f)
		return ownEvents{u, s.scheduler.NodeName()}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ending, cancel)()
	u, err := s.scheduler.FleetSubscribe(ctx, f)
	if err != nil && s.ending.Err() != nil {
		err = closing.with("")
	}
	return u, err
}

// An eventStream is one answer of server-sent events.
type eventStream struct {
	server *Server
	gin    *gin.Context
	timer  *http.ResponseController
	text   []byte       // not written yet
	node   []byte       // JSON: the name of the node whose events are added
	wrote  int          // events in the last batch
	number int64        // of the last event; lost events count
	caller *edge.Caller // who was last allowed to read; nil: not looked up yet, or no tokens
	limit  *tasks.Grant // the topics whose events the caller may read
	ends   time.Time    // the end of the caller's session; zero: none
}

// streamEvents writes events until the caller has gone or may not read them any more, or the server
// ends.
func (s *Server) streamEvents(c *gin.Context, subscription subscription, limit *tasks.Grant) {
	answerOf(c).stream = true
	header := c.Writer.Header()
	header.Set("Content-Type", mediaEvents)
	header.Set("X-Accel-Buffering", "no") // nginx would keep events until it has some KiB
	c.Status(http.StatusOK)
	if c.Request.Context().Value(headOnly{}) != nil {
		return // a HEAD has no body
	}
	ctx, cancel := context.WithCancel(c.Request.Context())
	defer cancel()
	e := &eventStream{server: s, gin: c, limit: limit, timer: http.NewResponseController(connection(c)), text: []byte(": events\n\n")}
	defer e.endWithServer(cancel)()
	err := e.write() // so that the caller knows that it misses no event from here on
	for err == nil {
		err = e.next(ctx, subscription)
	}
}

// next waits for events, or for the time of a heartbeat, and writes them.
func (e *eventStream) next(ctx context.Context, subscription subscription) error {
	open, _ := e.server.streams.Count()
	rest := max(gather, fairShare*time.Duration(e.wrote*open))
	if err := pause(ctx, rest); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, heartbeat-rest)
	defer cancel()
	if e.caller != nil {
		defer context.AfterFunc(e.caller.Life(), cancel)() // write then looks it up again
	}
	n, err := subscription.Next(wait)
	e.wrote = len(n.Events)
	switch {
	case err == nil:
		err = e.add(&n)
	case ctx.Err() == nil && wait.Err() != nil:
		e.text, err = append(e.text, ":\n\n"...), nil
	}
	if err != nil {
		return err
	}
	return e.write()
}

// endWithServer ends the stream when the server ends, also while it waits for a caller that does
// not read. The function that it returns must be called before the answer ends.
func (e *eventStream) endWithServer(cancel func()) (over func()) {
	cut := make(chan struct{})
	stop := context.AfterFunc(e.server.ending, func() {
		defer close(cut)
		cancel()
		// This is for a piece that is being written. No other piece follows, see write.
		_ = e.timer.SetWriteDeadline(time.Now().Add(lastPiece))
	})
	return func() {
		left := answerTimeout
		if !stop() {
			<-cut // the connection must not be used after the answer has ended
			left = lastPiece
		}
		// This is for the end of the answer. After a failed write there is no end to write.
		_ = e.timer.SetWriteDeadline(time.Now().Add(left))
	}
}

var errRevoked = errors.New("the token no longer allows this")

// add encodes what was heard of a node, and writes all but the last piece of it.
func (e *eventStream) add(n *tasks.NodeEvents) error {
	e.node, _ = json.Marshal(n.Node) // a string: it cannot fail
	for i := range n.Events {
		if len(e.text) >= eventPiece {
			if err := e.write(); err != nil {
				return err
			}
		}
		e.encode(&n.Events[i])
	}
	if n.Lost > 0 {
		e.number += n.Lost
		e.begin("lost")
		e.text = append(append(e.text, `{"kind":"lost","node":`...), e.node...)
		e.text = strconv.AppendInt(append(e.text, `,"count":`...), n.Lost, 10)
		e.text = append(e.text, "}\n\n"...)
	}
	if n.Change != "" {
		change := NodeChange{Kind: string(n.Change), Node: n.Node, Gap: n.Gap}
		if n.Err != nil {
			change.Error = n.Err.Error()
		}
		text, _ := json.Marshal(change) // strings: it cannot fail
		e.begin(change.Kind)
		e.text = append(append(e.text, text...), "\n\n"...)
	}
	return nil
}

func (e *eventStream) begin(kind string) {
	e.text = append(e.text, "id: "...)
	e.text = strconv.AppendInt(e.text, e.number, 10)
	e.text = append(append(e.text, "\nevent: "...), kind...)
	e.text = append(e.text, "\ndata: "...)
}

// encode writes the JSON form of an event. Ids and names need no escapes. JSON keeps the text of an
// error on one line.
func (e *eventStream) encode(v *tasks.Event) {
	e.number++
	e.begin(string(v.Kind))
	e.text = append(append(e.text, `{"kind":"`...), v.Kind...)
	e.text = v.At.UTC().AppendFormat(append(e.text, `","at":"`...), instantLayout)
	e.text = append(append(e.text, `","id":"`...), v.ID...)
	e.text = append(append(e.text, `","topic":"`...), v.Topic...)
	e.text = append(append(e.text, `","node":`...), e.node...)
	if v.Attempt > 0 {
		e.text = strconv.AppendInt(append(e.text, `,"attempt":`...), int64(v.Attempt), 10)
	}
	if v.Kind == tasks.EventStarted && v.Attempt == 1 || v.Kind == tasks.EventDue {
		late := timespan.Format(v.Lateness.Round(10 * time.Microsecond))
		e.text = append(append(append(e.text, `,"lateness":"`...), late...), '"')
	}
	if v.By != "" {
		text, _ := json.Marshal(v.By) // a string: it cannot fail
		e.text = append(append(e.text, `,"by":`...), text...)
	}
	if v.Err != "" {
		text, _ := json.Marshal(v.Err) // a string: it cannot fail
		e.text = append(append(e.text, `,"error":`...), text...)
	}
	e.text = append(e.text, "}\n\n"...)
}

// write sends the encoded text to the connection if the caller may still read it.
func (e *eventStream) write() error {
	if e.caller == nil || e.caller.Withdrawn() || !e.ends.IsZero() && time.Now().After(e.ends) {
		who, may := e.server.reader(e.gin.Request)
		if !may || !who.limit().Equal(e.limit) {
			return errRevoked
		}
		e.caller = who.caller
		if who.session != nil {
			e.ends = who.session.Ends
		}
	}
	_ = e.timer.SetWriteDeadline(time.Now().Add(answerTimeout))
	if e.server.ending.Err() != nil {
		return e.server.ending.Err()
	}
	if _, err := e.gin.Writer.Write(e.text); err != nil {
		return err
	}
	e.text = e.text[:0]
	return e.timer.Flush()
}

// pause waits for d. It returns the error of ctx if that ends first.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
