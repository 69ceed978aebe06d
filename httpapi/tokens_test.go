package httpapi

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks"
)

// tokenOf makes a token whose text is "secret-" and its name.
func tokenOf(name string, scopes ...edge.Scope) edge.Token {
	return edge.Token{Name: name, Scopes: scopes, SHA256: sha256.Sum256([]byte("secret-" + name))}
}

// callersOf returns the callers with these tokens.
func callersOf(tokens ...edge.Token) *edge.Callers {
	callers, err := edge.NewCallers(tokens)
	if err != nil {
		panic(err)
	}
	return callers
}

func bearer(name string) string { return "Authorization: Bearer secret-" + name }

func password(name string) string {
	return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("user:secret-"+name))
}

// guarded is a rig whose server has a token of each scope, under the scope's name.
func guarded(t testing.TB, hc Config, more ...edge.Token) *rig {
	for _, s := range edge.Scopes {
		more = append(more, tokenOf(string(s), s))
	}
	hc.Callers = callersOf(more...)
	hc.Metrics = func(*tasks.Scheduler) http.Handler { return http.NotFoundHandler() }
	return newRigWith(t, tasks.Config{}, hc)
}

// The scopes of each route, written down a second time, so that a change is deliberate.
var mayUse = map[string]string{
	"POST /v1/tasks":            "schedule",
	"POST /v1/tasks/batch":      "schedule",
	"GET /v1/tasks":             "schedule read",
	"GET /v1/tasks/:id":         "schedule read",
	"PUT /v1/tasks/:id":         "schedule",
	"PATCH /v1/tasks/:id":       "schedule",
	"DELETE /v1/tasks/:id":      "schedule",
	"POST /v1/tasks/:id/fire":   "schedule",
	"POST /v1/tasks/:id/hold":   "schedule",
	"POST /v1/tasks/:id/resume": "schedule",
	"POST /v1/tasks/actions":    "schedule", // and some actions admin

	"GET /v1/groups/:group":    "schedule read",
	"DELETE /v1/groups/:group": "schedule",

	"POST /v1/topics/:topic/reserve": "receive",
	"POST /v1/receipts/ack":          "receive",
	"POST /v1/receipts/return":       "receive",
	"POST /v1/receipts/release":      "receive",
	"POST /v1/receipts/extend":       "receive",
	"POST /v1/receipts/bury":         "receive",

	"GET /v1/topics":                     "read",
	"GET /v1/nodes":                      "read",
	"GET /v1/nodes/:node":                "read",
	"GET /v1/topics/:topic":              "read",
	"GET /v1/topics/:topic/dead":         "read",
	"GET /v1/counts":                     "schedule read",
	"GET /v1/search":                     "schedule read",
	"GET /v1/topics/:topic/dead/reasons": "read",
	"GET /v1/dead/reasons":               "read",
	"GET /v1/stats":                      "read",
	"GET /v1/history":                    "read",
	"POST /v1/audit/:act/undo":           "",
	"GET /v1/audit":                      "read",
	"GET /v1/diagnosis":                  "read",
	"GET /v1/forecast":                   "read",
	"GET /v1/waves":                      "read",
	"GET /v1/events":                     "read",
	"GET /metrics":                       "read",
	"GET /docs":                          "read schedule receive",
	"GET /openapi.json":                  "read schedule receive",
	"PUT /v1/topics/:topic":              "",
	"PATCH /v1/topics/:topic":            "",
	"DELETE /v1/topics/:topic":           "",
	"POST /v1/topics/:topic/pause":       "",
	"POST /v1/topics/:topic/resume":      "",
	"DELETE /v1/topics/:topic/tasks":     "",

	"POST /v1/topics/:topic/dead/requeue": "",
	"DELETE /v1/topics/:topic/dead":       "",

	"POST /v1/nodes/:node/drain":            "",
	"DELETE /v1/nodes/:node/missing-spools": "",

	"GET /v1/export":  "",
	"POST /v1/import": "",
	"POST /v1/backup": "",

	"POST /v1/session":   "public",
	"GET /v1/session":    "public",
	"DELETE /v1/session": "public",

	"GET /":               "public",
	"GET /healthz":        "public",
	"GET /readyz":         "public",
	"GET /problems/:name": "public",

	"GET /assets/:build/*file": "public",
}

