package httpapi

import (
	"fmt"
	"slices"
	"testing"

	"github.com/lapsehq/lapse/tasks"
)

// Requests are timed by method, route and class of status. A caller cannot make further routes or
// methods of them.
func TestRequestsAreTimed(t *testing.T) {
	r := newRig(t)
	r.want(r.do("POST", "/v1/tasks", `{"id":"a","topic":"t","delay":"1h"}`), 201)
	r.want(r.do("POST", "/v1/tasks", `{"topic":"not a name"}`), 422)
	for range 3 {
		r.want(r.do("GET", "/v1/tasks/a", ""), 200)
	}
	r.do("HEAD", "/v1/tasks/a", "")
	r.want(r.do("GET", "/v1/tasks/b", ""), 404)
	r.do("GET", "/v1/nothing", "")
	r.do("BREW", "/v1/tasks", "")
	var got []string
	r.api.EachRoute(func(method, route, status string, took tasks.Latency) {
		if took.Sum <= 0 {
			t.Errorf("%s %s %s took %v", method, route, status, took.Sum)
		}
		got = append(got, fmt.Sprintf("%s %s %s: %d", method, route, status, took.Total()))
	})
	slices.Sort(got)
	want := []string{
		"GET /v1/tasks/{id} 2xx: 4", "GET /v1/tasks/{id} 4xx: 1", "POST /v1/tasks 2xx: 1", "POST /v1/tasks 4xx: 1",
		"other none 4xx: 2",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q; want %q", got, want)
	}
}
