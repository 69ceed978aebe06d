package httpapi

import (
	"crypto/tls"
	"net/http/httptest"
	"testing"
)

// What a token opens must not be cached, and over TLS a browser stays with TLS.
func TestHeadersOfAnswers(t *testing.T) {
	r := newRig(t)
	for path, want := range map[string]string{"/v1/tasks": "no-store", "/v1/tasks/none": "no-store", "/v1/none": "no-store", "/healthz": "no-store", "/docs": "no-store", "/openapi.json": "no-store", "/": "no-cache"} {
		a := r.do("GET", path, "")
		if got := a.header.Get("Cache-Control"); got != want || a.header.Get("Strict-Transport-Security") != "" {
			t.Errorf("%s has %q, %v", path, got, a.header)
		}
	}
	q := httptest.NewRequest("GET", "/v1/tasks", nil)
	q.TLS = &tls.ConnectionState{}
	w := httptest.NewRecorder()
	r.api.ServeHTTP(w, q)
	if got := w.Header().Get("Strict-Transport-Security"); got != "max-age=31536000" {
		t.Errorf("over TLS it has %q", got)
	}
	if servers := document(t, r)["servers"]; servers == nil {
		t.Error("the OpenAPI document names no server")
	}
}
