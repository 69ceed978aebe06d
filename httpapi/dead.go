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

// requeue answers POST /v1/topics/{topic}/dead/requeue.
func (s *Server) requeue(ctx context.Context, in *topicInput) (*reply[Requeued], error) {
	var q tasks.Requeue
	var when deadline
	ids, err := decodeChoice(in, func(s *scanner, key []byte) bool {
		switch string(key) {
		case "delay":
			q.Delay, when.delay = s.duration("delay"), true
		case "due_at":
			q.Due, when.due = s.instant("due_at"), true
		default:
			return false
		}
		when.check(s)
		return true
	})
	if err != nil {
		return nil, err
	}
	q.IDs = ids
	defer withoutDeadline(in.gin)()
	done, err := s.scheduler.Requeue(ctx, in.Topic, q)
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
