package httpapi

import (
	"strings"
	"testing"
)

// The routes that take If-Match, written down a second time, each with a body that it accepts.
var conditional = map[string]string{
	"PUT /v1/tasks/{id}":         `{"topic":"t","delay":"2h"}`,
	"PATCH /v1/tasks/{id}":       `{"delay":"2h"}`,
	"DELETE /v1/tasks/{id}":      "",
	"POST /v1/tasks/{id}/fire":   "",
	"POST /v1/tasks/{id}/hold":   "",
	"POST /v1/tasks/{id}/resume": "",
	"PUT /v1/topics/{topic}":     `{"weight":2}`,
	"PATCH /v1/topics/{topic}":   `{"weight":2}`,
	"DELETE /v1/topics/{topic}":  "",
}

// A change that names another revision changes nothing, whatever else its request asks for: each
// route is tried as it is, and with each of its switches.
func TestConditionsOfEveryRoute(t *testing.T) {
	r := newRig(t)
	r.want(r.do("PUT", "/v1/topics/t", `{}`), 200)
	r.want(r.do("POST", "/v1/tasks", `{"id":"t","topic":"t","delay":"1h"}`), 201)
	tagOf := func(path string) string { return r.do("GET", path, "").header.Get("ETag") }
	found := 0
	for path, item := range document(t, r)["paths"].(map[string]any) {
		for method, op := range item.(map[string]any) {
			conditions, switches := false, []string{""}
			parameters, _ := op.(map[string]any)["parameters"].([]any)
			for _, one := range parameters {
				p := one.(map[string]any)
				conditions = conditions || p["name"] == "If-Match"
				if schema, ok := p["schema"].(map[string]any); ok && p["in"] == "query" && schema["type"] == "boolean" {
					switches = append(switches, "?"+p["name"].(string)+"=true")
				}
			}
			name := strings.ToUpper(method) + " " + path
			body, known := conditional[name]
			if conditions != known {
				t.Errorf("%s takes If-Match: %v, and is written down: %v", name, conditions, known)
			}
			if !conditions {
				continue
			}
			found++
			thing, other := "/v1/tasks/t", `"99.`+strings.SplitN(tagOf("/v1/tasks/t"), ".", 2)[1]
			if strings.Contains(path, "{topic}") {
				thing, other = "/v1/topics/t", `"99"`
			}
			path := strings.NewReplacer("{id}", "t", "{topic}", "t").Replace(path)
			for _, with := range switches {
				before := tagOf(thing)
				r.refused(r.do(strings.ToUpper(method), path+with, body, "If-Match: "+other), 412, "precondition_failed", "")
				if after := tagOf(thing); after != before || after == "" {
					t.Errorf("%s%s was refused, and the ETag is %q after %q", name, with, after, before)
				}
			}
		}
	}
	if found != len(conditional) {
		t.Errorf("%d routes take If-Match, and %d are written down", found, len(conditional))
	}
}
