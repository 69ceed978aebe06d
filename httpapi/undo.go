package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/tasks"
)

// What the log of actions records is what an undo goes by. It takes an act back only where that
// leads to what was there before, and only if nothing has changed since: an entry that allows it
// has an ETag, and what it has changed as Before.

// An oldTask is what a task was before an act.
type oldTask struct {
	Due     time.Time `json:"due_at"`
	State   string    `json:"state"`
	Attempt int       `json:"attempt"`
}

func textOfTask(t *tasks.Task) string {
	return jsonText(oldTask{t.Due.UTC(), t.State.String(), t.Attempt})
}

// undoOf returns the verb by which an act is undone, or why it is not. Whether something has
// changed since is seen when it is tried.
func undoOf(e *tasks.AuditEntry) (verb, why string) {
	switch {
	case e.Unknown:
		return "", "its outcome is not certain"
	case e.Task != "":
		return undoOfTask(e)
	case e.Verb == "delete-topic":
		return "", "the log has no secrets, and so not all of the settings"
	case e.Topic == "" || undoVerbs[e.Verb] == "" || e.Group != "" || e.Verb == "resume" && e.Detail != "":
		return "", "the log has the filter of an act on many tasks, and not which these were"
	case e.ETag == "" || e.Before == "":
		return "", "what the settings were before it is not known"
	}
	for name, value := range membersOf(json.RawMessage(e.Before)) {
		if text, _ := value.(json.RawMessage); name == "delivery" || string(text) == withheld {
			return "", "the log has no secrets and nothing long, and so not what " + name + " was"
		}
	}
	if !json.Valid([]byte(e.Before)) {
		return "", "the log has a part of the settings only"
	}
	return undoVerbs[e.Verb], ""
}

// undoVerbs has the acts on a topic's settings, and how each is undone.
var undoVerbs = map[string]string{"pause": "resume", "resume": "pause", "set-topic": "change-topic", "change-topic": "change-topic"}

func undoOfTask(e *tasks.AuditEntry) (verb, why string) {
	var was oldTask
	if e.ETag == "" || json.Unmarshal([]byte(e.Before), &was) != nil {
		return "", "what the task was before it is not known"
	}
	switch e.Verb {
	case "hold":
		return "resume", ""
	case "resume":
		return "hold", ""
	case "move", "fire":
		switch {
		case strings.Contains(e.Detail, withheld):
			return "", "the log has no payloads, and so not what the task had"
		case was.State == tasks.Held.String():
			return "", "the task was held, and with it the time that it had left; move it, or hold it"
		case was.Attempt > 0:
			return "", "the task was retrying, and its next attempt was not at its deadline"
		}
		return "move", ""
	case "cancel":
		if was.State == tasks.Held.String() || was.State == tasks.Dead.String() {
			return "", "the task was " + was.State + ", and would not be again"
		}
		return "schedule", ""
	}
	return "", "the log does not know how"
}

// Undone says how an act was taken back.
type Undone struct {
	ID    string `json:"id" doc:"Of the entry of the act that was taken back."`
	Verb  string `json:"verb" enum:"pause,resume,change-topic,move,hold,schedule" doc:"What was done for it."`
	Topic string `json:"topic"`
	Task  string `json:"task,omitempty" doc:"Of an act on one task."`
}

type undoInput struct {
	request
	ID string `path:"act" maxLength:"128" doc:"The id of an entry of the log of actions."`
}

// undo answers POST /v1/audit/{act}/undo.
func (s *Server) undo(ctx context.Context, in *undoInput) (*reply[Undone], error) {
	e, err := s.scheduler.FindAct(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	verb, why := undoOf(&e)
	if verb == "" {
		return nil, notUndone.with(why)
	}
	done := tasks.AuditEntry{Verb: verb, Topic: e.Topic, Task: e.Task, Undoes: e.ID}
	if e.Task != "" {
		err = s.undoOnTask(ctx, in.gin, &e, done)
	} else {
		err = s.undoSettings(ctx, in.gin, &e, done)
	}
	if err != nil {
		return nil, withTaskID(err, e.Task)
	}
	return &reply[Undone]{Undone{e.ID, verb, e.Topic, e.Task}}, nil
}

// undoSettings gives the fields that an act has changed what they had before.
func (s *Server) undoSettings(ctx context.Context, c *gin.Context, e *tasks.AuditEntry, done tasks.AuditEntry) error {
	revision, err := s.ifRevision(e.Topic, e.ETag, "")
	if err != nil {
		return err
	}
	_, err = s.changeSettings(ctx, c, done, revision, changedObject(func(object map[string]any) error {
		for name, value := range membersOf(json.RawMessage(e.Before)) {
			if object[name] = value; string(value.(json.RawMessage)) == "null" {
				delete(object, name)
			}
		}
		return nil
	}))
	return err
}

// undoOnTask undoes an act on one task.
func (s *Server) undoOnTask(ctx context.Context, c *gin.Context, e *tasks.AuditEntry, done tasks.AuditEntry) error {
	version, ok := parseTag(e.ETag)
	if !ok {
		return notUndone.with("what the task was is not known")
	}
	change := s.scheduler.Resume
	switch done.Verb {
	case "hold":
		change = s.scheduler.Hold
	case "move":
		var was oldTask
		if err := json.Unmarshal([]byte(e.Before), &was); err != nil {
			return notUndone.with("what the task was is not known")
		}
		change = func(ctx context.Context, id string) (tasks.Task, error) {
			return s.scheduler.Reschedule(ctx, id, tasks.Move{Due: was.Due})
		}
	case "schedule":
		t, err := s.scheduler.Get(ctx, e.Task)
		switch {
		case errors.Is(err, tasks.ErrNotFound):
			return notUndone.with("the cancelled task is not kept: that takes keep_finished of its topic")
		case err != nil:
			return err
		case t.State != tasks.Finished || t.Outcome != tasks.OutcomeCancelled || t.Revision != version.Revision || !t.Created.Equal(version.Created):
			return tasks.ErrRevision // a cancel leaves the revision as it is
		}
		change = func(ctx context.Context, _ string) (tasks.Task, error) {
			r := t.Request()
			r.Supersede = true
			return s.scheduler.Replace(ctx, r)
		}
	}
	_, err := s.onTask(tasks.WithVersion(ctx, version), c, done, change)
	return err
}
