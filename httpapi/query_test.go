package httpapi

import (
	"regexp"
	"strings"
	"testing"
)

// A parameter that is empty or cannot be parsed is refused and named, by every operation: a filter
// that counted as not given would select everything.
func TestEveryQueryParameterHasAValue(t *testing.T) {
	r := newRig(t)
	r.want(r.do("PUT", "/v1/topics/t", `{}`), 200)
	r.want(r.do("POST", "/v1/tasks", `{"id":"t","topic":"t","delay":"1h"}`), 201)
	before := string(r.do("GET", "/v1/tasks/t", "").body) + r.do("GET", "/v1/topics/t", "").header.Get("ETag")
	inPath, found := regexp.MustCompile(`\{\w+\}`), 0
	for path, item := range document(t, r)["paths"].(map[string]any) {
		for method, op := range item.(map[string]any) {
			call := func(query string) answer {
				return r.do(strings.ToUpper(method), inPath.ReplaceAllString(path, "t")+"?"+query, "")
			}
			names := []string{"unknown"}
			parameters, _ := op.(map[string]any)["parameters"].([]any)
			for _, one := range parameters {
				if p := one.(map[string]any); p["in"] == "query" {
					names = append(names, p["name"].(string))
				}
			}
			found += len(names) - 1
			for _, name := range names {
				if name != "cursor" { // which narrows nothing
					r.refused(call(name+"="), 422, "invalid", name)
				}
				r.refused(call(name+"=&"+name+"="), 422, "invalid", name)
				for _, query := range []string{name, name + "&a=1", name + "=a;x=1", name + "=%zz", name + "=%", "a=1&" + name + ";x"} {
					r.refused(call(query), 400, "malformed", name)
				}
			}
			r.refused(call("%zz=1"), 400, "malformed", "%zz")
		}
	}
	if found < 60 {
		t.Errorf("%d parameters were tried", found)
	}
	if after := string(r.do("GET", "/v1/tasks/t", "").body) + r.do("GET", "/v1/topics/t", "").header.Get("ETag"); after != before {
		t.Errorf("the task and its topic were %s, and are %s", before, after)
	}
}

// A long name is cut where a problem repeats it.
func TestNamesOfUnreadableParametersAreCut(t *testing.T) {
	r := newRig(t)
	a := r.do("GET", "/v1/tasks?"+strings.Repeat("%C3%A9", 5000)+"=%zz", "")
	r.refused(a, 400, "malformed", strings.Repeat("é", 32)+"...")
}
