package httpapi

import (
	"context"
	"fmt"

	"github.com/lapsehq/lapse/tasks"
)

// Choice selects dead tasks of a topic: by ids, or all.
type Choice struct {
	IDs []string `json:"ids,omitempty" minItems:"1" maxItems:"10000" nullable:"false" doc:"These."`
	All bool     `json:"all,omitempty" doc:"true: all of the topic."`
}

// Requeue selects the dead tasks of a topic that come back, and says when.
type Requeue struct {
	IDs   []string `json:"ids,omitempty" minItems:"1" maxItems:"10000" nullable:"false" doc:"These."`
	All   bool     `json:"all,omitempty" doc:"true: all of the topic. Instead of ids."`
	Delay span     `json:"delay,omitempty" doc:"Time until they are due, at most 10 years. Not together with due_at; neither means now."`
	DueAt string   `json:"due_at,omitempty" format:"date-time" doc:"Their new deadline, at most 10 years ahead. One in the past is due at once."`

	Payload  any               `json:"payload,omitempty" doc:"The payload that the task has from now on. ids must name one task. It changes in the same step."`
	Headers  map[string]string `json:"headers,omitempty" maxProperties:"64" doc:"All headers that the task has from now on. ids must name one task."`
	Delivery *TaskDelivery     `json:"delivery,omitempty" doc:"What the task says of its own delivery from now on, {} for nothing. ids must name one task."`
}

// Requeued reports which dead tasks came back.
type Requeued struct {
	Requeued int      `json:"requeued" doc:"How many came back."`
	Unknown  []string `json:"unknown,omitempty" nullable:"false" doc:"Those of the ids that are not among the dead of the topic."`
}

type listDeadInput struct {
	request
	Topic string `path:"topic" doc:"Name of the topic."`
	Group string `query:"group" maxLength:"128" doc:"Only tasks of this group."`
	TextFilter
	DiedFilter
	DetailFilter
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Tasks a page."`
	Cursor string `query:"cursor" maxLength:"1024" doc:"The next_cursor of the page before."`
}

// listDead answers GET /v1/topics/{topic}/dead.
func (s *Server) listDead(ctx context.Context, in *listDeadInput) (*reply[TaskPage], error) {
	q := tasks.Query{Topic: in.Topic, Group: in.Group, State: tasks.Dead, Limit: in.Limit, Cursor: in.Cursor, Brief: !in.Details}
	in.TextFilter.add(&q)
	q.Reason = tasks.Reason(in.Reason)
	if err := instants(in.DiedFilter.bounds(&q)); err != nil {
		return nil, err
	}
	return s.listed(ctx, in.gin, func() (tasks.Page, error) { return s.scheduler.List(ctx, q) })
}

// DeadReasons says why tasks are dead, and how many died of each reason.
type DeadReasons struct {
	Reach
	Reasons  []DeadReason `json:"reasons" nullable:"false" maxItems:"50" doc:"Those of most tasks first."`
	LeftOut  int          `json:"left_out" doc:"Tasks that were looked at and selected, and that none of these reasons counts."`
	LookedAt int          `json:"looked_at" doc:"How many dead tasks were looked at."`
	Dead     int          `json:"dead" doc:"How many tasks of the topic, or of the topics, are dead, whatever the parameters select."`
	Complete bool         `json:"complete" doc:"There are no others that are selected. false: one call looks at 20,000 tasks of each node at most, the longest dead first, or a node is missing."`
}

// DeadReason counts the dead tasks of one topic that died for one reason, of errors that are the
// same but for numbers.
type DeadReason struct {
	Topic       string `json:"topic"`
	Reason      string `json:"reason,omitempty" enum:"exhausted,buried,deleted" doc:"Left out if it is not known."`
	Error       string `json:"error" doc:"What their last errors have in common: the beginning of the first line, of at most 120 bytes, in which a # takes the place of what has digits. As error_like it selects these tasks. (none): they have none."`
	Example     string `json:"example,omitempty" doc:"The last error of one of them, at most 256 bytes."`
	Count       int    `json:"count" doc:"How many they are."`
	FirstDiedAt string `json:"first_died_at" format:"date-time" doc:"When the first of them died."`
	LastDiedAt  string `json:"last_died_at" format:"date-time" doc:"When the last of them died."`
}

// reasonsAbout is part of what the routes of reasons say.
const reasonsAbout = "Errors count as one that are the same but for numbers. The tasks are those of all nodes. " + reachAbout

// ReasonFilter selects the dead tasks whose reasons are counted.
type ReasonFilter struct {
	ScopeInput
	Group string `query:"group" maxLength:"128" doc:"Only tasks of this group."`
	TextFilter
	DiedFilter
	Limit int `query:"limit" minimum:"1" maximum:"50" default:"50" doc:"Tell of so many reasons at most."`
}

type topicReasonsInput struct {
	Topic string `path:"topic" doc:"Name of the topic."`
	ReasonFilter
}

// topicReasons answers GET /v1/topics/{topic}/dead/reasons.
func (s *Server) topicReasons(ctx context.Context, in *topicReasonsInput) (*reply[DeadReasons], error) {
	return s.reasons(ctx, in.Topic, &in.ReasonFilter)
}

