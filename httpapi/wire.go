package httpapi

import (
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/internal/timespan"
	"github.com/lapsehq/lapse/tasks"
)

// span is a duration in a request.
type span struct{}

// Schema describes a duration to huma.
func (span) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{OneOf: []*huma.Schema{
		{Type: huma.TypeString, Description: `A Go duration, also with d for days, such as "30m" or "7d".`, Examples: []any{"30m"}},
		{Type: huma.TypeNumber, Description: "Milliseconds."},
	}}
}

// duration is a span of time in an answer.
type duration time.Duration

// Schema describes a duration to huma.
func (duration) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Examples: []any{"30m"}}
}

// MarshalJSON writes the form that requests use.
func (d duration) MarshalJSON() ([]byte, error) {
	return []byte(`"` + timespan.Format(time.Duration(d)) + `"`), nil
}

// Attempt is an attempt that has ended.
type Attempt struct {
	Number   int       `json:"attempt" doc:"Its number. A task that was requeued begins with 1 again."`
	At       string    `json:"at" format:"date-time" doc:"When it ended."`
	Duration *duration `json:"duration,omitempty" doc:"How long it took. Left out if that is not known: the server was restarted meanwhile, or the task has changed its node."`
	By       string    `json:"by,omitempty" doc:"Its receiver: scheme and host of a webhook (its path may be a secret), the name of a stream or channel, the name of the token that reserved the task, otherwise the node that made the attempt or whose receiver had the task. At most 128 bytes. Left out if it is not known."`
	Outcome  string    `json:"outcome" enum:"failed,lease_expired,buried,process_ended,delivered" doc:"failed: it failed, or was released; lease_expired: it was not settled within its lease; buried: its receiver gave the task up; process_ended: the process ended during it, which is known in topics with count_crashes; delivered: the last one of a finished task."`
	Error    string    `json:"error,omitempty" doc:"Why, in at most 256 bytes."`
}

// spooled is the durability of a task in the spool.
const spooled = "spooled"

// payload is any JSON in an answer.
type payload json.RawMessage

// Schema describes any JSON to huma.
func (payload) Schema(huma.Registry) *huma.Schema { return &huma.Schema{} }

// MarshalJSON writes the payload as it was given.
func (p payload) MarshalJSON() ([]byte, error) { return p, nil }

// TaskPage is a page of a list.
type TaskPage struct {
	Tasks      []Task `json:"tasks" nullable:"false"`
	NextCursor string `json:"next_cursor,omitempty" doc:"For the page after this one. Left out at the end."`
}

// instantLayout is RFC 3339 with milliseconds.
const instantLayout = "2006-01-02T15:04:05.000Z07:00"

func formatInstant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(instantLayout)
}

func wireAttempt(a *tasks.Attempt) Attempt {
	w := Attempt{Number: a.Number, At: formatInstant(a.Ended), By: a.By, Outcome: string(a.Outcome), Error: a.Error}
	if a.Took > 0 {
		w.Duration = (*duration)(&a.Took)
	}
	return w
}

// isJSON reports whether data is a single JSON value that an answer may hold.
func isJSON(data []byte) bool {
	s := scan(data)
	s.skip()
	s.end()
	return s.err == nil
}

func wirePage(p tasks.Page, all bool) TaskPage {
	w := TaskPage{Tasks: make([]Task, len(p.Tasks)), NextCursor: p.Cursor}
	for i := range p.Tasks {
		w.Tasks[i] = wireTask(&p.Tasks[i], all)
	}
	return w
}

// typeOf returns the type that describes a request's body in the OpenAPI document.
func typeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }
