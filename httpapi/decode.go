package httpapi

import (
	"strconv"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// The types of requests only describe them for the OpenAPI document: requests are decoded straight
// into the scheduler's types. A test keeps the two in step.

// NewTask describes a task in a request.
type NewTask struct {
	ID          string            `json:"id,omitempty" pattern:"^[A-Za-z0-9][A-Za-z0-9._:@-]*$" maxLength:"128" doc:"Chosen by the caller, so that a request may be repeated. A UUIDv7 is made when it is left out."`
	Topic       string            `json:"topic" pattern:"^[A-Za-z0-9][A-Za-z0-9._:@-]*$" minLength:"1" maxLength:"128" doc:"The kind of task."`
	Delay       span              `json:"delay,omitempty" doc:"Time until the task is due, at most 10 years. Not together with due_at; neither means now."`
	DueAt       string            `json:"due_at,omitempty" format:"date-time" doc:"The deadline, at most 10 years ahead. One in the past is due at once."`
	Payload     any               `json:"payload,omitempty" doc:"Any JSON. The receiver gets the same bytes."`
	Headers     map[string]string `json:"headers,omitempty" maxProperties:"64" doc:"Handed to the receiver, at most 8 KiB together."`
	MaxLateness span              `json:"max_lateness,omitempty" doc:"Not delivered if later than that."`
	Group       string            `json:"group,omitempty" pattern:"^[A-Za-z0-9][A-Za-z0-9._:@-]*$" maxLength:"128" doc:"Names the tasks that belong together."`
	Delivery    *TaskDelivery     `json:"delivery,omitempty"`
}

// TaskBody describes a task that is put under the id in the path.
type TaskBody NewTask

// task reads a task in a request. The scheduler checks ranges and alphabets. Only what a Request
// cannot express is refused here.
func (s *scanner) task(r *tasks.Request) {
	var when deadline
	for key := range s.object("") {
		switch string(key) {
		case "id":
			r.ID = s.filled("id", "must not be empty; leave it out to get one from the server")
		case "topic":
			r.Topic = s.topic()
		case "delay":
			r.Delay = s.duration("delay")
			when.delay = true
		case "due_at":
			r.Due = s.instant("due_at")
			when.due = true
		case "payload":
			r.Payload = s.raw()
		case "headers":
			r.Headers = s.headers()
		case "max_lateness":
			r.MaxLateness = s.span("max_lateness", time.Millisecond, tasks.MaxAhead)
		case "group":
			r.Group = s.group()
		case "delivery":
			r.Target = s.target()
		default:
			s.unknown(key)
		}
	}
	when.check(s)
}

// group reads the group of a task, which has one or leaves the field out.
func (s *scanner) group() string {
	return s.filled("group", "must not be empty; leave it out for a task without a group")
}

// filled reads a string, of which an empty one is a fault.
func (s *scanner) filled(field, problem string) string {
	before := len(s.faults)
	text := s.str(field)
	if text == "" && s.err == nil && len(s.faults) == before {
		s.fault(field, problem)
	}
	return text
}

// topic reads the name of a topic. Most tasks of a batch have the same topic, so its name is
// allocated once.
func (s *scanner) topic() string {
	if s.err != nil {
		return ""
	}
	if s.peek() != '"' {
		s.wrong("topic", "a string")
		return ""
	}
	if text := s.text(); string(text) != s.lastTopic {
		s.lastTopic = string(text)
	}
	return s.lastTopic
}

// TaskChange describes the changes of a task in a request.
type TaskChange struct {
	Delay   span   `json:"delay,omitempty" doc:"The new deadline, from now. Not together with due_at."`
	DueAt   string `json:"due_at,omitempty" format:"date-time" doc:"The new deadline."`
	Payload any    `json:"payload,omitempty" doc:"The new payload."`

	Delivery *TaskDelivery `json:"delivery,omitempty" doc:"Replaces the delivery of its own that the task has; an empty one, or null, takes it away."`
}

// move reads a change to a task.
func (s *scanner) move(m *tasks.Move) {
	var when deadline
	for key := range s.object("") {
		switch string(key) {
		case "delay":
			d := s.duration("delay")
			m.Delay = &d
			when.delay = true
		case "due_at":
			m.Due = s.instant("due_at")
			when.due = true
		case "payload":
			m.Payload = s.raw()
		case "delivery":
			m.Target = s.target()
		default:
			s.unknown(key)
		}
	}
	when.check(s)
	if s.err == nil && len(s.faults) == 0 && !when.delay && !when.due && m.Payload == nil && m.Target == nil {
		s.fault("", "must have delay, due_at, payload or delivery")
	}
}

// deadline records in which forms a deadline was given.
type deadline struct{ delay, due bool }

func (d deadline) check(s *scanner) {
	if d.delay && d.due {
		s.fault("delay", "must not be given together with due_at")
		s.fault("due_at", "must not be given together with delay")
	}
}

// headers reads the headers of a task.
func (s *scanner) headers() map[string]string {
	var h map[string]string
	s.within = "headers."
	for key := range s.object("") {
		if h == nil {
			h = make(map[string]string, 4)
		}
		name := string(key)
		h[name] = s.str(shorten(name))
	}
	s.within = ""
	return h
}

// shorten cuts a name that a caller chose to the length that an answer may repeat.
func shorten(name string) string {
	if len(name) <= maxNamed {
		return name
	}
	return name[:maxNamed] + "..."
}

// strings reads an array of up to limit strings.
func (s *scanner) strings(field string, limit int) []string {
	list := make([]string, 0, 8)
	for i := range s.array(field) {
		switch {
		case i < limit && s.peek() == '"':
			list = append(list, string(s.text()))
		case i < limit:
			s.wrong(field+"."+strconv.Itoa(i), "a string")
		case i == limit:
			s.fault(field, "must hold at most "+strconv.Itoa(limit))
			s.skip()
		default:
			s.skip()
		}
	}
	if s.err == nil && len(s.faults) == 0 && len(list) == 0 {
		s.fault(field, "must not be empty")
	}
	return list
}
