package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/tasks"
)

type taskInput struct {
	request
	ID string `path:"id" doc:"The task's id."`
}

// A changeTaskInput names a task that is to be changed, with the conditions of the change.
type changeTaskInput struct {
	request
	ID      string `path:"id" doc:"The task's id."`
	IfMatch string `header:"If-Match" maxLength:"64" doc:"Only if the task has this ETag; * means that there is one."`
}

// in makes the context of the change.
func (in *changeTaskInput) in(ctx context.Context) (context.Context, error) {
	switch in.IfMatch {
	case "":
		return ctx, nil
	case "*":
		return tasks.WithVersion(ctx, tasks.AnyVersion), nil
	}
	v, ok := parseTag(in.IfMatch)
	if !ok {
		return nil, invalidField("If-Match", "must be the ETag of an answer, or *")
	}
	return tasks.WithVersion(ctx, v), nil
}

// tagOf is the ETag of a task: its revision and its creation time, which distinguishes it from a
// later task with the same id.
func tagOf(t *tasks.Task) string {
	return `"` + strconv.FormatInt(t.Revision, 10) + "." + strconv.FormatInt(t.Created.UnixNano(), 36) + `"`
}

func parseTag(tag string) (v tasks.Version, ok bool) {
	tag, opened := strings.CutPrefix(tag, `"`)
	tag, closed := strings.CutSuffix(tag, `"`)
	revision, created, parted := strings.Cut(tag, ".")
	number, err := strconv.ParseUint(revision, 10, 63)
	at, err2 := strconv.ParseInt(created, 36, 64)
	v = tasks.Version{Revision: int64(number), Created: time.Unix(0, at)}
	return v, opened && closed && parted && err == nil && err2 == nil && number > 0
}

type taskReply struct {
	Status   int
	ETag     string `header:"ETag" doc:"Names the revision of the task, for If-Match."`
	Location string `header:"Location" doc:"Path of the task."`
	Body     Task
}

func (r *taskReply) parts(h http.Header) (int, any) {
	h.Set("ETag", r.ETag)
	if r.Location != "" {
		h.Set("Location", r.Location)
	}
	return r.Status, &r.Body
}

// A taggedTask is the answer with a task and its ETag.
type taggedTask struct {
	ETag string `header:"ETag" doc:"Names the revision of the task, for If-Match."`
	Body Task
}

func tagged(t *tasks.Task, c *gin.Context) *taggedTask {
	return &taggedTask{tagOf(t), wireTask(t, seesAll(c))}
}

// location is the path of a task. No character of an id needs to be escaped.
func (s *Server) location(id string) string { return s.prefix.path("/v1/tasks/" + id) }

// schedule answers POST /v1/tasks.
func (s *Server) schedule(ctx context.Context, in *request) (*taskReply, error) {
	var r tasks.Request
	if err := s.decodeTask(in, &r); err != nil {
		return nil, err
	}
	t, err := s.creator.Schedule(withTrace(ctx, in.gin.Request), r)
	if err != nil {
		return nil, withTaskID(err, t.ID) // the scheduler's id, if the caller chose none
	}
	status := http.StatusCreated
	switch {
	case t.Repeated:
		status = http.StatusOK
	case t.Spooled:
		status = http.StatusAccepted
	}
	return &taskReply{Status: status, ETag: tagOf(&t), Location: s.location(t.ID), Body: wireTask(&t, seesAll(in.gin))}, nil
}

// put answers PUT /v1/tasks/{id}.
func (s *Server) put(ctx context.Context, in *changeTaskInput) (*taskReply, error) {
	ctx, err := in.in(ctx)
	if err != nil {
		return nil, err
	}
	var r tasks.Request
	if err := s.decodeTask(&in.request, &r); err != nil {
		return nil, err
	}
	if r.ID != "" && r.ID != in.ID {
		return nil, invalidField("id", "must be the id in the path, or be left out")
	}
	r.ID = in.ID
	t, err := s.scheduler.Replace(withTrace(ctx, in.gin.Request), r)
	if err != nil {
		return nil, withTaskID(err, r.ID)
	}
	if t.Repeated {
		return &taskReply{Status: http.StatusOK, ETag: tagOf(&t), Body: wireTask(&t, seesAll(in.gin))}, nil
	}
	return &taskReply{Status: http.StatusCreated, ETag: tagOf(&t), Location: s.location(t.ID), Body: wireTask(&t, seesAll(in.gin))}, nil
}

func (s *Server) decodeTask(in *request, r *tasks.Request) error {
	body, err := jsonBody(in.gin)
	if err != nil {
		return err
	}
	body.task(r)
	if err := body.done(); err != nil {
		return err
	}
	return s.maxPayload.check(r.Payload)
}

// A payloadLimit bounds a payload, in bytes; 0: the scheduler alone does.
type payloadLimit int

// check checks the size of a payload. Error: tasks.ErrTooLarge.
func (most payloadLimit) check(payload []byte) error {
	if most > 0 && len(payload) > int(most) {
		return fmt.Errorf("%w: payload must be at most %d bytes", tasks.ErrTooLarge, most)
	}
	return nil
}

// withTaskID adds the id to the answer when the outcome or the task is unknown.
func withTaskID(err error, id string) error {
	if p := problemOf(err); p != nil {
		return p.withID(id)
	}
	return err
}

// get answers GET /v1/tasks/{id}.
func (s *Server) get(ctx context.Context, in *taskInput) (*taggedTask, error) {
	t, err := s.scheduler.Get(ctx, in.ID)
	if err != nil {
		return nil, withTaskID(err, in.ID)
	}
	if err := answerOf(in.gin).take(sizeOf(&t)); err != nil {
		return nil, err
	}
	return tagged(&t, in.gin), nil
}

