package webhook

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

func TestSettings(t *testing.T) {
	w := newWay(t, Config{Allow: []string{"private"}, Secrets: map[string][]string{"shop": {newSecret}}})
	for text, want := range map[string]receiver{
		`{"url":"http://shop.example"}`: {timeout: 10 * time.Second},
		`{"url":"https://shop.example:8443/hooks?a=b","timeout":"100ms","mode":"sync","secret":"shop"}`: {timeout: 100 * time.Millisecond, secret: "shop"},
		`{"url":"HTTPS://Shop_1.example./","timeout":"10m","mode":"async"}`:                             {timeout: 10 * time.Minute, async: true},
		`{"url":"http://10.0.0.1","timeout":1500}`:                                                      {timeout: 1500 * time.Millisecond},
		`{"url":"http://[fd00::1]:80"}`:                                                                 {timeout: 10 * time.Second},
		`{"url":"http://xn--bcher-kva.example"}`:                                                        {timeout: 10 * time.Second},
	} {
		d, err := w.Deliverer("x", []byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if shown := d.(task.Receiver).Receiver(); strings.Contains(text, "hooks") && shown != "https://shop.example:8443" || strings.Contains(shown, "?") {
			t.Errorf("%s: it is called %s", text, shown)
		}
		if got := d.(*receiver); got.timeout != want.timeout || got.async != want.async || got.secret != want.secret || got.source != "/topics/x" {
			t.Errorf("%s: got %+v", text, got)
		}
	}
}

func TestBadSettings(t *testing.T) {
	w := newWay(t, Config{Secrets: map[string][]string{"shop": {newSecret}}})
	good := `"url":"http://shop.example"`
	for text, fields := range map[string]string{
		`{}`:                              "url",
		`{"url":7}`:                       "url",
		`{"url":null}`:                    "url",
		`{"url":""}`:                      "url",
		`{"url":"http://10.0.0.1"}`:       "url",
		`{` + good + `,"URL":"http://a"}`: "URL",
		`{` + good + `,` + good + `}`:     "url",
		`{"url":"http://` + strings.Repeat("a", 64) + `.example"}`:                   "url",
		`{"url":"http://` + strings.Repeat("a.", 127) + `example"}`:                  "url",
		`{"url":"http://shop.example/` + strings.Repeat("secret", 400) + `"}`:        "url",
		`{` + good + `,"timeout":"99ms"}`:                                            "timeout",
		`{` + good + `,"timeout":"601s"}`:                                            "timeout",
		`{` + good + `,"timeout":99}`:                                                "timeout",
		`{` + good + `,"timeout":1e3}`:                                               "timeout",
		`{` + good + `,"timeout":999999999999999999999}`:                             "timeout",
		`{` + good + `,"timeout":null}`:                                              "timeout",
		`{` + good + `,"timeout":"soon"}`:                                            "timeout",
		`{` + good + `,"timeout":"-1s"}`:                                             "timeout",
		`{` + good + `,"mode":"Async"}`:                                              "mode",
		`{` + good + `,"mode":true}`:                                                 "mode",
		`{` + good + `,"secret":"shop2"}`:                                            "secret",
		`{` + good + `,"secret":""}`:                                                 "secret",
		`{` + good + `,"secret":"` + newSecret + `+/="}`:                             "secret",
		`{` + good + `,"headers":{"authorization":"secret"}}`:                        "headers",
		`{"url":"ftp://secret","timeout":0,"mode":"secret","secret":"secret","a":1}`: "url timeout mode a secret",
	} {
		_, err := w.Deliverer("x", []byte(text))
		var invalid *tasks.InvalidError
		if !errors.As(err, &invalid) {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var got []string
		for _, f := range invalid.Fields {
			got = append(got, f.Field)
			if strings.Contains(f.Problem, "whsec_M") || strings.Contains(f.Problem, "ftp") {
				t.Errorf("%s: the problem repeats the value: %s", text, f.Problem)
			}
		}
		if want := strings.Fields(fields); !slices.Equal(got, want) {
			t.Errorf("%s: got faults of %v, want %v", text, got, want)
		}
	}
}

// A request may have any text as a name: a secret, a page of text, or a terminal's commands. Only a
// text that could be a name is repeated.
func TestUnknownNamesAreNotRepeated(t *testing.T) {
	w := newWay(t, Config{})
	for _, name := range []string{"", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", strings.Repeat("x", 9000), "\x1b[2J", "Bearer x"} {
		_, err := w.Deliverer("x", settingsOf(map[string]any{"url": "https://shop.example/", name: 1}))
		if err == nil || len(err.Error()) > 100 || name != "" && strings.Contains(err.Error(), name) {
			t.Errorf("%.40q: %.200v", name, err)
		}
	}
	if _, err := w.Deliverer("x", settingsOf(map[string]any{"url": "https://shop.example/", "time_out": 1})); err == nil || !strings.Contains(err.Error(), "time_out") {
		t.Errorf("%v", err)
	}
}
