package httpapi

import "testing"

// Pages of other sites get no answer of any route, but may link to the dashboard.
func TestGetsFromOtherSites(t *testing.T) {
	r := newRig(t)
	const cross, same = "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-origin"
	for _, c := range []struct {
		method, path string
		headers      []string
		status       int
	}{
		{"GET", "/v1/tasks", []string{cross, "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image"}, 403},
		{"GET", "/v1/stats", []string{"Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: cors"}, 403},
		{"GET", "/v1/stats", []string{"Origin: https://evil.example"}, 403},
		{"GET", "/v1/stats", []string{cross, "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}, 403},
		{"HEAD", "/v1/stats", []string{cross}, 403},
		{"GET", "/v1/events", []string{cross, "Accept: text/event-stream"}, 403},
		{"GET", "/healthz", []string{cross}, 403},
		{"GET", "/", []string{cross, "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}, 200},
		{"GET", "/", []string{cross, "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"}, 403},
		{"GET", "/", []string{cross, "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image"}, 403},
		{"POST", "/", []string{cross, "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}, 403},
		{"GET", "/v1/stats", []string{same, "Sec-Fetch-Mode: cors"}, 200},
		{"GET", "/v1/stats", []string{"Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate"}, 200},
		{"GET", "/v1/stats", []string{"Origin: " + r.url}, 200},
		{"GET", "/v1/stats", nil, 200},
	} {
		if a := r.do(c.method, c.path, "", c.headers...); a.status != c.status {
			t.Errorf("%s %s with %q is answered %d, want %d", c.method, c.path, c.headers, a.status, c.status)
		}
	}
	if n := r.api.Refusals()["other_site"]; n != 10 {
		t.Errorf("%d refusals are counted, want 10", n)
	}
}