// patch answers PATCH /v1/tasks/{id}.
func (s *Server) patch(ctx context.Context, in *changeTaskInput) (*taggedTask, error) {
	ctx, err := in.in(ctx)
	if err != nil {
		return nil, err
	}
	body, err := jsonBody(in.gin)
	if err != nil {
		return nil, err
	}
	var m tasks.Move
	body.move(&m)
	if err := body.done(); err != nil {
		return nil, err
	}
	if err := s.maxPayload.check(m.Payload); err != nil {
		return nil, err
	}
	if err := answerOf(in.gin).take(taskAnswer); err != nil {
		return nil, err
	}
	e := tasks.AuditEntry{Verb: "move", Task: in.ID, Detail: moveText(&m)}
	t, err := s.onTask(ctx, in.gin, e, func(ctx context.Context, id string) (tasks.Task, error) { return s.scheduler.Reschedule(ctx, id, m) })
	if err != nil {
		return nil, withTaskID(err, in.ID)
	}
	return tagged(&t, in.gin), nil
}

// cancel answers DELETE /v1/tasks/{id}.
func (s *Server) cancel(ctx context.Context, in *changeTaskInput) (*struct{}, error) {
	ctx, err := in.in(ctx)
	if err != nil {
		return nil, err
	}
	_, err = s.onTask(ctx, in.gin, tasks.AuditEntry{Verb: "cancel", Task: in.ID}, func(ctx context.Context, id string) (tasks.Task, error) {
		return tasks.Task{}, s.scheduler.Cancel(ctx, id)
	})
	if err != nil {
		return nil, withTaskID(err, in.ID)
	}
	return nil, nil
}

// fire answers POST /v1/tasks/{id}/fire.
func (s *Server) fire(ctx context.Context, in *changeTaskInput) (*taggedTask, error) {
	return s.changed(ctx, in, "fire", s.scheduler.Fire)
}

// changed answers a request that changes a task and has no body.
func (s *Server) changed(ctx context.Context, in *changeTaskInput, verb string, change func(context.Context, string) (tasks.Task, error)) (*taggedTask, error) {
	ctx, err := in.in(ctx)
	if err != nil {
		return nil, err
	}
	if err := answerOf(in.gin).take(taskAnswer); err != nil {
		return nil, err
	}
	t, err := s.onTask(ctx, in.gin, tasks.AuditEntry{Verb: verb, Task: in.ID}, change)
	if err != nil {
		return nil, withTaskID(err, in.ID)
	}
	return tagged(&t, in.gin), nil
}

// hold answers POST /v1/tasks/{id}/hold, and resume POST /v1/tasks/{id}/resume.
func (s *Server) hold(ctx context.Context, in *changeTaskInput) (*taggedTask, error) {
	return s.changed(ctx, in, "hold", s.scheduler.Hold)
}

func (s *Server) resume(ctx context.Context, in *changeTaskInput) (*taggedTask, error) {
	return s.changed(ctx, in, "resume", s.scheduler.Resume)
}

type listTasksInput struct {
	request
	ID    string `query:"id" maxLength:"128" doc:"Only the task that has this id, in whatever state: an empty list if there is none, or if the token may not use its topic. With no other parameter but details."`
	Topic string `query:"topic" maxLength:"128" doc:"Only tasks of this topic."`
	Group string `query:"group" maxLength:"128" doc:"Only tasks of this group."`
	State string `query:"state" enum:"pending,retrying,held,ready,delivering,dead,finished" doc:"Only tasks in this state; retrying: those pending tasks of which an attempt was made; held: those whose countdown is held, which are pending too; finished: those that are kept, the one first that finished first. Without it, all but the dead and the finished. Dead and finished need a topic."`
	Node  string `query:"node" maxLength:"128" doc:"Only tasks that the node of this name has, those that it has adopted included."`
	TextFilter
	DueFilter
	DiedFilter
	DetailFilter
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Tasks a page."`
	Cursor string `query:"cursor" maxLength:"1024" doc:"The next_cursor of the page before."`
}

// list answers GET /v1/tasks.
func (s *Server) list(ctx context.Context, in *listTasksInput) (*reply[TaskPage], error) {
	state, _ := tasks.ParseState(in.State) // none of them is 0; huma has checked the text
	q := tasks.Query{Topic: in.Topic, Group: in.Group, State: state, Node: in.Node, Limit: in.Limit, Cursor: in.Cursor, Brief: !in.Details}
	in.TextFilter.add(&q)
	q.Reason = tasks.Reason(in.Reason)
	if err := instants(append(in.DueFilter.bounds(&q), in.DiedFilter.bounds(&q)...)); err != nil {
		return nil, err
	}
	if in.ID != "" {
		return s.listOne(ctx, in, q)
	}
	return s.listed(ctx, in.gin, func() (tasks.Page, error) { return s.scheduler.List(ctx, q) })
}

// listOne lists the task that has an id, dead or finished ones included.
func (s *Server) listOne(ctx context.Context, in *listTasksInput, q tasks.Query) (*reply[TaskPage], error) {
	if q.Limit, q.Brief = 0, false; q != (tasks.Query{}) {
		return nil, invalidField("id", "must not stand beside other parameters than details")
	}
	return s.listed(ctx, in.gin, func() (tasks.Page, error) {
		t, err := s.scheduler.Get(ctx, in.ID)
		switch {
		case errors.Is(err, tasks.ErrNotFound), errors.Is(err, tasks.ErrNotGranted):
			return tasks.Page{}, nil
		case err != nil:
			return tasks.Page{}, err
		}
		if !in.Details {
			t.Shorten()
		}
		return tasks.Page{Tasks: []tasks.Task{t}}, nil
	})
}
