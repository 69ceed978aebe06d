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
		browser string // by which header it shows
		status  int
	}{
		{"evil.example:" + port, "Sec-Fetch-Site", 403},
		{"evil.example:" + port, "Accept-Language", 403},
		{"127.0.0.1.evil.example", "Sec-Fetch-Site", 403},
		{"localhost:" + port, "Sec-Fetch-Site", 200},
		{"lapse.localhost", "Accept-Language", 200},
		{"127.0.0.1:" + port, "Sec-Fetch-Site", 200},
		{"[::1]:" + port, "Accept-Language", 200},
		{"evil.example", "", 200},
	} {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+"/v1/stats", nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Host = c.host
		if c.browser != "" {
			q.Header.Set(c.browser, map[string]string{"Sec-Fetch-Site": "same-origin"}[c.browser])
		}
		if a := r.send(q); a.status != c.status {
			t.Errorf("host %s, browser %q: answered %d, want %d", c.host, c.browser, a.status, c.status)
		}
	}
}
