package httpapi

import (
	"context"
	"net/http"

	"github.com/lapsehq/lapse/tasks"
)

type onTask struct {
	request
	ID string `path:"id" doc:"The task's id."`
}

type taskReply struct {
	Status   int
	Location string `header:"Location" doc:"Path of the task."`
	Body     Task
}

// location is the path of a task. No character of an id needs to be escaped.
func location(id string) string { return "/v1/tasks/" + id }

// schedule answers POST /v1/tasks.
func (s *Server) schedule(ctx context.Context, in *request) (*taskReply, error) {
	var r tasks.Request
	if err := decodeTask(in, &r); err != nil {
		return nil, err
	}
	t, err := s.hot.Schedule(ctx, r)
	if err != nil {
		return nil, naming(err, t.ID) // the one that was made, if none was chosen
	}
	status := http.StatusCreated
	switch {
	case t.Repeated:
		status = http.StatusOK
	case t.Spooled:
		status = http.StatusAccepted
	}
	return &taskReply{Status: status, Location: location(t.ID), Body: wireTask(&t)}, nil
}

// put answers PUT /v1/tasks/{id}.
func (s *Server) put(ctx context.Context, in *onTask) (*taskReply, error) {
	var r tasks.Request
	if err := decodeTask(&in.request, &r); err != nil {
		return nil, err
	}
	if r.ID != "" && r.ID != in.ID {
		return nil, invalidField("id", "must be the id in the path, or be left out")
	}
	r.ID = in.ID
	t, err := s.scheduler.Replace(ctx, r)
	if err != nil {
		return nil, naming(err, r.ID)
	}
	if t.Repeated {
		return &taskReply{Status: http.StatusOK, Body: wireTask(&t)}, nil
	}
	return &taskReply{Status: http.StatusCreated, Location: location(t.ID), Body: wireTask(&t)}, nil
}

func decodeTask(in *request, r *tasks.Request) error {
	body, err := jsonBody(in.gin)
	if err != nil {
		return err
	}
	body.task(r)
	return body.done()
}

// naming adds the id to the answer when the outcome is unknown.
func naming(err error, id string) error {
	if p := problemOf(err); p != nil {
		return p.withID(id)
	}
	return err
}

// get answers GET /v1/tasks/{id}.
func (s *Server) get(ctx context.Context, in *onTask) (*reply[Task], error) {
	t, err := s.scheduler.Get(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &reply[Task]{wireTask(&t)}, nil
}

// patch answers PATCH /v1/tasks/{id}.
func (s *Server) patch(ctx context.Context, in *onTask) (*reply[Task], error) {
	body, err := jsonBody(in.gin)
	if err != nil {
		return nil, err
	}
	var m tasks.Move
	body.move(&m)
	if err := body.done(); err != nil {
		return nil, err
	}
	t, err := s.scheduler.Reschedule(ctx, in.ID, m)
	if err != nil {
		return nil, naming(err, in.ID)
	}
	return &reply[Task]{wireTask(&t)}, nil
}

// cancel answers DELETE /v1/tasks/{id}.
func (s *Server) cancel(ctx context.Context, in *onTask) (*struct{}, error) {
	return nil, naming(s.scheduler.Cancel(ctx, in.ID), in.ID)
}

// fire answers POST /v1/tasks/{id}/fire.
func (s *Server) fire(ctx context.Context, in *onTask) (*reply[Task], error) {
	t, err := s.scheduler.Fire(ctx, in.ID)
	if err != nil {
		return nil, naming(err, in.ID)
	}
	return &reply[Task]{wireTask(&t)}, nil
}

type listing struct {
	Topic  string `query:"topic" maxLength:"128" doc:"Only tasks of this topic."`
	Group  string `query:"group" maxLength:"128" doc:"Only tasks of this group. Not with the state dead."`
	State  string `query:"state" enum:"pending,ready,delivering,dead" doc:"Only tasks in this state. Without it, all but the dead."`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Tasks a page."`
	Cursor string `query:"cursor" maxLength:"1024" doc:"The next_cursor of the page before."`
}

// list answers GET /v1/tasks.
func (s *Server) list(ctx context.Context, in *listing) (*reply[TaskPage], error) {
	state, _ := tasks.ParseState(in.State) // none of them is 0; huma has checked the others
	page, err := s.scheduler.List(ctx, tasks.Query{Topic: in.Topic, Group: in.Group, State: state, Limit: in.Limit, Cursor: in.Cursor})
	if err != nil {
		return nil, err
	}
	return &reply[TaskPage]{wirePage(page)}, nil
}
