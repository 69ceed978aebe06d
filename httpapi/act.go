package httpapi

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// Actions asks for one thing to be done with many tasks.
type Actions struct {
	Action string        `json:"action" enum:"cancel,move,fire,hold,resume,requeue,delete" doc:"What is done with each of the tasks. requeue and delete are for dead tasks and need the scope admin, the others are for those that are not dead."`
	IDs    []string      `json:"ids,omitempty" minItems:"1" maxItems:"1000" nullable:"false" doc:"These tasks."`
	Filter *ActionFilter `json:"filter,omitempty" doc:"The tasks that all of its fields select. Instead of ids. It must have one field at least, with requeue and delete topic."`
	DueAt  string        `json:"due_at,omitempty" format:"date-time" doc:"The new deadline, at most 10 years ahead. One in the past is due at once. For move, and for requeue, which makes tasks due now without it."`
	Shift  span          `json:"shift,omitempty" doc:"For move, instead of due_at: added to the deadline of each task, and to its next attempt. A held task stays held. It may begin with a minus. The first call moves nothing: it answers the cursor under which each task is moved once, however often a call is repeated."`
	DryRun bool          `json:"dry_run,omitempty" doc:"true: counts the tasks, up to 20,000 a call, and changes nothing."`
	Limit  int           `json:"limit,omitempty" minimum:"1" maximum:"1000" doc:"At most so many tasks of a filter are changed. Default: 1,000."`
	Cursor string        `json:"cursor,omitempty" maxLength:"1024" doc:"The next_cursor of the call before, all other fields being the same."`
}

// ActionFilter selects tasks as the parameters of the lists do.
type ActionFilter struct {
	Topic     string `json:"topic,omitempty" maxLength:"128" doc:"Tasks of this topic."`
	Group     string `json:"group,omitempty" maxLength:"128" doc:"Tasks of this group."`
	State     string `json:"state,omitempty" enum:"pending,retrying,held,ready,delivering,dead" doc:"Tasks in this state. Without it, with requeue and delete the dead, with resume those that are held, and otherwise all but the dead."`
	IDPrefix  string `json:"id_prefix,omitempty" maxLength:"128" doc:"Tasks whose ids begin so."`
	Error     string `json:"error,omitempty" maxLength:"256" doc:"Tasks whose last error has this in it, in small or capital letters."`
	ErrorLike string `json:"error_like,omitempty" maxLength:"1024" doc:"Tasks whose last error is this but for numbers; (none): those without one."`
	DueFrom   string `json:"due_from,omitempty" format:"date-time" doc:"Tasks whose next attempt is not before this time. Not of dead tasks, and of no held ones."`
	DueTo     string `json:"due_to,omitempty" format:"date-time" doc:"Tasks whose next attempt is before this time. Not of dead tasks, and of no held ones."`
	Reason    string `json:"reason,omitempty" enum:"exhausted,buried,deleted" doc:"Dead tasks with this reason."`
	DiedFrom  string `json:"died_from,omitempty" format:"date-time" doc:"Dead tasks that did not die before this time."`
	DiedTo    string `json:"died_to,omitempty" format:"date-time" doc:"Dead tasks that died before this time."`
}

// Acted reports what was done with many tasks.
type Acted struct {
	Matched    int       `json:"matched" doc:"Tasks that were selected when their turn came. One that has changed since it was found, so that the filter does not select it any more, does not count."`
	Done       int       `json:"done" doc:"How many of them were changed. 0 with dry_run."`
	Failed     []Refusal `json:"failed" nullable:"false" maxItems:"1000" doc:"The others, and why not."`
	NextCursor string    `json:"next_cursor,omitempty" doc:"For the next call, which is about other tasks. Left out at the end."`
}

// Refusal reports why a task was not changed.
type Refusal struct {
	ID      string   `json:"id"`
	Problem *Problem `json:"problem"`
}

