package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// Imported reports what has become of the lines of an import.
type Imported struct {
	Imported      int           `json:"imported" doc:"Tasks that were imported."`
	Present       int           `json:"present" doc:"Tasks that were there already, from an earlier import or as the source of the export."`
	Topics        int           `json:"topics" doc:"Topics whose settings were stored."`
	TopicsPresent int           `json:"topics_present" doc:"Topics that have settings already, which were left as they are."`
	Errors        []ImportError `json:"errors" nullable:"false" doc:"The lines that were not imported, in their order."`
}

// ImportError reports why a line was not imported.
type ImportError struct {
	Line    int      `json:"line" doc:"Its number in the body, from 1."`
	ID      string   `json:"id,omitempty" doc:"The id of its task, or the name of its topic, unless that is the fault."`
	Problem *Problem `json:"problem"`
}

// importInput says what an import may replace.
type importInput struct {
	request
	ReplaceTopics bool `query:"replace_topics" doc:"true: settings of topics that exist are replaced."`
}

// An importing is a body on its way to the scheduler.
type importing struct {
	tasks  []tasks.Exported
	topics []tasks.ExportedTopic
	lines  []int // of the tasks
	of     []int // lines of the topics

	lastTopic string // see scanner
	answer    Imported
}

// importAll answers POST /v1/import.
func (s *Server) importAll(ctx context.Context, in *importInput) (*reply[Imported], error) {
	if media, err := mediaType(in.gin, mediaNDJSON); err != nil || media != mediaNDJSON {
		return nil, wrongMedia.with("send " + mediaNDJSON)
	}
	data, err := readBody(in.gin)
	if err != nil {
		return nil, err
	}
	m := &importing{answer: Imported{Errors: []ImportError{}}}
	if err := m.read(data); err != nil {
		return nil, err
	}
	for i := range m.topics {
		t := &m.topics[i]
		switch err := s.scheduler.ImportTopic(ctx, *t, in.ReplaceTopics); {
		case err == nil:
			m.answer.Topics++
		case errors.Is(err, tasks.ErrExists):
			m.answer.TopicsPresent++
		default:
			if err := m.refuse(m.of[i], t.Name, err); err != nil {
				return nil, err
			}
		}
	}
	if len(m.tasks) > 0 {
		results, err := s.scheduler.Import(ctx, m.tasks)
		if err != nil {
			return nil, err
		}
		for i, r := range results {
			switch {
			case r.Err == nil && r.Repeated:
				m.answer.Present++
			case r.Err == nil:
				m.answer.Imported++
			default:
				if err := m.refuse(m.lines[i], m.tasks[i].ID, r.Err); err != nil {
					return nil, err
				}
			}
		}
	}
	if p := m.outage(); p != nil {
		return nil, p
	}
	if err := answerOf(in.gin).take(int64(len(m.answer.Errors)) * refusalSize); err != nil {
		return nil, err
	}
	slices.SortFunc(m.answer.Errors, func(a, b ImportError) int { return cmp.Compare(a.Line, b.Line) })
	s.log.Debug("imported", "request_id", in.gin.Writer.Header().Get(requestIDHeader), "token", tokenName(in.gin),
		"tasks", m.answer.Imported, "present", m.answer.Present, "topics", m.answer.Topics, "failed", len(m.answer.Errors))
	return &reply[Imported]{m.answer}, nil
}

// refuse notes why a line was not imported. It returns an error that is no fault of the line.
func (m *importing) refuse(line int, id string, err error) error {
	p := problemOf(err)
	if p == nil {
		return fmt.Errorf("line %d of an import: %w", line, err)
	}
	m.answer.Errors = append(m.answer.Errors, ImportError{line, plainID(id), p})
	return nil
}

// outage returns the problem of the whole import if no line was imported, for one reason that will
// pass.
func (m *importing) outage() *Problem {
	a := &m.answer
	if len(a.Errors) == 0 || a.Imported+a.Present+a.Topics+a.TopicsPresent > 0 {
		return nil
	}
	first := a.Errors[0].Problem
	for _, e := range a.Errors {
		if e.Problem.retryAfter == 0 || e.Problem.Type != first.Type {
			return nil
		}
	}
	return first
}

// read takes the lines apart. Empty lines do not count.
func (m *importing) read(data []byte) error {
	number := 0
	const shortest = 200 // bytes of a line, about
	m.tasks, m.lines = make([]tasks.Exported, 0, min(len(data)/shortest+1, tasks.MaxBatch)), make([]int, 0, min(len(data)/shortest+1, tasks.MaxBatch))
	var x exportedLine
	for line := range bytes.Lines(data) {
		number++
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		s := scan(line)
		s.lastTopic = m.lastTopic
		x = exportedLine{}
		x.read(s)
		m.lastTopic = s.lastTopic
		if s.end(); s.err != nil {
			return malformed.with(fmt.Sprintf("line %d is %s", number, s.err))
		}
		if x.kind == lineHead && x.version != exportVersion && len(s.faults) == 0 {
			return invalidField("version", "must be "+strconv.Itoa(exportVersion)+", the only one that this server knows")
		}
		if len(s.faults) > 0 {
			if len(m.answer.Errors) >= explained {
				s.faults = s.faults[:1]
			}
			m.answer.Errors = append(m.answer.Errors, ImportError{number, plainID(x.task.ID), invalidFields(s.faults)})
			x.kind = "" // it is not imported
		}
		switch x.kind {
		case lineTopic:
			m.topics, m.of = append(m.topics, tasks.ExportedTopic{Name: x.task.Topic, Settings: x.settings}), append(m.of, number)
		case lineTask, lineDead, lineFinished:
			m.tasks, m.lines = append(m.tasks, x.task), append(m.lines, number)
		}
		// A refusal takes more memory than a short line, so it counts as the others do.
		if len(m.tasks)+len(m.topics)+len(m.answer.Errors) > tasks.MaxBatch {
			return invalidField("body", fmt.Sprintf("must hold at most %d lines that are not blank", tasks.MaxBatch))
		}
	}
	return nil
}

