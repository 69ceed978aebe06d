package rediskeys

import (
	"encoding/base64"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/cli/internal/movein"
	"github.com/lapsehq/lapse/client"
)

// keyHeader names the key to a topic whose deliveries look like Redis' own events.
const keyHeader = "key"

// requestOf makes the task of a key.
func requestOf(topic string, d *deadline) client.Request {
	r := client.Request{ID: movein.IDOf(d.key), Topic: topic, Due: d.time(), Payload: payloadOf(d)}
	if r.ID != d.key && utf8.ValidString(d.key) && !strings.ContainsFunc(d.key, unicode.IsControl) {
		r.Headers = map[string]string{keyHeader: d.key}
	}
	return r
}

// payloadOf writes {"key":...,"value":...}. What is no UTF-8 has the suffix _base64.
func payloadOf(d *deadline) []byte {
	b := appendText(append(make([]byte, 0, len(d.key)+16), '{'), "key", d.key)
	if d.value != nil {
		b = appendText(append(b, ','), "value", *d.value)
	}
	return append(b, '}')
}

func appendText(b []byte, name, text string) []byte {
	if !utf8.ValidString(text) {
		name, text = name+"_base64", base64.StdEncoding.EncodeToString([]byte(text))
	}
	b = append(append(append(b, '"'), name...), `":`...)
	return append(b, movein.TextJSON(text)...)
}

// keyOf is the key that a task stands for, "" if that cannot be read.
func keyOf(t *client.Task) string {
	var p struct {
		Key    string `json:"key"`
		Base64 []byte `json:"key_base64"`
	}
	if json.Unmarshal(t.Payload, &p) != nil {
		return ""
	}
	if p.Base64 != nil {
		return string(p.Base64)
	}
	return p.Key
}
