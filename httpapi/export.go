package httpapi

import (
	"context"
	"encoding/base64"
	"strconv"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/internal/timespan"
	"github.com/lapsehq/lapse/tasks"
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
}

// appendTopic appends the line of a topic.
func appendTopic(text []byte, t *tasks.ExportedTopic) ([]byte, error) {
	set := &t.Settings
	x := exportedSettings{
		Retry: Retry{set.Retry.MaxAttempts, duration(set.Retry.MaxAge), duration(set.Retry.MinBackoff), duration(set.Retry.MaxBackoff)},
		Lease: duration(set.Lease), Concurrency: set.Concurrency, Weight: set.Weight, Spread: duration(set.Spread),
		Misfire: string(set.Misfire), CountCrashes: set.CountCrashes, Paused: set.Paused,
		DeadRetention: duration(set.DeadRetention), KeepFinished: duration(set.KeepFinished),
		PerGroup: set.ConcurrencyPerGroup, TaskDelivery: set.TaskDelivery,
	}
	if set.OnDead != (tasks.OnDead{}) {
		x.OnDead = &OnDead{set.OnDead.Topic, duration(set.OnDead.Delay)}
	}
	if set.Kind != "" {
		x.Delivery = &Delivery{string(set.Kind), set.Delivery}
	}
	if set.Rate != (tasks.Rate{}) {
		x.Rate = &Rate{set.Rate.PerSecond, set.Rate.Burst}
	}
	line, err := plainJSON(struct {
		Type     string           `json:"type"`
		Topic    string           `json:"topic"`
		Settings exportedSettings `json:"settings"`
	}{lineTopic, t.Name, x})
	return append(append(text, line...), '\n'), err
}

// appendTask appends the line of a task. An export has millions of them.
func appendTask(text []byte, x *tasks.Exported) []byte {
	kind := lineTask
	switch x.State {
	case tasks.Dead:
		kind = lineDead
	case tasks.Finished:
		kind = lineFinished
	}
	text = append(append(text, `{"type":"`...), kind...)
	text = appendText(append(text, `",`...), "id", x.ID)
	text = appendText(append(text, ','), "topic", x.Topic)
	text = appendTime(append(text, ','), "due_at", x.Due)
	switch x.State {
	case tasks.Dead:
		text = appendTime(append(text, ','), "died_at", x.Died)
		text = appendOptional(text, "reason", string(x.Reason))
	case tasks.Finished:
		text = appendTime(append(text, ','), "finished_at", x.Finished)
		text = appendOptional(text, "outcome", string(x.Outcome))
	default:
		text = appendTime(append(text, ','), "next_at", x.Next)
	}
	if x.State == tasks.Held {
		text = appendTime(append(text, ','), "held_at", x.HeldAt)
	}
	text = appendCreated(text, x.Created)
	text = strconv.AppendInt(append(text, `,"attempt":`...), int64(x.Attempt), 10)
	text = strconv.AppendInt(append(text, `,"revision":`...), x.Revision, 10)
	text = appendHex(text, "fingerprint", x.Fingerprint)
	if x.Stamp != 0 {
		text = appendHex(text, "stamp", x.Stamp)
	}
	text = appendOptional(text, "group", x.Group)
	if x.MaxLateness > 0 {
		text = appendText(append(text, ','), "max_lateness", timespan.Format(x.MaxLateness))
	}
	text = appendOptional(text, "last_error", x.LastError)
	if len(x.Headers) > 0 {
		headers, _ := plainJSON(x.Headers) // of texts
		text = append(append(text, `,"headers":`...), headers...)
	}
	if len(x.Attempts) > 0 {
		attempts := make([]Attempt, len(x.Attempts))
		for i := range attempts {
			attempts[i] = wireAttempt(&x.Attempts[i])
		}
		all, _ := plainJSON(attempts) // of texts and numbers
		text = append(append(text, `,"attempts":`...), all...)
	}
	if t := x.Target; t != nil {
		own, _ := plainJSON(TaskDelivery{string(t.Kind), t.Settings, t.Retry}) // of JSON
		text = append(append(text, `,"delivery":`...), own...)
		text = appendOptional(text, "delivers_to", t.Receiver)
	}
	switch {
	case len(x.Payload) == 0:
	case fitsLine(x.Payload):
		text = append(append(text, `,"payload":`...), x.Payload...)
	default:
		text = append(text, `,"payload_base64":"`...)
		text = append(base64.StdEncoding.AppendEncode(text, x.Payload), '"')
	}
	return append(text, "}\n"...)
}

// fitsLine reports whether a payload can stand in a line as it is, and be read from there byte for
// byte: JSON in one line, without a space before or behind it.
func fitsLine(payload []byte) bool {
	for _, c := range payload {
		if c == '\n' || c == '\r' {
			return false
		}
	}
	first, last := payload[0], payload[len(payload)-1]
	return first != ' ' && first != '\t' && last != ' ' && last != '\t' && isJSON(payload)
}

// appendOptional appends a comma and a field, unless it is empty.
func appendOptional(text []byte, name, value string) []byte {
	if value == "" {
		return text
	}
	return appendText(append(text, ','), name, value)
}

// appendText appends a field. Nearly all values need no escapes.
func appendText(text []byte, name, value string) []byte {
	text = append(append(append(text, '"'), name...), `":`...)
	for i := range len(value) {
		if c := value[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, _ := plainJSON(value)
			return append(text, quoted...)
		}
	}
	return append(append(append(text, '"'), value...), '"')
}

func appendTime(text []byte, name string, at time.Time) []byte {
	text = append(append(append(text, '"'), name...), `":"`...)
	return append(at.UTC().AppendFormat(text, instantLayout), '"')
}

// appendCreated appends a comma and the time of creation, to the nanosecond: with its id it tells a
// task from all others. A task that was imported from elsewhere may have whole milliseconds.
func appendCreated(text []byte, at time.Time) []byte {
	layout := instantLayout
	if at.Nanosecond()%int(time.Millisecond) != 0 {
		layout = "2006-01-02T15:04:05.000000000Z"
	}
	return append(at.UTC().AppendFormat(append(text, `,"created_at":"`...), layout), '"')
}

// appendHex appends a comma and a field with 16 hexadecimal digits.
func appendHex(text []byte, name string, v uint64) []byte {
	text = append(append(append(text, `,"`...), name...), `":"`...)
	const digits = "0123456789abcdef"
	for shift := 60; shift >= 0; shift -= 4 {
		text = append(text, digits[v>>shift&15])
	}
	return append(text, '"')
}

// plainJSON encodes a value that is not read as HTML.
func plainJSON(v any) ([]byte, error) { return json.MarshalWithOption(v, json.DisableHTMLEscape()) }
