package httpapi

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/lapsehq/lapse/tasks"
)

// texts are seeds for everything that reads JSON.
var texts = []string{
	`{}`, `[]`, `null`, `""`, `0`, ` { "a" : [ 1 , 2 ] } `, `{"a":{"b":{}}}`, `-0.0e-10`, `1E+5`, `1e`, `-`, `.5`, `00`, `+1`,
	`"\u00e9"`, `"\ud83d\ude00"`, `"\ud83d"`, `"\ude00\ud83d"`, `"\u12"`, `"\q"`, `"\`, `"`, "\"\t\"", "\"\x7f\"", "\"\xff\"", "\x00", "", " ",
	`{"a"}`, `{"a":}`, `{"a":1,}`, `{,}`, `[,]`, `[1,]`, `[1 2]`, `{"a":1 "b":2}`, `{1:2}`, `tru`, `truex`, `nul`, `[[[[[[`, `}`, `]`,
	`{"id":"a","topic":"t","delay":"1d","payload":{"x":1e400},"headers":{"a":"b"},"max_lateness":1000,"group":"g"}`,
	`{"topic":"t","due_at":"2031-01-02T03:04:05.123456789012Z"}`, `{"topic":"t","topic":"u","\u0074opic":1,"what":[{"a":1}]}`,
	`[{"topic":"t"},{"topic":1},[],null]`, "{\"topic\":\"t\"}\n\n{\"topic\":\"u\",\"delay\":5}\r\n", "{}\n{", "[1]\n2\n",
	strings.Repeat("[", 300), strings.Repeat("[", 250) + strings.Repeat("]", 250), "\ufeff{}",
}

// FuzzJSON compares the grammar with encoding/json, which has proved itself. The
// differences are wanted: no invalid UTF-8, and less depth.
func FuzzJSON(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := scan(data)
		s.skip()
		s.end()
		want := json.Valid(data) && utf8.Valid(data)
		if got := s.err == nil; got != want && !(want && strings.Contains(s.err.Error(), "nested")) {
			t.Errorf("valid is %v (%v), want %v", got, s.err, want)
		}
		var fault *syntaxError
		if errors.As(s.err, &fault) && (fault.At < 0 || fault.At > len(data)) {
			t.Errorf("the fault is at byte %d of %d", fault.At, len(data))
		}
	})
}

// FuzzString compares the reading of strings with encoding/json.
func FuzzString(f *testing.F) {
	for _, text := range []string{"", "a", "é", `\n\t\"\/\\`, "\u2028", `\u0000`, `\ud83d\ude00`, `\ud83dx`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, inner string) {
		data := []byte(`"` + inner + `"`)
		s := scan(data)
		got := s.str("")
		s.end()
		var want string
		err := json.Unmarshal(data, &want)
		if s.err == nil && (err != nil || got != want) {
			t.Errorf("read %q, want %q (%v)", got, want, err)
		}
		if s.err != nil && err == nil && utf8.Valid(data) && !strings.Contains(want, "\ufffd") {
			t.Errorf("refused: %v", s.err)
		}
	})
}

// FuzzTask makes sure that what is accepted as a task is what encoding/json
// would read, and that nothing panics.
func FuzzTask(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := scan(data)
		var r tasks.Request
		s.task(&r)
		if err := s.done(); err != nil {
			if p := problemOf(err); p == nil || p.Status != 400 && p.Status != 422 {
				t.Errorf("refused with %v", err)
			}
			return
		}
		var want struct {
			ID      string            `json:"id"`
			Topic   string            `json:"topic"`
			Group   string            `json:"group"`
			Payload json.RawMessage   `json:"payload"`
			Headers map[string]string `json:"headers"`
		}
		if err := json.Unmarshal(data, &want); err != nil {
			t.Fatalf("accepted, but %v", err)
		}
		if r.ID != want.ID || r.Topic != want.Topic || r.Group != want.Group || string(r.Payload) != string(want.Payload) || len(r.Headers) != len(want.Headers) {
			t.Errorf("read %+v, want %+v", r, want)
		}
	})
}

// FuzzBatch checks that a batch has an answer for each of its tasks.
func FuzzBatch(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text), false)
		f.Add([]byte(text), true)
	}
	f.Fuzz(func(t *testing.T, data []byte, lines bool) {
		var b batch
		read := b.array
		if lines {
			read = b.lines
		}
		if err := read(data); err != nil {
			if problemOf(err) == nil {
				t.Errorf("refused with %v", err)
			}
			return
		}
		if len(b.requests)+len(b.errors) != b.size || len(b.index) != len(b.requests) {
			t.Errorf("%d tasks gave %d requests and %d errors", b.size, len(b.requests), len(b.errors))
		}
		a, err := b.answer(make([]tasks.Result, len(b.requests)))
		if err != nil || len(a.IDs) != b.size || len(a.Errors) != len(b.errors) {
			t.Errorf("answered %+v (%v)", a, err)
		}
		for i := 1; err == nil && i < len(a.Errors); i++ {
			if a.Errors[i-1].Index >= a.Errors[i].Index {
				t.Error("the errors are out of order")
			}
		}
	})
}

func FuzzInstant(f *testing.F) {
	for _, text := range []string{"2031-01-02T03:04:05Z", "2031-01-02T03:04:05.000000000001Z", "2031-01-02T03:04:05.1234+01:05", "2031-01-02T3:04:05Z", "2031-01-02T03:04:05,5Z", "2031-01-02T03:04:05+24:00", "2031-02-29T00:00:00Z", "0000-01-01T00:00:00Z", "2031-01-02t03:04:05z", "2031-01-02T03:04:60Z"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseInstant(text)
		if err != nil {
			return
		}
		plain, err := time.Parse(time.RFC3339Nano, text)
		if late := got.Sub(plain); err != nil || late < 0 || late > 1 {
			t.Errorf("%q is %v, want %v (%v)", text, got, plain, err)
		}
	})
}

func TestInstants(t *testing.T) {
	for text, want := range map[string]string{
		"2031-01-02T03:04:05Z":                   "2031-01-02T03:04:05Z",
		"2031-01-02T03:04:05.000000000001Z":      "2031-01-02T03:04:05.000000001Z",
		"2031-01-02T03:04:05.1234567890000Z":     "2031-01-02T03:04:05.123456789Z",
		"2031-01-02T03:04:05.1234+01:05":         "2031-01-02T01:59:05.1234Z",
		"2031-01-02T03:04:05.999999999999+00:00": "2031-01-02T03:04:06Z",
	} {
		got, err := parseInstant(text)
		if err != nil || got.UTC().Format(time.RFC3339Nano) != want {
			t.Errorf("%s is %v (%v), want %s", text, got.UTC().Format(time.RFC3339Nano), err, want)
		}
	}
	for _, text := range []string{"", "2031-01-02", "2031-01-02T3:04:05Z", "2031-01-02T03:04:05", "2031-01-02T03:04:05,5Z",
		"2031-01-02T03:04:05+24:00", "2031-01-02T03:04:05+01:60", "2031-02-29T00:00:00Z", "2031-01-02T03:04:60Z", "2031-01-02t03:04:05z", "2031-01-02 03:04:05Z"} {
		if got, err := parseInstant(text); err == nil {
			t.Errorf("%s is read as %v", text, got)
		}
	}
}