type allReasonsInput struct{ ReasonFilter }

// allReasons answers GET /v1/dead/reasons.
func (s *Server) allReasons(ctx context.Context, in *allReasonsInput) (*reply[DeadReasons], error) {
	return s.reasons(ctx, "", &in.ReasonFilter)
}

func (s *Server) reasons(ctx context.Context, topic string, in *ReasonFilter) (*reply[DeadReasons], error) {
	q := tasks.Query{Topic: topic, Group: in.Group, Reason: tasks.Reason(in.Reason)}
	in.TextFilter.add(&q)
	if err := instants(in.DiedFilter.bounds(&q)); err != nil {
		return nil, err
	}
	if in.ofNode() {
		r, err := s.scheduler.DeadReasons(ctx, q)
		return &reply[DeadReasons]{wireReasons(&r, s.ownReach(), in.Limit)}, err
	}
	r, reach, err := s.scheduler.FleetDeadReasons(ctx, q)
	return &reply[DeadReasons]{wireReasons(&r, wireReach(&reach), in.Limit)}, err
}

func wireReasons(r *tasks.DeadReasons, reach Reach, limit int) DeadReasons {
	wire := DeadReasons{Reach: reach, Reasons: []DeadReason{}, LeftOut: r.LeftOut, LookedAt: r.LookedAt, Dead: r.Dead, Complete: r.Complete}
	for i := range r.Reasons {
		one := &r.Reasons[i]
		if i >= limit {
			wire.LeftOut += one.Count
			continue
		}
		wire.Reasons = append(wire.Reasons, DeadReason{
			one.Topic, string(one.Reason), one.Error, one.Example, one.Count, formatInstant(one.FirstDied), formatInstant(one.LastDied),
		})
	}
	return wire
}

// requeue answers POST /v1/topics/{topic}/dead/requeue.
func (s *Server) requeue(ctx context.Context, in *topicInput) (*reply[Requeued], error) {
	var q tasks.Requeue
	var when deadline
	mend := func() *tasks.Mend {
		if q.Mend == nil {
			q.Mend = &tasks.Mend{}
		}
		return q.Mend
	}
	ids, err := decodeChoice(in, func(s *scanner, key []byte) bool {
		switch string(key) {
		case "delay":
			q.Delay, when.delay = s.duration("delay"), true
		case "due_at":
			q.Due, when.due = s.instant("due_at"), true
		case "payload":
			mend().Payload = s.raw()
		case "headers":
			h := s.headers()
			if h == nil {
				h = map[string]string{}
			}
			mend().Headers = h
		case "delivery":
			mend().Target = s.target()
		default:
			return false
		}
		when.check(s)
		return true
	})
	if err != nil {
		return nil, err
	}
	if q.IDs = ids; q.Mend != nil {
		if err := s.maxPayload.check(q.Mend.Payload); err != nil {
			return nil, err
		}
	}
	defer withoutDeadline(in.gin)()
	done, err := s.scheduler.Requeue(ctx, in.Topic, q)
	if done.Requeued > 0 || err != nil {
		s.record(in.gin, tasks.AuditEntry{Verb: "requeue", Topic: in.Topic, Count: int64(done.Requeued)}, err)
	}
	if err != nil {
		return nil, withDone(err, done.Requeued)
	}
	return &reply[Requeued]{Requeued(done)}, nil
}

// deleteDead answers DELETE /v1/topics/{topic}/dead.
func (s *Server) deleteDead(ctx context.Context, in *topicInput) (*struct{}, error) {
	ids, err := decodeChoice(in, func(*scanner, []byte) bool { return false })
	if err != nil {
		return nil, err
	}
	defer withoutDeadline(in.gin)()
	n, err := s.scheduler.DeleteDead(ctx, in.Topic, ids)
	if n > 0 || err != nil {
		s.record(in.gin, tasks.AuditEntry{Verb: "delete-dead", Topic: in.Topic, Count: int64(n)}, err)
	}
	return nil, withDone(err, n)
}

// withDone adds to an error how many tasks were done before it. Repeating the request does the
// rest.
func withDone(err error, n int) error {
	if p := problemOf(err); p != nil && n > 0 {
		p.Detail += fmt.Sprintf("; %d were done before that", n)
		p.Done = n
		return p
	}
	return err
}

// decodeChoice returns the chosen ids, nil for all. Other fields are read by more, which reports
// whether it knows the key.
func decodeChoice(in *topicInput, more func(body *scanner, key []byte) bool) ([]string, error) {
	body, err := jsonBody(in.gin)
	if err != nil {
		return nil, err
	}
	var ids []string
	named, all := false, false
	for key := range body.object("") {
		switch string(key) {
		case "ids":
			ids, named = body.strings("ids", tasks.MaxBatch), true
		case "all":
			if all = body.boolean("all"); !all && body.err == nil {
				body.fault("all", "must be true, or be left out")
			}
		default:
			if !more(body, key) {
				body.unknown(key)
			}
		}
	}
	if named == all {
		body.fault("ids", "must be given, or all must be true, not both")
	}
	return ids, body.done()
}
