package httpapi

import (
	"strconv"

	"github.com/lapsehq/lapse/tasks"
)

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
func (s *scanner) headers() map[string]string { return s.texts("headers.") }

// texts reads an object whose values are texts.
func (s *scanner) texts(within string) map[string]string {
	var h map[string]string
	s.within = within
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
