package httpapi

import (
	"net/http"
	"strings"
	"testing"
)

// A name that a stranger's page was given to reach this machine is no origin of ours,
// although the browser takes it for one; for programs any name will do.
func TestNameOfAnotherHostInABrowser(t *testing.T) {
	r := newRig(t)
	_, port, _ := strings.Cut(strings.TrimPrefix(r.url, "http://"), ":")
	for _, c := range []struct {
		host    string
		browser bool
		status  int
	}{
		{"evil.example:" + port, true, 403},
		{"127.0.0.1.evil.example", true, 403},
		{"localhost:" + port, true, 200},
		{"lapse.localhost", true, 200},
		{"127.0.0.1:" + port, true, 200},
		{"[::1]:" + port, true, 200},
		{"evil.example", false, 200},
	} {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+"/v1/stats", nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Host = c.host
		if c.browser {
			q.Header.Set("Sec-Fetch-Site", "same-origin")
		}
		if a := r.send(q); a.status != c.status {
			t.Errorf("host %s, browser %v: answered %d, want %d", c.host, c.browser, a.status, c.status)
		}
	}
}
