package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/tasks"
)

// mounted is a rig whose url ends with the prefix below which a program serves the server.
func mounted(t *testing.T, hc Config, mount func(*Server) http.Handler) *rig {
	r := newRigWith(t, tasks.Config{}, hc)
	mux := http.NewServeMux()
	mux.Handle("/lapse/", mount(r.api))
	mux.HandleFunc("/lapse", r.api.ServeHTTP)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := r.api.HTTPServer()
	server.Handler = mux
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		r.client.CloseIdleConnections()
		_ = server.Shutdown(context.Background())
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	r.url = "http://" + listener.Addr().String() + "/lapse"
	return r
}

// A program serves the server below a prefix, which it may strip itself. Whatever names a path of
// the server leads there.
func TestPrefix(t *testing.T) {
	for name, mount := range map[string]func(*Server) http.Handler{
		"as it comes": func(s *Server) http.Handler { return s },
		"stripped":    func(s *Server) http.Handler { return http.StripPrefix("/lapse", s) },
	} {
		t.Run(name, func(t *testing.T) {
			r := mounted(t, Config{Prefix: "/lapse"}, mount)
			root := strings.TrimSuffix(r.url, "/lapse")
			follow := func(path string) answer {
				t.Helper()
				if !strings.HasPrefix(path, "/lapse/") {
					t.Errorf("%q does not lead to the server", path)
				}
				q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, root+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				return r.send(q)
			}
			a := r.do("POST", "/v1/tasks", `{"id":"a","topic":"t","delay":"1h"}`)
			r.want(a, 201)
			r.want(follow(a.header.Get("Location")), 200)
			r.want(follow(r.do("PUT", "/v1/tasks/b", `{"topic":"t","delay":"1h"}`).header.Get("Location")), 200)

			v := r.want(r.do("POST", "/v1/tasks/batch", `[{"topic":""},{"id":"a","topic":"other"}]`), 200)
			refused := v["errors"].([]any)
			refused = append(refused, r.want(r.do("POST", "/v1/tasks/actions", `{"action":"fire","ids":["x"]}`), 200)["failed"].([]any)...)
			refused = append(refused, r.want(r.do("POST", "/v1/receipts/ack", `{"receipts":["x"]}`), 200)["errors"].([]any)...)
			refused = append(refused, r.want(r.do("POST", "/v1/import", `{"type":"x"}`, asLines), 200)["errors"].([]any)...)
			if len(refused) != 5 {
				t.Fatalf("%d entries are refused", len(refused))
			}
			var types []string
			for _, e := range refused {
				types = append(types, e.(map[string]any)["problem"].(map[string]any)["type"].(string))
			}
			for _, a := range []answer{
				r.do("GET", "/v1/none", ""), r.do("GET", "/v1/tasks/none", ""), r.do("POST", "/v1/tasks", "{"), r.do("GET", "/v1/tasks?limit=x", ""),
				r.do("GET", "/v1/stats", "", "Sec-Fetch-Site: cross-site"), r.do("DELETE", "/v1/stats", ""), r.do("GET", "/v1/stats", "", "Accept: text/html"),
			} {
				var p Problem
				if err := json.Unmarshal(a.body, &p); err != nil {
					t.Fatalf("%v in %s", err, a.body)
				}
				types = append(types, p.Type)
			}
			for _, typ := range types {
				if a := follow(typ); a.status != 200 || !strings.Contains(string(a.body), typ) {
					t.Errorf("%s is answered %d %s", typ, a.status, a.body)
				}
			}

			spec := r.want(r.do("GET", "/openapi.json", ""), 200)
			if got := spec["servers"].([]any)[0].(map[string]any)["url"]; got != "/lapse" {
				t.Errorf("the document has the server %v", got)
			}
			// A slash that is written %2F belongs to a name.
			if a := r.do("GET", "/v1/topics/a%2Fb", ""); !strings.Contains(string(a.body), "topic_not_found") {
				t.Errorf("a name with a slash is answered %d %s", a.status, a.body)
			}
			if a := r.do("GET", "x", ""); a.status != 404 || strings.Contains(string(a.body), "/lapse/") {
				t.Errorf("another path that begins so is answered %d %s", a.status, a.body)
			}
			for _, page := range []string{"/", "/docs", "/problems/invalid"} {
				a := follow("/lapse" + page)
				base, err := url.Parse("/lapse" + page)
				if err != nil || a.status != 200 {
					t.Fatalf("%s is answered %d, %v", page, a.status, err)
				}
				for _, link := range regexp.MustCompile(`(?:href|src)="([^"#]+)`).FindAllSubmatch(a.body, -1) {
					to, err := base.Parse(string(link[1]))
					if err != nil {
						t.Fatal(err)
					}
					if a := follow(to.String()); a.status != 200 {
						t.Errorf("on %s, %s is answered %d", page, link[1], a.status)
					}
				}
			}
		})
	}
}

