package httpapi

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

const (
	parentA = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	parentB = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
)

// The trace of a request goes to the receivers of its tasks, and is no part of what is asked for.
func TestTraceGoesToReceivers(t *testing.T) {
	r := newRig(t)
	const body = `{"id":"a","topic":"t","headers":{"tenant":"eu"}}`
	headers := func(id string) string {
		return fmt.Sprint(r.want(r.do("GET", "/v1/tasks/"+id, ""), 200)["headers"])
	}
	r.want(r.do("POST", "/v1/tasks", body, "traceparent: "+parentA, "tracestate: k=v"), 201)
	r.want(r.do("POST", "/v1/tasks", body, "traceparent: "+parentB), 200)
	r.want(r.do("POST", "/v1/tasks", body), 200)
	if got := headers("a"); got != "map[tenant:eu traceparent:"+parentA+" tracestate:k=v]" {
		t.Errorf("a has the headers %s", got)
	}
	got := r.reserve("t", `{"wait":"60s"}`, 1)[0].(map[string]any)["headers"]
	if fmt.Sprint(got) != "map[tenant:eu traceparent:"+parentA+" tracestate:k=v]" {
		t.Errorf("reserved, it has the headers %v", got)
	}
	r.want(r.do("PUT", "/v1/tasks/b", `{"topic":"t","delay":"1h"}`, "traceparent: "+parentA), 201)
	r.want(r.do("PUT", "/v1/tasks/b", `{"topic":"t","delay":"1h"}`, "traceparent: "+parentB), 200)
	r.want(r.do("PATCH", "/v1/tasks/b", `{"delay":"2h"}`, "traceparent: "+parentA), 200)
	if got := headers("b"); got != "map[traceparent:"+parentB+"]" {
		t.Errorf("b has the headers %s", got)
	}
	r.want(r.do("POST", "/v1/tasks/batch", `[{"id":"c","topic":"t","delay":"1h"},{"id":"d","topic":"t","delay":"1h","headers":{"traceparent":"my own"}}]`,
		"traceparent: "+parentA), 200)
	r.want(r.do("POST", "/v1/tasks/batch", `{"id":"e","topic":"t","delay":"1h"}`, "Content-Type: application/x-ndjson", "traceparent: "+parentB), 200)
	for id, want := range map[string]string{"c": parentA, "d": "my own", "e": parentB} {
		if got := headers(id); got != "map[traceparent:"+want+"]" {
			t.Errorf("%s has the headers %s", id, got)
		}
	}
}

// Whatever is wrong with a trace, the request is answered as if it had none.
func TestWrongTraceIsIgnored(t *testing.T) {
	r := newRig(t)
	for _, wrong := range []http.Header{
		{"Traceparent": {"nonsense"}},
		{"Traceparent": {strings.ToUpper(parentA)}},
		{"Traceparent": {parentA, parentB}},
		{"Traceparent": {strings.Repeat("0", 10_000)}},
		{"Tracestate": {"k=v"}},
	} {
		q, err := http.NewRequestWithContext(t.Context(), "POST", r.url+"/v1/tasks", strings.NewReader(`{"topic":"t","delay":"1h"}`))
		if err != nil {
			t.Fatal(err)
		}
		q.Header = wrong
		q.Header.Set("Content-Type", "application/json")
		if v := r.want(r.send(q), 201); v["headers"] != nil {
			t.Errorf("with %v it has the headers %v", wrong, v["headers"])
		}
	}
	v := r.want(r.do("POST", "/v1/tasks", `{"topic":"t","delay":"1h"}`, "traceparent: "+parentA, "tracestate: nonsense"), 201)
	if got := fmt.Sprint(v["headers"]); got != "map[traceparent:"+parentA+"]" {
		t.Errorf("with a wrong tracestate it has the headers %s", got)
	}
}

// A token's bounds and the trace go with the same request.
func TestTraceOfALimitedToken(t *testing.T) {
	r := limitedRig(t)
	trace := "traceparent: " + parentA
	v := r.want(r.do("POST", "/v1/tasks", `{"topic":"own.b","delay":"1h"}`, bearer("own"), trace), 201)
	if got := fmt.Sprint(v["headers"]); got != "map[traceparent:"+parentA+"]" {
		t.Errorf("it has the headers %s", got)
	}
	if a := r.do("POST", "/v1/tasks", `{"topic":"foreign","delay":"1h"}`, bearer("own"), trace); a.status != 403 {
		t.Errorf("status %d in a topic of others", a.status)
	}
}
