//go:build browser

package browser

import "testing"

// The page of routes names them all, and each problem has a page.
func TestPages(t *testing.T) {
	url := serve(t).url
	p := open(t)
	p.load(url + "/docs")
	for _, route := range []string{"/v1/tasks/batch", "/v1/topics/{topic}/reserve", "/v1/receipts/ack", "/readyz"} {
		p.shows("main", route)
	}
	p.load(url + "/problems/outcome_unknown")
	p.shows("main", "unknown")
	p.content()
}
