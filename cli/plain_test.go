package cli

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/goccy/go-json"
)

// hostileText has characters that control a terminal: U+009B begins a command to it, and U+202E
// reverses the text that follows.
const hostileText = "a\u009b31mb\u202ec\u2066d\u200fe\u061cf\x7fg"

func TestPlain(t *testing.T) {
	if got := plain(hostileText + "\x1b\n\u2028h"); got != "a 31mbcdef g   h" {
		t.Errorf("it is %q", got)
	}
	if got := plainLines("a\u202e\nb\r"); got != "a\nb " {
		t.Errorf("it is %q", got)
	}
	if text := []byte(`{"a":"ü\u009b\"€"}`); string(plainJSON(text)) != string(text) {
		t.Errorf("%s has become %s", text, plainJSON(text))
	}
	text := []byte("{\"" + hostileText + "\":[\"\u009b\",\"\xff\"]}")
	if got := string(plainJSON(text)); got != `{"a\u009b31mb\u202ec\u2066d\u200fe\u061cf\u007fg":["\u009b","`+"\xff\"]}" {
		t.Errorf("it is %q", got)
	}
}

// Texts of callers and servers reach a terminal without anything that controls it. As JSON they
// keep their values.
func TestNothingCommandsTheTerminal(t *testing.T) {
	text, err := json.Marshal(hostileText)
	if err != nil {
		t.Fatal(err)
	}
	task := `{"id":"a","topic":"x","state":"dead","payload":` + string(text) + `,"last_error":` + string(text) + `,"attempts":[{"by":` + string(text) + `,"error":` + string(text) + `}],"group":` + string(text) + `}`
	s := canned(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/tasks":
			fmt.Fprintf(w, `{"tasks":[%s]}`, task)
		case "/v1/events":
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "event: dead\ndata: {\"kind\":\"dead\",\"id\":\"a\",\"error\":%s}\n\n", text)
		case "/v1/tasks/none":
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprintf(w, `{"type":"/problems/not_found","title":"gone","status":404,"detail":%s}`, text)
		default:
			fmt.Fprint(w, task)
		}
	})
	for _, args := range [][]string{{"get", "a"}, {"get", "a", "--json"}, {"list"}, {"list", "--json"}, {"events"}, {"events", "--json"},
		{"get", "none"}, {"get", "none", "--json"}} {
		_, out, errs := s.run(args...)
		all := out + errs
		if !strings.Contains(all, "31mb") {
			t.Errorf("%q does not show the text: %q", args, all)
		}
		if i := strings.IndexFunc(all, func(r rune) bool { return r >= 0x7f && r <= 0x9f || isBidiControl(r) }); i >= 0 {
			t.Errorf("%q prints %q", args, all)
		}
		if args[len(args)-1] == "--json" {
			first, _, _ := bytes.Cut([]byte(all), []byte("\n"))
			if !json.Valid(first) {
				t.Errorf("%q prints no JSON: %s", args, all)
			}
		}
	}
	var back struct{ Group string }
	_, out, _ := s.run("get", "a", "--json")
	if err := json.Unmarshal([]byte(out), &back); err != nil || back.Group != hostileText {
		t.Errorf("the value has become %q (%v)", back.Group, err)
	}
}
