package httpapi

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The links of a topic are set, merged and taken away by name. An answer about one topic has them,
// a list does not: it would be 8 kB longer for each.
func TestLinksOfTopics(t *testing.T) {
	r := newRig(t)
	links := func(a answer) string {
		text, _ := json.Marshal(r.want(a, 200)["links"])
		return string(text)
	}
	for _, c := range [][3]string{
		{"PUT", `{"links":{"logs":"https://logs.example/{id}","shop":"http://shop.example/{group}"}}`, `{"logs":"https://logs.example/{id}","shop":"http://shop.example/{group}"}`},
		{"PATCH", `{"links":{"shop":null,"traces":"https://traces.example/{topic}"}}`, `{"logs":"https://logs.example/{id}","traces":"https://traces.example/{topic}"}`},
		{"PATCH", `{"lease":"1m"}`, `{"logs":"https://logs.example/{id}","traces":"https://traces.example/{topic}"}`},
	} {
		if diff := cmp.Diff(c[2], links(r.do(c[0], "/v1/topics/w", c[1]))); diff != "" {
			t.Errorf("%s %s:\n%s", c[0], c[1], diff)
		}
		if diff := cmp.Diff(c[2], links(r.do("GET", "/v1/topics/w", ""))); diff != "" {
			t.Errorf("after %s %s:\n%s", c[0], c[1], diff)
		}
	}
	list := r.want(r.do("GET", "/v1/topics", ""), 200)["topics"].([]any)
	if list[0].(map[string]any)["links"] != nil {
		t.Errorf("the list has %v", list)
	}
	for body, field := range map[string]string{
		`{"links":{"logs":"javascript:alert(1)"}}`: "links.logs", `{"links":{"logs":5}}`: "links.logs", `{"links":5}`: "links", `{"links":{"a b":"https://x.example/"}}`: "links",
		`{"links":{"logs":"https://{id}/"}}`: "links.logs", `{"links":{"1":"https://x/","2":"https://x/","3":"https://x/","4":"https://x/","5":"https://x/","6":"https://x/","7":"https://x/","8":"https://x/"}}`: "links",
	} {
		r.refused(r.do("PATCH", "/v1/topics/w", body), 422, "invalid", field)
	}
	if got := links(r.do("PATCH", "/v1/topics/w", `{"links":null}`)); got != "null" {
		t.Errorf("taken away, they are %s", got)
	}
}