func TestScopesOfEveryRoute(t *testing.T) {
	t.Parallel()
	r, wrong := guarded(t, Config{}), 0
	parameter := regexp.MustCompile(`:\w+`)
	routes := r.api.engine.Routes()
	if len(routes) != len(mayUse) {
		t.Errorf("there are %d routes, of which %d are written down", len(routes), len(mayUse))
	}
	for _, route := range routes {
		name := route.Method + " " + route.Path
		who, known := mayUse[name]
		if !known || r.api.scopes[routeKey{route.Method, route.Path}] == 0 {
			t.Errorf("%s does not say who may use it", name)
			continue
		}
		path := parameter.ReplaceAllString(route.Path, "a")
		if path == eventsPath {
			path += "?kind=none" // refused, as an answer without an end would not be
		}
		body := ""
		if route.Method == "POST" || route.Method == "PUT" {
			body = "{}"
		}
		// A server answers ten wrong tokens a minute at once, see edge.Callers.Admit.
		if wrong++; wrong%10 == 0 {
			r = guarded(t, Config{})
		}
		call := func(headers ...string) answer { return r.do(route.Method, path, body, headers...) }
		if who == "public" {
			for _, headers := range [][]string{nil, {bearer("unknown")}} {
				a := call(headers...)
				if name == "GET "+sessionPath && headers != nil {
					r.refused(a, 401, "unauthorized", "") // it tells whose token it is
				} else if a.status == 401 || a.status == 403 {
					t.Errorf("%s is answered %d with %v", name, a.status, headers)
				}
			}
			continue
		}
		r.refused(call(), 401, "unauthorized", "")
		r.refused(call(bearer("unknown")), 401, "unauthorized", "")
		for _, s := range edge.Scopes {
			a := call(bearer(string(s)))
			opens := s == edge.ScopeAdmin || slices.Contains(strings.Fields(who), string(s))
			if opens == (a.status == 401 || a.status == 403) {
				t.Errorf("%s is answered %d for %s: %s", name, a.status, s, a.body)
			}
			if !opens {
				r.refused(a, 403, "forbidden", "")
				needs := strings.Fields(who + " admin")[0]
				if !strings.Contains(string(a.body), "scope ") || !strings.Contains(a.header.Get("WWW-Authenticate"), `error="insufficient_scope"`) {
					t.Errorf("%s does not say that it needs %s: %s", name, needs, a.body)
				}
			}
		}
	}
}

