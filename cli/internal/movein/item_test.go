package movein

import (
	"strings"
	"testing"

	"github.com/goccy/go-json"
)

func TestIDOf(t *testing.T) {
	for _, name := range []string{"a", "order:42", "0", "A.b_c@d-e", strings.Repeat("x", 128)} {
		if id := IDOf(name); id != name {
			t.Errorf("%q becomes %q", name, id)
		}
	}
	seen := map[string]string{}
	for _, name := range []string{"", ":a", "-", "a b", "a/b", "ä", "\xff", strings.Repeat("x", 129), "a\x00"} {
		id := IDOf(name)
		if !IsID(id) || !strings.HasPrefix(id, "sha256:") || seen[id] != "" {
			t.Errorf("%q becomes %q, as %q does", name, id, seen[id])
		}
		seen[id] = name
	}
	// The page docs/moving.md promises this form.
	if id := IDOf("a b"); id != "sha256:c8687a08aa5d6ed2044328fa6a697ab8e96dc34291e8c2034ae8c38e6fcc6d65" {
		t.Errorf("got %s", id)
	}
}

func TestPayloadOf(t *testing.T) {
	for body, want := range map[string][2]string{
		"":           {"", ""},
		`{"a": 1}`:   {`{"a": 1}`, ""},
		"7":          {"7", ""},
		"text":       {`"text"`, "text"},
		`say "<hi>"`: {`"say \"<hi>\""`, "text"},
		"a\nb\x01":   {`"a\nb\u0001"`, "text"},
		"\xff\x00":   {`"/wA="`, "base64"},
		"\"\xff\"":   {`"Iv8i"`, "base64"},
	} {
		payload, encoding := PayloadOf([]byte(body))
		if string(payload) != want[0] || encoding != want[1] {
			t.Errorf("%q becomes %s of the encoding %q", body, payload, encoding)
		}
	}
}

func FuzzPayloadOf(f *testing.F) {
	f.Add([]byte("text"))
	f.Add([]byte("\xff"))
	f.Add([]byte(`{"a":"\ud800"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		payload, encoding := PayloadOf(body)
		if len(payload) > 0 && !json.Valid(payload) {
			t.Errorf("%q becomes %q", body, payload)
		}
		var text string
		if encoding == "text" && (json.Unmarshal(payload, &text) != nil || text != string(body)) {
			t.Errorf("%q becomes %s, which is %q", body, payload, text)
		}
	})
}
