package httpapi

import (
	"context"
	"strconv"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

// The lines of an export, each a JSON object with a type. docs/export.md explains them, and
// testdata/export-1.ndjson has each of them, for ever: a server reads the exports of all versions
// before it. Another form of a line needs another number in the first one.
const (
	exportVersion = 1

	lineHead     = "lapse_export" // the first
	lineTopic    = "topic"
	lineTask     = "task"
	lineDead     = "dead"
	lineFinished = "finished"
	lineNext     = "next" // the last of a page: where the next one begins
	lineEnd      = "end"  // the last of all
)

// exportInput selects a page of an export.
type exportInput struct {
	request
	Topic  []string `query:"topic,explode" maxItems:"100" doc:"Only these topics: names, or beginnings of names and an asterisk. Default: all."`
	Cursor string   `query:"cursor" maxLength:"65536" doc:"The cursor of the last line of the page before. Without it the export begins."`
}

// exportReply is a page of an export.
type exportReply struct {
	ContentType string `header:"Content-Type"`
	Body        []byte
}

// export answers GET /v1/export.
func (s *Server) export(ctx context.Context, in *exportInput) (*exportReply, error) {
	if err := s.beginPage(ctx, "too many exports and lists are asked for at once"); err != nil {
		return nil, err
	}
	defer s.endPage()
	page, err := s.scheduler.Export(ctx, tasks.ExportQuery{Topics: in.Topic, Cursor: in.Cursor})
	if err != nil {
		return nil, err
	}
	size := int64(taskAnswer)
	for i := range page.Topics {
		size += sizeOfTopic(&page.Topics[i])
	}
	for i := range page.Tasks {
		size += sizeOf(&page.Tasks[i].Task)
	}
	if err := answerOf(in.gin).takeList(size); err != nil {
		return nil, err
	}
	text := make([]byte, 0, size)
	if in.Cursor == "" {
		text = append(text, `{"type":"`+lineHead+`","version":`...)
		text = strconv.AppendInt(text, exportVersion, 10)
		text = append(appendTime(append(text, ','), "exported_at", time.Now()), "}\n"...)
	}
	for i := range page.Topics {
		if text, err = appendTopic(text, &page.Topics[i]); err != nil {
			return nil, err
		}
	}
	for i := range page.Tasks {
		text = appendTask(text, &page.Tasks[i])
	}
	if page.Cursor != "" {
		text = appendText(append(text, `{"type":"`+lineNext+`",`...), "cursor", page.Cursor)
		if page.Begins {
			text = append(text, `,"begins":true`...)
		}
		text = append(text, "}\n"...)
	} else {
		text = appendEnd(text, &page.Counts)
	}
	return &exportReply{mediaNDJSON, text}, nil
}

// sizeOfTopic returns about how many bytes the line of a topic has.
func sizeOfTopic(t *tasks.ExportedTopic) int64 {
	return int64(500 + len(t.Name) + len(t.Settings.Delivery) + len(t.Settings.OnDead.Topic))
}

// appendEnd appends the line that ends an export.
func appendEnd(text []byte, c *tasks.ExportCounts) []byte {
	text = append(text, `{"type":"`+lineEnd+`","topics":`...)
	text = strconv.AppendInt(text, int64(c.Topics), 10)
	text = strconv.AppendInt(append(text, `,"tasks":`...), int64(c.Pending), 10)
	text = strconv.AppendInt(append(text, `,"dead":`...), int64(c.Dead), 10)
	text = strconv.AppendInt(append(text, `,"finished":`...), int64(c.Finished), 10)
	text = strconv.AppendInt(append(text, `,"unreadable":`...), int64(c.Unreadable), 10)
	return append(text, "}\n"...)
}

// exportedSettings are settings of a topic in an export, in the form of a request.
type exportedSettings struct {
	Delivery      *Delivery `json:"delivery,omitempty"`
	Retry         Retry     `json:"retry"`
	Lease         duration  `json:"lease"`
	Concurrency   int       `json:"concurrency,omitempty"`
	Rate          *Rate     `json:"rate,omitempty"`
	Weight        int       `json:"weight"`
	Spread        duration  `json:"spread"`
	Misfire       string    `json:"misfire"`
	CountCrashes  bool      `json:"count_crashes"`
	Paused        bool      `json:"paused"`
	DeadRetention duration  `json:"dead_retention"`
	KeepFinished  duration  `json:"keep_finished"`
	PerGroup      int       `json:"concurrency_per_group,omitempty"`
	OnDead        *OnDead   `json:"on_dead,omitempty"`
	TaskDelivery  bool      `json:"task_delivery,omitempty"`

	Links map[string]string `json:"links,omitempty"`
}

// appendTopic appends the line of a topic.
func appendTopic(text []byte, t *tasks.ExportedTopic) ([]byte, error) {
	w := wireTopic(&task.Topic{Settings: t.Settings})
	x := exportedSettings{nil, w.Retry, w.Lease, w.Concurrency, w.Rate, w.Weight, w.Spread, w.Misfire, w.CountCrashes,
		w.Paused, w.DeadRetention, w.KeepFinished, w.PerGroup, w.OnDead, w.TaskDelivery, w.Links}
	if t.Settings.Kind != "" {
		x.Delivery = &w.Delivery
	}
	line, err := plainJSON(struct {
		Type     string           `json:"type"`
		Topic    string           `json:"topic"`
		Settings exportedSettings `json:"settings"`
	}{lineTopic, t.Name, x})
	return append(append(text, line...), '\n'), err
}

// plainJSON encodes a value that is not read as HTML.
func plainJSON(v any) ([]byte, error) { return json.MarshalWithOption(v, json.DisableHTMLEscape()) }