func TestWaysToSendAToken(t *testing.T) {
	r := guarded(t, Config{})
	for _, c := range []struct {
		method, path string
		headers      []string
		status       int
	}{
		{"GET", "/v1/stats", []string{bearer("read")}, 200},
		{"GET", "/v1/stats", []string{"Authorization: bearer secret-read"}, 200},
		{"GET", "/v1/stats", []string{"Authorization: Bearer   secret-read"}, 200},
		{"HEAD", "/v1/stats", []string{bearer("read")}, 200},
		{"GET", "/v1/stats", []string{password("read")}, 200},
		{"HEAD", "/", []string{password("admin")}, 200},
		{"GET", "/", []string{password("schedule")}, 200},
		{"GET", "/v1/none", nil, 404},
		{"PATCH", "/v1/stats", nil, 405},
		{"OPTIONS", "/v1/stats", nil, 204},

		{"GET", "/v1/stats", []string{"Authorization: secret-read"}, 401},
		{"GET", "/v1/stats", []string{"Authorization: Bearer"}, 401},
		{"GET", "/v1/stats", []string{"Authorization: Bearer "}, 401},
		{"GET", "/v1/stats", []string{"Authorization: Bearer secret-rea"}, 401},
		{"GET", "/v1/stats", []string{"Authorization: Bearer secret-read x"}, 401},
		{"GET", "/v1/stats", []string{"Authorization: Digest secret-read"}, 401},
		{"GET", "/v1/stats", []string{"Authorization: Basic secret-read"}, 401},
		{"GET", "/v1/stats?token=secret-read", nil, 401},
		{"HEAD", "/v1/stats", nil, 401},
		// What a browser adds by itself changes nothing.
		{"DELETE", "/v1/tasks/a", []string{password("admin")}, 401},
		{"POST", "/v1/topics/t/pause", []string{password("admin")}, 401},
		// A token does not let a page of another site call the server.
		{"POST", "/v1/topics/t/pause", []string{bearer("admin"), "Sec-Fetch-Site: cross-site"}, 403},
	} {
		a := r.do(c.method, c.path, "", c.headers...)
		if a.status != c.status {
			t.Errorf("%s %s with %v is answered %d, want %d", c.method, c.path, c.headers, a.status, c.status)
		}
		if strings.Contains(string(a.body), "secret") {
			t.Errorf("the answer tells %s", a.body)
		}
	}
	q, err := http.NewRequestWithContext(t.Context(), "GET", r.url+"/v1/stats", nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Header["Authorization"] = []string{"Bearer secret-read", "Bearer secret-admin"}
	r.refused(r.send(q), 401, "unauthorized", "")
}

// A browser asks for a password where it opens a page, and not behind one.
func TestChallenges(t *testing.T) {
	r := guarded(t, Config{})
	for path, basic := range map[string]bool{"/openapi.json": true, "/docs": true, "/metrics": true, "/v1/stats": false} {
		a := r.do("GET", path, "")
		all := fmt.Sprint(a.header.Values("WWW-Authenticate"))
		if a.status != 401 || strings.Contains(all, "Basic") != basic || !strings.Contains(all, `Bearer realm="Lapse"`) {
			t.Errorf("%s is answered %d, %s", path, a.status, all)
		}
	}
}

// A caller without the right to call is refused before its body is read.
func TestRefusedBeforeTheBody(t *testing.T) {
	r := guarded(t, Config{MaxBody: 1 << 10})
	r.refused(r.do("POST", "/v1/tasks", strings.Repeat("x", 100<<10)), 401, "unauthorized", "")
	r.refused(r.do("POST", "/v1/tasks", "not JSON", bearer("read")), 403, "forbidden", "")
	r.empty()
}

func TestTokensAreReplaced(t *testing.T) {
	r := guarded(t, Config{})
	status := func(name string) int { return r.do("GET", "/v1/stats", "", bearer(name)).status }
	if err := r.api.callers.Set([]edge.Token{tokenOf("next", edge.ScopeRead)}); err != nil {
		t.Fatal(err)
	}
	if a, b := status("read"), status("next"); a != 401 || b != 200 {
		t.Errorf("the old token is answered %d, the new one %d", a, b)
	}
}

func TestAccessLogNamesTheToken(t *testing.T) {
	log := make(lines, 10)
	r := guarded(t, Config{Log: slog.New(log)})
	r.do("GET", "/v1/stats", "", bearer("read"))
	if line := <-log; !strings.Contains(line, "token=read ") {
		t.Errorf("the log has %q", line)
	}
	r.do("PUT", "/v1/topics/t", "{}", bearer("read"))
	if line := <-log; !strings.Contains(line, "token=read ") || !strings.Contains(line, "status=403") {
		t.Errorf("the log has %q", line)
	}
	r.do("GET", "/v1/stats", "", bearer("guess"))
	if line := <-log; strings.Contains(line, "guess") || !strings.Contains(line, "status=401") {
		t.Errorf("the log has %q", line)
	}
	r.do("DELETE", "/v1/topics/t/tasks", "", bearer("admin"))
	if line := <-log; !strings.Contains(line, "verb=purge") || !strings.Contains(line, "token=admin ") {
		t.Errorf("the log has %q", line)
	}
}

func TestOpenAPISaysWhoMayUseWhat(t *testing.T) {
	r := newRig(t)
	doc := document(t, r)
	schemes := doc["components"].(map[string]any)["securitySchemes"].(map[string]any)
	if schemes["token"].(map[string]any)["scheme"] != "bearer" || schemes["password"].(map[string]any)["scheme"] != "basic" {
		t.Errorf("the schemes are %v", schemes)
	}
	for path, item := range doc["paths"].(map[string]any) {
		for method, o := range item.(map[string]any) {
			op := o.(map[string]any)
			who := mayUse[strings.ToUpper(method)+" "+strings.NewReplacer("{", ":", "}", "").Replace(path)]
			scopes := map[string]bool{}
			ways, _ := op["security"].([]any)
			for _, way := range ways {
				for scheme, names := range way.(map[string]any) {
					if scheme == "password" && method != "get" {
						t.Errorf("%s %s can be used with a password", method, path)
					}
					if len(names.([]any)) != 0 {
						t.Errorf("%s %s names %v beside a scheme that has no scopes", method, path, names)
					}
				}
			}
			named, _ := op["x-scopes"].([]any)
			for _, scope := range named {
				scopes[scope.(string)] = true
			}
			responses := op["responses"].(map[string]any)
			if who == "public" {
				if responses["401"] != nil && path == sessionPath {
					delete(responses, "401") // of a token that is shown nevertheless
				}
				if len(scopes) != 0 || responses["401"] != nil {
					t.Errorf("%s %s wants %v", method, path, scopes)
				}
				continue
			}
			if responses["401"] == nil || responses["403"] == nil {
				t.Errorf("%s %s does not say that it may be refused", method, path)
			}
			wanted := strings.Fields(who)
			if len(wanted) == 0 {
				wanted = []string{"admin"}
			}
			for _, s := range wanted {
				if !scopes[s] || len(scopes) != len(wanted) {
					t.Errorf("%s %s wants %v, not %s", method, path, scopes, wanted)
				}
			}
		}
	}
}

// A caller without a token may ask for readiness, and learns no more than that.
func TestReadinessTellsStrangersLittle(t *testing.T) {
	api, err := newServer(Config{
		Starting: func() recovery.Health {
			return recovery.Health{Where: "redis.internal", Waiting: []recovery.Waiting{{What: "replay", Detail: "redis.internal"}}}
		},
		Callers: callersOf(tokenOf("read", edge.ScopeRead), tokenOf("receive", edge.ScopeReceive)),
		Log:     slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	r := serve(t, api)
	for header, told := range map[string]bool{"": false, bearer("receive"): false, bearer("none"): false, bearer("read"): true, password("read"): true} {
		var headers []string
		if header != "" {
			headers = append(headers, header)
		}
		a := r.do("GET", "/readyz", "", headers...)
		if a.status != 503 || strings.Contains(string(a.body), "redis.internal") != told {
			t.Errorf("with %q it is answered %d %s", header, a.status, a.body)
		}
	}
}

// A wrong token is counted, and noted with its address by package edge, which slows further ones.
func TestWrongTokensAreNoted(t *testing.T) {
	for name, ask := range map[string]func(*rig) answer{
		"a bearer":   func(r *rig) answer { return r.do("GET", "/v1/tasks", "", bearer("none")) },
		"a password": func(r *rig) answer { return r.do("GET", "/v1/tasks", "", password("none")) },
		"a login":    func(r *rig) answer { return r.do("POST", sessionPath, `{"token":"secret-none"}`) },
	} {
		var log strings.Builder
		r := guarded(t, Config{})
		r.api.callers.Log = slog.New(slog.NewTextHandler(&log, nil))
		r.refused(ask(r), 401, "unauthorized", "")
		if !strings.Contains(log.String(), "address=127.0.0.1/32") {
			t.Errorf("%s: the log has %q", name, log.String())
		}
		if n := r.api.Refusals()["token"]; n != 1 {
			t.Errorf("%s: %d are counted", name, n)
		}
	}
}
