package httpapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// Alive is the answer of /healthz.
type Alive struct {
	Status string `json:"status" enum:"alive,ended,stuck" doc:"ended: the scheduler has ended. stuck: it does not move any more. With either, restart the process."`
	Detail string `json:"detail,omitempty" doc:"With stuck: which part of the scheduler does not move, and for how long."`
}

const (
	// stuckAfter is how long the scheduler has not moved when it counts as stuck. Work that is
	// larger than any bound allows takes a part of it.
	stuckAfter = 10 * time.Second
	// movingWithin is how long one probe waits for the scheduler to move. It is less than any
	// prober waits, and enough for a process that was suspended for longer than stuckAfter.
	movingWithin = 250 * time.Millisecond
)

// Readiness is the answer of /readyz.
type Readiness struct {
	Ready        bool       `json:"ready"`
	Starting     bool       `json:"starting" doc:"The ledger has not been reached since the start."`
	ShuttingDown bool       `json:"shutting_down" doc:"Requests are still answered, but should go elsewhere."`
	Draining     bool       `json:"draining" doc:"The node hands over its shards and takes no new tasks."`
	Unsure       bool       `json:"unsure" doc:"The node was cut off from the ledger for so long that other nodes may have adopted its shards. on_outage says whether it delivers."`
	Away         int        `json:"away" doc:"Shards of this node that other nodes still hold. After a start the node is ready when it has them back, or has waited for them long enough."`
	Replay       Replay     `json:"replay"`
	Ledger       LedgerView `json:"ledger"`
	Waiting      []Waiting  `json:"waiting" nullable:"false" doc:"Everything that is stuck or not served yet, longest wait first."`
	Redis        *RedisPort `json:"redis,omitempty" doc:"The port for clients of Redis. Left out if the node has none."`
}

// RedisPort reports the state of a node's port for clients of Redis. Its counters begin at the
// start of the process.
type RedisPort struct {
	Serving        bool   `json:"serving" doc:"It accepts connections. Whether it does decides nothing about ready."`
	Fault          string `json:"fault,omitempty" doc:"Why the last connection could not be accepted."`
	Address        string `json:"address,omitempty" doc:"Where clients of Redis on the machine of the node reach it."`
	Connections    int    `json:"connections" doc:"Now."`
	Subscribers    int    `json:"subscribers" doc:"Connections that have subscribed to something, now."`
	SubscribersCut int64  `json:"subscribers_cut" doc:"Subscribers that were cut off because they did not read."`
	EventsUnsent   int64  `json:"events_unsent" doc:"Events and messages that other nodes did not get, because too much waited to be sent to them."`
	EventsLost     int64  `json:"events_lost" doc:"Expired events that subscribers have not got: of topics with another way of delivery than keyevent, not published; of keyevent, beyond what can be kept to be published again."`
}

// Waiting is one thing that is stuck or not served yet.
type Waiting struct {
	What   string `json:"what"`
	Detail string `json:"detail,omitempty" doc:"Name of the thing that it waits for."`
	Since  string `json:"since" format:"date-time"`
}

// Replay reports how far the reading back of tasks has come.
type Replay struct {
	Over    bool     `json:"over"`
	Records int64    `json:"records" doc:"Read so far."`
	Elapsed duration `json:"elapsed"`
}

// LedgerView reports the state of the ledger.
type LedgerView struct {
	OK        bool     `json:"ok"`
	Stalled   duration `json:"stalled" doc:"Time since it stopped answering writes."`
	Condition string   `json:"condition,omitempty" doc:"Why the ledger takes no new records, or does not answer."`

	Where       string   `json:"where,omitempty" doc:"The storage, without its secrets."`
	Version     string   `json:"version,omitempty" doc:"Of the storage's server; the lowest if there are several."`
	Latency     duration `json:"latency,omitempty" doc:"Of a recent round trip to it."`
	ClockOffset duration `json:"clock_offset,omitempty" doc:"Its clock minus the clock of this machine, by which deadlines are kept."`
	Warnings    []string `json:"warnings,omitempty" nullable:"false" doc:"What an operator should change."`
}