// The page loads what it shows by relative URLs, so it must have a slash at its end.
func TestPrefixWithoutASlash(t *testing.T) {
	r := mounted(t, Config{Prefix: "/lapse"}, func(s *Server) http.Handler { return s })
	r.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	link := []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}
	for _, headers := range [][]string{nil, link} {
		if a := r.do("GET", "?topic=t", "", headers...); a.status != 307 || a.header.Get("Location") != "/lapse/?topic=t" {
			t.Errorf("answered %d, %v", a.status, a.header)
		}
	}
	if a := r.do("GET", "/", "", link...); a.status != 200 {
		t.Errorf("a link to the page is answered %d", a.status)
	}
}

// A browser sends the cookie of a session to the server alone, and not to the rest of the program.
func TestSessionBelowAPrefix(t *testing.T) {
	r := mounted(t, Config{Prefix: "/lapse", Callers: callersOf(tokenOf("admin", edge.ScopeAdmin))}, func(s *Server) http.Handler { return s })
	for _, method := range []string{"POST", "DELETE"} {
		body := map[string]string{"POST": `{"token":"secret-admin"}`}[method]
		c, err := http.ParseSetCookie(r.do(method, sessionPath, body).header.Get("Set-Cookie"))
		if err != nil || c.Path != "/lapse/" {
			t.Errorf("%s sets %s, %v", method, c, err)
		}
	}
	cookie, csrf := r.logIn("admin")
	r.want(r.do("POST", "/v1/topics/t/pause", "", cookie, csrf), 204)
	a := r.do("POST", "/v1/topics/t/pause", "", cookie)
	if a.status != 403 || !strings.Contains(string(a.body), `"/lapse/problems/csrf"`) {
		t.Errorf("answered %d %s", a.status, a.body)
	}
	if a := r.do("GET", "/docs", ""); a.status != 401 || !strings.Contains(fmt.Sprint(a.header["Www-Authenticate"]), "Basic") {
		t.Errorf("a page is answered %d, %v", a.status, a.header)
	}
}

func TestPrefixesThatAreRefused(t *testing.T) {
	for _, wrong := range []string{"/", "lapse", "/lapse/", "//lapse", "/a//b", "/a/../b", "/.", "/a b", "/a%2Fb", "/a?b", "/a;b", "/ü", "https://a/b"} {
		if _, err := New(Config{Prefix: wrong, Log: slog.New(slog.DiscardHandler)}); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
	for _, good := range []string{"", "/lapse", "/jobs/v2.1/lapse_~-"} {
		if wrong := CheckPrefix(good); wrong != "" {
			t.Errorf("%q %s", good, wrong)
		}
	}
}

// Each answer whose entries have problems hands these out, so that they get the prefix.
func TestAnswersWithProblems(t *testing.T) {
	var doc struct {
		Components struct{ Schemas map[string]json.RawMessage }
	}
	if err := json.Unmarshal(newRig(t).api.spec, &doc); err != nil {
		t.Fatal(err)
	}
	var have []string
	for name, schema := range doc.Components.Schemas {
		if strings.Contains(string(schema), `"#/components/schemas/Problem"`) {
			have = append(have, name)
		}
	}
	slices.Sort(have)
	// Acted, BatchAnswer, Imported and SettleAnswer have them in these entries, and TestPrefix
	// tries them.
	if want := []string{"BatchError", "ImportError", "ReceiptError", "Refusal"}; !slices.Equal(have, want) {
		t.Errorf("problems stand in %v. The answer of a new one has a method problems, as in prefix.go.", have)
	}
}
