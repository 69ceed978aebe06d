package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

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
	if n := m.answer.Imported + m.answer.Topics; n > 0 {
		s.record(in.gin, tasks.AuditEntry{Verb: "import", Count: int64(n), Partial: true}, nil)
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
