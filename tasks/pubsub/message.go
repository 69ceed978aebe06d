package pubsub

import (
	"encoding/json"

	"github.com/lapsehq/lapse/tasks/task"
)

// keyHeader is the header that names the key which seems to have expired.
const keyHeader = "key"

func payload(d *task.Delivery) any { return d.Payload }

// key is what Redis publishes of a key that has expired: its name.
func key(d *task.Delivery) any {
	if name := d.Headers[keyHeader]; name != "" {
		return name
	}
	return d.ID
}

// An Envelope is what the format "envelope" publishes, as JSON.
type Envelope struct {
	ID      string            `json:"id"`
	Topic   string            `json:"topic"`
	Due     int64             `json:"due"` // Unix milliseconds
	Attempt int               `json:"attempt"`
	Group   string            `json:"group,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	Payload json.RawMessage   `json:"payload,omitempty"`
	// Bytes is the payload if it is not JSON.
	Bytes []byte `json:"payload_base64,omitempty"`
}

func envelope(d *task.Delivery) any {
	e := Envelope{ID: d.ID, Topic: d.Topic, Due: d.Due.UnixMilli(), Attempt: d.Attempt, Group: d.Group, Headers: d.Headers}
	if json.Valid(d.Payload) {
		e.Payload = d.Payload
	} else {
		e.Bytes = d.Payload
	}
	text, _ := json.Marshal(e) // cannot fail: all of it is text, numbers, or has just been checked
	return text
}
