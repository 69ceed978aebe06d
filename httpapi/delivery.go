package httpapi

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

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
	s.within = "delivery."
	rest := []byte("{")
	for key := range s.object("") {
		if string(key) == "kind" {
			t.Kind = tasks.Kind(s.str("kind"))
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
	if len(rest) > 1 {
		rest = append(rest, '}')
		t.Delivery = rest
	}
	s.within = ""
}
