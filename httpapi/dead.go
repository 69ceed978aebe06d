package httpapi

import (
	"context"
	"fmt"

	"github.com/lapsehq/lapse/tasks"
)

// Choice describes which dead tasks of a topic are meant: one of the two.
type Choice struct {
	IDs []string `json:"ids,omitempty" minItems:"1" maxItems:"10000" nullable:"false" doc:"These."`
	All bool     `json:"all,omitempty" doc:"true: all of the topic."`
}

// Requeued tells how many dead tasks came back.
type Requeued struct {
	Requeued int `json:"requeued"`
}

type deadListing struct {
	Topic  string `path:"topic" doc:"Name of the topic."`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Tasks a page."`
	Cursor string `query:"cursor" maxLength:"1024" doc:"The next_cursor of the page before."`
}

// listDead answers GET /v1/topics/{topic}/dead.
func (s *Server) listDead(ctx context.Context, in *deadListing) (*reply[TaskPage], error) {
	page, err := s.scheduler.DeadTasks(ctx, in.Topic, in.Limit, in.Cursor)
	if err != nil {
		return nil, err
	}
	return &reply[TaskPage]{wirePage(page)}, nil
}

// requeue answers POST /v1/topics/{topic}/dead/requeue.
func (s *Server) requeue(ctx context.Context, in *onTopic) (*reply[Requeued], error) {
	ids, err := decodeChoice(in)
	if err != nil {
		return nil, err
	}
	defer unhurried(in.gin)()
	n, err := s.scheduler.Requeue(ctx, in.Topic, ids)
	if err != nil {
		return nil, partly(err, n)
	}
	return &reply[Requeued]{Requeued{n}}, nil
}

// deleteDead answers DELETE /v1/topics/{topic}/dead.
func (s *Server) deleteDead(ctx context.Context, in *onTopic) (*struct{}, error) {
	ids, err := decodeChoice(in)
	if err != nil {
		return nil, err
	}
	defer unhurried(in.gin)()
	n, err := s.scheduler.DeleteDead(ctx, in.Topic, ids)
	return nil, partly(err, n)
}

// partly says how far it got before the error. Repeating the request does the
// rest.
func partly(err error, n int) error {
	if p := problemOf(err); p != nil && n > 0 {
		p.Detail += fmt.Sprintf("; %d were done before that", n)
		p.Done = n
		return p
	}
	return err
}

// decodeChoice returns the chosen ids, nil for all.
func decodeChoice(in *onTopic) ([]string, error) {
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
			body.unknown(key)
		}
	}
	if named == all {
		body.fault("ids", "must be given, or all must be true, not both")
	}
	return ids, body.done()
}
