package httpapi

import (
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// A TextFilter filters lists of tasks by text.
type TextFilter struct {
	IDPrefix  string `query:"id_prefix" maxLength:"128" doc:"Only tasks whose ids begin so."`
	Error     string `query:"error" maxLength:"256" doc:"Only tasks whose last error has this in it, in small or capital letters. At most 256 bytes."`
	ErrorLike string `query:"error_like" maxLength:"1024" doc:"Only tasks whose last error is this but for numbers, such as the error of one of the reasons of dead tasks; (none): those without one."`
}

func (in *TextFilter) add(q *tasks.Query) {
	q.IDPrefix, q.Error, q.ErrorLike = in.IDPrefix, in.Error, in.ErrorLike
}

// A DetailFilter says how much a list tells of each task.
type DetailFilter struct {
	Details bool `query:"details" default:"true" doc:"false: leave payload, headers and attempts out, and all but 256 bytes of last_error, so that the answer stays small."`
}

// A DueFilter filters lists of tasks that are not dead.
type DueFilter struct {
	DueFrom string `query:"due_from" maxLength:"64" format:"date-time" doc:"Only tasks whose next attempt (next_at) is not before this time. Not with the state dead."`
	DueTo   string `query:"due_to" maxLength:"64" format:"date-time" doc:"Only tasks whose next attempt is before this time. Not with the state dead."`
}

func (in *DueFilter) bounds(q *tasks.Query) []bound {
	return []bound{{"due_from", in.DueFrom, &q.DueFrom}, {"due_to", in.DueTo, &q.DueTo}}
}

// A DiedFilter filters lists of dead tasks.
type DiedFilter struct {
	Reason   string `query:"reason" enum:"exhausted,buried,deleted" doc:"Only dead tasks with this reason."`
	DiedFrom string `query:"died_from" maxLength:"64" format:"date-time" doc:"Only dead tasks that did not die before this time."`
	DiedTo   string `query:"died_to" maxLength:"64" format:"date-time" doc:"Only dead tasks that died before this time."`
}

func (in *DiedFilter) bounds(q *tasks.Query) []bound {
	return []bound{{"died_from", in.DiedFrom, &q.DiedFrom}, {"died_to", in.DiedTo, &q.DiedTo}}
}

// A bound is a parameter that bounds a window of time.
type bound struct {
	field, text string
	to          *time.Time
}

// instants reads those that are given.
func instants(bounds []bound) error {
	var faults []tasks.FieldError
	for _, b := range bounds {
		if b.text == "" {
			continue
		}
		t, err := parseInstant(b.text)
		if err != nil {
			faults = append(faults, tasks.FieldError{Field: b.field, Problem: err.Error()})
		}
		if t.IsZero() {
			t = time.UnixMilli(0) // no task is earlier; the zero Time would mean none
		}
		*b.to = t
	}
	if faults != nil {
		return invalidFields(faults)
	}
	return nil
}