type statusReply[B any] struct {
	Status     int
	RetryAfter string `header:"Retry-After" doc:"Seconds to wait, with 503."`
	Body       B
}

// statusOf answers 200, or 503 when waiting may help.
func statusOf[B any](ok bool, body B) *statusReply[B] {
	if ok {
		return &statusReply[B]{http.StatusOK, "", body}
	}
	return &statusReply[B]{http.StatusServiceUnavailable, "1", body}
}

// alive answers GET /healthz.
func (s *Server) alive(ctx context.Context, _ *struct{}) (*statusReply[Alive], error) {
	if !s.attached.Load() {
		return statusOf(true, Alive{Status: "alive"}), nil
	}
	select {
	case <-s.scheduler.Done():
		return statusOf(false, Alive{Status: "ended"}), nil
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, movingWithin)
	defer cancel()
	var stuck *tasks.StuckError
	if err := s.scheduler.Moving(ctx); errors.As(err, &stuck) && stuck.For >= stuckAfter {
		return statusOf(false, Alive{"stuck", stuck.Error()}), nil
	}
	return statusOf(true, Alive{Status: "alive"}), nil
}

type probe struct{ request }

// ready answers GET /readyz. A caller without the scope to read anything else does not learn the
// state of the ledger and of the port for clients of Redis either, since that would name hosts and
// files.
func (s *Server) ready(_ context.Context, in *probe) (*statusReply[Readiness], error) {
	var r Readiness
	if s.attached.Load() {
		r = s.wireReadiness(s.scheduler.Readiness())
	} else {
		r = s.wireReadiness(s.startingReadiness())
		r.Starting = true
	}
	if !s.mayRead(in.gin.Request) {
		r.Ledger = LedgerView{OK: r.Ledger.OK, Stalled: r.Ledger.Stalled}
		for i := range r.Waiting {
			r.Waiting[i].Detail = ""
		}
		if r.Redis != nil {
			r.Redis = &RedisPort{Serving: r.Redis.Serving}
		}
	}
	return statusOf(r.Ready, r), nil
}

// startingReadiness is the readiness before there is a scheduler.
func (s *Server) startingReadiness() tasks.Readiness {
	var r tasks.Readiness
	if s.starting != nil {
		r.Storage = s.starting()
		r.Waiting = r.Storage.Waiting
	}
	return r
}

func (s *Server) wireReadiness(r tasks.Readiness) Readiness {
	ending := s.ending.Err() != nil
	ledger := LedgerView{
		OK: r.LedgerOK, Stalled: duration(r.Stalled.Round(time.Millisecond)), Condition: r.Condition,
		Where: r.Storage.Where, Version: r.Storage.Version, Warnings: r.Storage.Warnings,
		Latency:     duration(r.Storage.Latency.Round(10 * time.Microsecond)),
		ClockOffset: duration(r.Storage.ClockAhead.Round(10 * time.Microsecond)),
	}
	if ledger.Condition == "" && r.Storage.Err != nil {
		ledger.Condition = r.Storage.Err.Error()
	}
	waiting := make([]Waiting, len(r.Waiting))
	for i, w := range r.Waiting {
		waiting[i] = Waiting{w.What, w.Detail, formatInstant(w.Since)}
	}
	var redis *RedisPort
	if s.redis != nil {
		redis = s.redis()
	}
	return Readiness{
		Ready:        r.Ready && !ending && !r.Draining,
		ShuttingDown: ending,
		Draining:     r.Draining, Unsure: r.Unsure, Away: r.Away,
		Replay: Replay{r.Ready, r.Replayed, duration(r.Elapsed.Round(time.Millisecond))},
		Ledger: ledger, Waiting: waiting, Redis: redis,
	}
}