// An exportedLine is a line of an export.
type exportedLine struct {
	kind     string
	version  int
	task     tasks.Exported // its Topic is also that of a topic
	settings tasks.TopicSettings
}

// read reads a line.
func (x *exportedLine) read(s *scanner) {
	t := &x.task
	t.State = tasks.Pending
	seen, to := 0, ""
	for key := range s.object("") {
		name := string(key)
		switch name {
		case "type":
			x.readKind(s)
		case "version":
			x.version = s.integer(name, 1, 1<<30)
		case "topic":
			t.Topic = s.topic()
		case "settings":
			s.settings(&x.settings)
		case "id":
			t.ID = s.str(name)
		case "due_at":
			t.Due = s.instant(name)
			seen |= 1
		case "next_at":
			t.Next = s.instant(name)
			seen |= 2
		case "created_at":
			t.Created = s.instant(name)
			seen |= 4
		case "held_at":
			t.HeldAt = s.instant(name)
		case "died_at":
			t.Died = s.instant(name)
			seen |= 2
		case "finished_at":
			t.Finished = s.instant(name)
			seen |= 2
		case "reason":
			t.Reason = tasks.Reason(s.str(name))
		case "outcome":
			t.Outcome = tasks.Outcome(s.str(name))
		case "attempt":
			t.Attempt = s.integer(name, 0, 1<<32-1)
		case "revision":
			t.Revision = int64(s.integer(name, 1, 1<<32-1))
		case "fingerprint":
			t.Fingerprint = s.hex(name)
			seen |= 8
		case "stamp":
			t.Stamp = s.hex(name)
		case "group":
			t.Group = s.group()
		case "max_lateness":
			t.MaxLateness = s.span(name, time.Millisecond, tasks.MaxAhead)
		case "last_error":
			t.LastError = s.str(name)
		case "headers":
			t.Headers = s.headers()
		case "attempts":
			x.readAttempts(s)
		case "delivery":
			t.Target = s.target()
		case "delivers_to":
			to = s.str(name)
		case "payload":
			t.Payload = s.raw()
		case "payload_base64":
			t.Payload = s.base64(name)
		case "exported_at", "cursor", "begins", "topics", "tasks", "dead", "finished", "unreadable":
			s.skip() // of the first line and of the last ones
		default:
			s.unknown(key)
		}
	}
	if to != "" && t.Target == nil {
		t.Target = &tasks.Target{}
	}
	if t.Target != nil {
		t.Target.Receiver = to
	}
	x.check(s, seen)
}

// readKind reads the type of a line.
func (x *exportedLine) readKind(s *scanner) {
	switch x.kind = s.str("type"); x.kind {
	case lineDead:
		x.task.State = tasks.Dead
	case lineFinished:
		x.task.State = tasks.Finished
	case lineHead, lineTopic, lineTask, lineNext, lineEnd:
	default:
		s.fault("type", "must be lapse_export, topic, task, dead, finished, next or end")
	}
}

// check refuses a task that lacks a field without which it would be another one.
func (x *exportedLine) check(s *scanner, seen int) {
	if s.err != nil || len(s.faults) > 0 {
		return
	}
	if x.kind == lineTask && !x.task.HeldAt.IsZero() {
		x.task.State = tasks.Held
	}
	switch x.kind {
	case "":
		s.fault("type", "must be given")
	case lineTask, lineDead, lineFinished:
		end := map[string]string{lineTask: "next_at", lineDead: "died_at", lineFinished: "finished_at"}[x.kind]
		for i, field := range []string{"due_at", end, "created_at", "fingerprint"} {
			if seen&(1<<i) == 0 {
				s.fault(field, "must be given")
			}
		}
	}
}

// readAttempts reads the failed attempts of a task.
func (x *exportedLine) readAttempts(s *scanner) {
	for i := range s.array("attempts") {
		if i >= tasks.MaxAttempts {
			s.fault("attempts", "must be at most "+strconv.Itoa(tasks.MaxAttempts))
			s.skip()
			continue
		}
		var a tasks.Attempt
		s.within = "attempts."
		for key := range s.object("") {
			switch name := string(key); name {
			case "attempt":
				a.Number = s.integer(name, 1, 1<<32-1)
			case "at":
				a.Ended = s.instant(name)
			case "duration":
				a.Took = s.duration(name)
			case "by":
				a.By = s.str(name)
			case "outcome":
				a.Outcome = tasks.AttemptOutcome(s.str(name))
			case "error":
				a.Error = s.str(name)
			default:
				s.unknown(key)
			}
		}
		s.within = ""
		x.task.Attempts = append(x.task.Attempts, a)
	}
}

// hex reads 16 hexadecimal digits.
func (s *scanner) hex(field string) uint64 {
	const digits = 16
	text := s.str(field)
	v, err := strconv.ParseUint(text, 16, 64)
	if s.err == nil && (err != nil || len(text) != digits) {
		s.fault(field, "must be 16 hexadecimal digits")
	}
	return v
}

// base64 reads bytes.
func (s *scanner) base64(field string) []byte {
	raw, err := base64.StdEncoding.DecodeString(s.str(field))
	if err != nil {
		s.fault(field, "must be base64")
	}
	return raw
}
