package httpapi

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/tasks"
)

// Delivery is a way of delivery on the wire: its kind, and beside it the fields that
// the way itself defines.
type Delivery struct {
	Kind     string
	Settings json.RawMessage // an object, or empty
}

// MarshalJSON puts the kind in front of the way's own fields.
func (d Delivery) MarshalJSON() ([]byte, error) {
	// The alphabet of names needs no escapes.
	text := strconv.AppendQuote([]byte(`{"kind":`), d.Kind)
	rest, found := bytes.CutPrefix(bytes.TrimSpace(d.Settings), []byte("{"))
	if rest = bytes.TrimSpace(rest); !found || bytes.Equal(rest, []byte("}")) {
		return append(text, '}'), nil
	}
	return append(append(text, ','), rest...), nil
}

// Schema implements huma.SchemaProvider.
func (Delivery) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Type: huma.TypeObject,
		Properties: map[string]*huma.Schema{"kind": {
			Type: huma.TypeString,
			Description: "pull, the default; webhook, stream, pubsub or another way that the server has; handler: a function of the " +
				"program that embeds this server, which cannot be chosen where there is none.",
		}},
		AdditionalProperties: true,
		Description:          "The way of delivery, and the fields of that way: docs/delivery.md lists them.",
	}
}

// delivery reads a way of delivery; the way itself checks its fields.
func (s *scanner) delivery(t *tasks.TopicSettings) {
	if rest := s.way(func(name string) bool {
		if name == "kind" {
			t.Kind = tasks.Kind(s.str("kind"))
		}
		return name == "kind"
	}); rest != nil {
		t.Delivery = rest
	}
}

// way reads an object of a way of delivery, and returns the fields that own has not read; nil if
// there are none.
func (s *scanner) way(own func(name string) bool) json.RawMessage {
	s.within = "delivery."
	defer func() { s.within = "" }()
	rest := []byte("{")
	for key := range s.object("") {
		if own(string(key)) {
			s.within = "delivery."
			continue
		}
		value := s.raw()
		if s.err != nil {
			break
		}
		if len(rest) > 1 {
			rest = append(rest, ',')
		}
		name, err := json.Marshal(string(key))
		if err != nil {
			s.fault("", "must have names that are text")
			break
		}
		rest = append(append(append(rest, name...), ':'), value...)
	}
	if len(rest) == 1 {
		return nil
	}
	return append(rest, '}')
}

// TaskDelivery is what a task says of its own delivery, on the wire: fields of its topic's delivery
// that are others for this task, and its own retry.
type TaskDelivery struct {
	Kind     string
	Settings json.RawMessage // an object, or empty
	Retry    tasks.Retry     // without what is as in the topic
}

// MarshalJSON puts the kind in front of the way's own fields, and the retry behind them.
func (d TaskDelivery) MarshalJSON() ([]byte, error) {
	object := map[string]any{}
	if len(d.Settings) > 0 {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(d.Settings, &fields); err != nil {
			return nil, err
		}
		for name, value := range fields {
			object[name] = value
		}
	}
	if d.Kind != "" {
		object["kind"] = d.Kind
	}
	if d.Retry != (tasks.Retry{}) {
		retry := map[string]any{}
		if d.Retry.MaxAttempts != 0 {
			retry["max_attempts"] = d.Retry.MaxAttempts
		}
		for name, v := range map[string]time.Duration{"max_age": d.Retry.MaxAge, "min_backoff": d.Retry.MinBackoff, "max_backoff": d.Retry.MaxBackoff} {
			if v != 0 {
				retry[name] = duration(v)
			}
		}
		object["retry"] = retry
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	err := e.Encode(object)
	return text.Bytes(), err
}

// Schema implements huma.SchemaProvider.
func (TaskDelivery) Schema(r huma.Registry) *huma.Schema {
	return &huma.Schema{
		Type: huma.TypeObject,
		Properties: map[string]*huma.Schema{
			"kind":  {Type: huma.TypeString, Description: "That of the topic. It need not be given."},
			"retry": r.Schema(typeOf[NewRetry](), true, "NewRetry"),
		},
		AdditionalProperties: true,
		Description: "What is other for this task than for its topic, which must have task_delivery. webhook: url, headers, timeout; " +
			"stream: stream; pubsub: channel; and retry, of which the topic has what is left out. The topic keeps all the rest, " +
			"and says what tasks may choose. At most 4 KiB.",
	}
}

// target reads what a task says of its own delivery. null says nothing.
func (s *scanner) target() *tasks.Target {
	t := &tasks.Target{}
	if s.err == nil && s.peek() == 'n' {
		if value := s.raw(); s.err == nil && string(value) != "null" {
			s.fault("delivery", "must be an object")
		}
		return t
	}
	t.Settings = s.way(func(name string) bool {
		switch name {
		case "kind":
			t.Kind = tasks.Kind(s.str("kind"))
		case "retry":
			s.retry(&t.Retry, "delivery.")
		default:
			return false
		}
		return true
	})
	return t
}

// Receiving says where a task goes that has a delivery of its own.
type Receiving struct {
	Delivery      *TaskDelivery `json:"delivery,omitempty" doc:"What the task says of its own delivery. A caller that may not see the settings of topics (scope read) sees only its kind and retry."`
	DeliversTo    string        `json:"delivers_to,omitempty" doc:"Of a task with a receiver of its own: scheme and host of the URL (its path may be a secret), or the name of the stream or channel."`
	Undeliverable string        `json:"undeliverable,omitempty" doc:"Why such a task waits although it is due: its topic has another kind by now, or no task_delivery. It goes on when the settings of the topic change."`
}

// seesAll reports whether a caller may see where tasks go, with paths and headers.
func seesAll(c *gin.Context) bool { return isOpenTo(c, edge.MayRead) }

// wireTarget adds a target to a task. A caller that may not see the settings of topics does not see
// those of the task either.
func (w *Task) wireTarget(t *tasks.Target, all bool) {
	if t == nil {
		return
	}
	w.Delivery = &TaskDelivery{Kind: string(t.Kind), Retry: t.Retry}
	if all {
		w.Delivery.Settings = t.Settings
	}
	w.DeliversTo, w.Undeliverable = t.Receiver, t.Undeliverable
}