// act answers POST /v1/tasks/actions.
func (s *Server) act(ctx context.Context, in *request) (*reply[Acted], error) {
	body, err := jsonBody(in.gin)
	if err != nil {
		return nil, err
	}
	var a tasks.Act
	body.act(&a)
	if err := body.done(); err != nil {
		return nil, err
	}
	if a.Action.Dead() && !mayAdmin(in.gin) {
		return nil, forbidden.with("the actions requeue and delete need the scope admin")
	}
	defer withoutDeadline(in.gin)()
	done, err := s.scheduler.Act(ctx, a)
	if !a.Dry && (done.Done > 0 || a.Query.Cursor != "" && done.Cursor == "" || err != nil) {
		s.record(in.gin, tasks.AuditEntry{
			Verb: string(a.Action), Topic: a.Query.Topic, Group: a.Query.Group, Detail: filterText(&a),
			Count: int64(done.Done), Partial: done.Cursor != "",
		}, err)
	}
	if err != nil {
		return nil, withDone(err, done.Done)
	}
	answer := Acted{Matched: done.Matched, Done: done.Done, Failed: make([]Refusal, len(done.Failed)), NextCursor: done.Cursor}
	if err := answerOf(in.gin).take(int64(len(done.Failed)) * refusalSize); err != nil {
		return nil, err
	}
	for i, f := range done.Failed {
		answer.Failed[i] = Refusal{f.ID, problem(ctx, f.Err)}
	}
	return &reply[Acted]{answer}, nil
}

// refusalSize is about how much of an answer a refusal takes up.
const refusalSize = 512

// act reads Actions.
func (s *scanner) act(a *tasks.Act) {
	filtered := false
	for key := range s.object("") {
		switch string(key) {
		case "action":
			a.Action = tasks.Action(s.str("action"))
		case "ids":
			a.IDs = s.strings("ids", tasks.MaxActs)
		case "filter":
			s.filter(&a.Query)
			filtered = true
		case "due_at":
			a.Due = s.instant("due_at")
		case "shift":
			a.Shift = s.duration("shift")
			if a.Shift == 0 && s.err == nil && len(s.faults) == 0 {
				s.fault("shift", "must not be zero")
			}
		case "dry_run":
			a.Dry = s.boolean("dry_run")
		case "limit":
			a.Query.Limit = s.integer("limit", 1, tasks.MaxActs)
		case "cursor":
			a.Query.Cursor = s.str("cursor")
		default:
			s.unknown(key)
		}
	}
	if s.err == nil && len(s.faults) == 0 && (a.IDs != nil) == filtered {
		s.fault("ids", "must be given, or filter, not both")
	}
}

// filter reads an ActionFilter.
func (s *scanner) filter(q *tasks.Query) {
	s.within = "filter."
	defer func() { s.within = "" }()
	texts := map[string]*string{"topic": &q.Topic, "group": &q.Group, "id_prefix": &q.IDPrefix, "error": &q.Error, "error_like": &q.ErrorLike, "reason": (*string)(&q.Reason)}
	times := map[string]*time.Time{"due_from": &q.DueFrom, "due_to": &q.DueTo, "died_from": &q.DiedFrom, "died_to": &q.DiedTo}
	for key := range s.object("") {
		name := string(key)
		text, at := texts[name], times[name]
		switch {
		case name == "state":
			state, ok := tasks.ParseState(s.str(name))
			if q.State = state; !ok && s.err == nil && len(s.faults) == 0 {
				s.fault(name, "must be pending, retrying, held, ready, delivering or dead")
			}
		case text != nil:
			if *text = s.str(name); *text == "" && s.err == nil && len(s.faults) == 0 {
				s.fault(name, "must not be empty") // it would select all
			}
		case at != nil:
			*at = s.instant(name)
		default:
			s.unknown(key)
		}
	}
}

// filterText returns what an act selects, for the log of actions.
func filterText(a *tasks.Act) string {
	if a.IDs != nil {
		return `{"ids":` + strconv.Itoa(len(a.IDs)) + `}`
	}
	q := &a.Query
	f := ActionFilter{
		Topic: q.Topic, Group: q.Group, IDPrefix: q.IDPrefix, Error: q.Error, ErrorLike: q.ErrorLike, Reason: string(q.Reason),
	}
	if q.State != 0 {
		f.State = q.State.String()
	}
	for to, at := range map[*string]time.Time{&f.DueFrom: q.DueFrom, &f.DueTo: q.DueTo, &f.DiedFrom: q.DiedFrom, &f.DiedTo: q.DiedTo} {
		if !at.IsZero() {
			*to = formatInstant(at)
		}
	}
	text, err := json.Marshal(f)
	if err != nil {
		return "" // it consists of texts
	}
	return string(text)
}
