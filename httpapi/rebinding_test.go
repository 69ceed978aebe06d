package httpapi

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/edge"
)

// A name that another site's page was given to reach this machine is no origin of this server,
// although the browser takes it for one. Programs may use any name.
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

// Without tokens and TLS the name is always compared, wherever the connection comes in, and
// whatever the caller is.
func TestNameOfAnotherHostWithoutTokens(t *testing.T) {
	t.Parallel()
	tokens := []edge.Token{tokenOf("read", edge.ScopeRead)}
	for _, c := range []struct {
		host, local string
		hc          Config
		refused     bool
	}{
		{"evil.example", "10.0.0.7", Config{AllowedHosts: []string{}}, true},
		{"evil.example", "127.0.0.1", Config{AllowedHosts: []string{}}, true},
		{"evil.example:7480", "10.0.0.7", Config{AllowedHosts: []string{"lapse.example"}}, true},
		{"10.0.0.7.evil.example", "10.0.0.7", Config{AllowedHosts: []string{}}, true},
		{"lapse", "127.0.0.1", Config{AllowedHosts: []string{}}, true},
		{"xlocal", "127.0.0.1", Config{AllowedHosts: []string{}}, true},
		{"notexample.com", "10.0.0.7", Config{AllowedHosts: []string{"*.example.com"}}, true},

		{"Lapse.Example.:7480", "10.0.0.7", Config{AllowedHosts: []string{"lapse.eXample"}}, false},
		{"a.b.example.com", "127.0.0.1", Config{AllowedHosts: []string{"*.example.com"}}, false},
		{"evil.example", "10.0.0.7", Config{AllowedHosts: []string{"*"}}, false},
		{"lapse", "127.0.0.1", Config{AllowedHosts: []string{"lapse"}}, false},
		{"lapse:7480", "10.0.0.7", Config{AllowedHosts: []string{}}, false},
		{"lapse.jobs.svc", "10.0.0.7", Config{AllowedHosts: []string{}}, false},
		{"lapse.jobs.svc.cluster.local:7480", "10.0.0.7", Config{AllowedHosts: []string{}}, false},
		{"host.docker.internal", "10.0.0.7", Config{AllowedHosts: []string{}}, false},
		{"[fd00::7]:7480", "10.0.0.7", Config{AllowedHosts: []string{}}, false},
		{"10.0.0.7", "10.0.0.7", Config{AllowedHosts: []string{}}, false},
		{"LOCALHOST:7480", "127.0.0.1", Config{AllowedHosts: []string{}}, false},
		{"", "10.0.0.7", Config{AllowedHosts: []string{}}, false},
		{"evil.example", "10.0.0.7", Config{}, false},
		{"evil.example", "10.0.0.7", Config{AllowedHosts: []string{}, Callers: callersOf(tokens...)}, false},
	} {
		c.hc.Log = slog.New(slog.DiscardHandler)
		api, err := New(c.hc)
		if err != nil {
			t.Fatal(err)
		}
		q := httptest.NewRequest(http.MethodGet, "/healthz", nil)
		q.Host = c.host
		q = q.WithContext(context.WithValue(q.Context(), http.LocalAddrContextKey, net.Addr(&net.TCPAddr{IP: net.ParseIP(c.local), Port: 7480})))
		w := httptest.NewRecorder()
		api.ServeHTTP(w, q)
		if refused := w.Code == http.StatusForbidden; refused != c.refused || refused && !strings.Contains(w.Body.String(), "--allowed-host") {
			t.Errorf("%s at %s with %q: answered %d %s", c.host, c.local, c.hc.AllowedHosts, w.Code, w.Body)
		}
	}
	for _, wrong := range []string{"", "a*", "*a", "lapse:7480", "http://lapse", "a b"} {
		if _, err := New(Config{AllowedHosts: []string{wrong}}); err == nil {
			t.Errorf("%q is taken for a name", wrong)
		}
	}
}
