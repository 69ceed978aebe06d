package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/tasks"
)

// logIn begins a session. It returns the headers of its requests: the cookie, and what a page adds
// where it changes something.
func (r *rig) logIn(name string) (cookie, csrf string) {
	r.Helper()
	a := r.do("POST", sessionPath, `{"token":"secret-`+name+`"}`)
	v := r.want(a, 200)
	c, err := http.ParseSetCookie(a.header.Get("Set-Cookie"))
	if err != nil || c.Name != sessionCookie {
		r.Fatalf("the cookie is %q: %v", a.header.Get("Set-Cookie"), err)
	}
	return "Cookie: " + c.Name + "=" + c.Value, csrfHeader + ": " + v["csrf"].(string)
}

func TestSession(t *testing.T) {
	r := guarded(t, Config{})
	a := r.do("POST", sessionPath, `{"token":" secret-admin\n"}`)
	c, err := http.ParseSetCookie(a.header.Get("Set-Cookie"))
	if err != nil {
		t.Fatal(err)
	}
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.MaxAge != 12*60*60 || c.Secure || c.Domain != "" {
		t.Errorf("the cookie is %s", c)
	}
	if strings.Contains(c.Value, "secret") || strings.Contains(string(a.body), "secret") {
		t.Errorf("the token is in %s or %s", c, a.body)
	}
	v := r.want(a, 200)
	if fmt.Sprintf("%v %v %v %v", v["open"], v["name"], v["scopes"], v["read_only"]) != "false admin [admin] false" || v["topics"] != nil || v["csrf"] == "" || v["ends_at"] == "" {
		t.Errorf("the answer is %v", v)
	}
	cookie, csrf := "Cookie: "+c.Name+"="+c.Value, csrfHeader+": "+v["csrf"].(string)
	again := r.want(r.do("GET", sessionPath, "", cookie), 200)
	if fmt.Sprint(again) != fmt.Sprint(v) {
		t.Errorf("asked again, the server says %v, not %v", again, v)
	}
	r.want(r.do("GET", "/v1/stats", "", cookie), 200)
	r.want(r.do("HEAD", "/v1/stats", "", cookie), 200)
	r.want(r.do("PUT", "/v1/topics/t", "{}", cookie, csrf), 200)
	r.want(r.do("POST", "/v1/tasks", `{"id":"a","topic":"t","delay":"1h"}`, cookie, csrf), 201)
	r.want(r.do("DELETE", "/v1/tasks/a", "", cookie, csrf), 204)
	r.want(r.do("GET", "/readyz", "", cookie), 200)

	// Another server with the token takes the session.
	other, err := New(Config{Scheduler: r.scheduler, Callers: callersOf(tokenOf("admin", edge.ScopeAdmin)), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	b := serve(t, other)
	b.want(b.do("POST", "/v1/topics/t/pause", "", cookie, csrf), 204)
	b.want(b.do("POST", "/v1/topics/t/resume", "", cookie), 403)

	a = r.do("DELETE", sessionPath, "", cookie, csrf)
	if gone, err := http.ParseSetCookie(a.header.Get("Set-Cookie")); a.status != 204 || err != nil || gone.MaxAge >= 0 || gone.Value != "" || gone.Path != c.Path || gone.Name != c.Name {
		t.Errorf("the logout is answered %d with %s, %v", a.status, gone, err)
	}
}

// Over TLS, which a proxy may end, a browser sends the cookie over TLS only.
func TestSessionOverTLS(t *testing.T) {
	r := guarded(t, Config{})
	host := strings.TrimPrefix(r.url, "http://")
	for origin, secure := range map[string]bool{"https://" + host: true, "http://" + host: false} {
		a := r.do("POST", sessionPath, `{"token":"secret-read"}`, "Origin: "+origin)
		if c, err := http.ParseSetCookie(a.header.Get("Set-Cookie")); err != nil || c.Secure != secure {
			t.Errorf("a page of %s gets %s, %v", origin, c, err)
		}
	}
}

// What a page learns of a caller before it shows anything.
func TestWhatASessionTells(t *testing.T) {
	own := tokenOf("own", edge.ScopeSchedule, edge.ScopeRead)
	own.Topics = []string{"own.*"}
	r := guarded(t, Config{}, own)
	for _, c := range []struct{ header, want string }{
		{"", "[] <nil> true false"},
		{"Cookie: " + sessionCookie + "=x", "[] <nil> true false"},
		{bearer("read"), "[read] <nil> true false"},
		{bearer("receive"), "[receive] <nil> false false"},
		{bearer("admin"), "[admin] <nil> false false"},
		{password("admin"), "[admin] <nil> true false"},
		{bearer("own"), "[schedule read] [own.*] false false"},
	} {
		v := r.want(r.do("GET", sessionPath, "", c.header), 200)
		if got := fmt.Sprint(v["scopes"], " ", v["topics"], " ", v["read_only"], " ", v["open"]); got != c.want || v["csrf"] != nil {
			t.Errorf("with %q the answer is %v", c.header, v)
		}
	}
	r.refused(r.do("GET", sessionPath, "", bearer("none")), 401, "unauthorized", "")

	open := newRig(t)
	for _, method := range []string{"GET", "POST"} {
		body := map[string]string{"POST": `{"token":"any"}`}[method]
		a := open.do(method, sessionPath, body)
		if v := open.want(a, 200); v["open"] != true || fmt.Sprint(v["scopes"]) != "[admin]" || a.header.Get("Set-Cookie") != "" {
			t.Errorf("a server without tokens answers %s with %v, %v", method, v, a.header)
		}
	}
	open.want(open.do("DELETE", sessionPath, ""), 204)
}

// Only a page that can read the server's answers changes something with a cookie.
func TestSessionChangesNothingUnconfirmed(t *testing.T) {
	r := guarded(t, Config{})
	cookie, csrf := r.logIn("admin")
	_, another := r.logIn("admin")
	for _, headers := range [][]string{
		{cookie}, {cookie, csrfHeader + ": x"}, {cookie, another}, {cookie, password("admin")},
		{cookie, "X-CSRF-Token: " + strings.TrimPrefix(csrf, csrfHeader+": ")},
	} {
		for _, call := range []string{"POST /v1/topics/t/pause", "DELETE /v1/topics/t/tasks", "PUT /v1/topics/t", "PATCH /v1/topics/t", "DELETE " + sessionPath} {
			method, path, _ := strings.Cut(call, " ")
			a := r.do(method, path, "", headers...)
			if r.refused(a, 403, "csrf", ""); !strings.Contains(string(a.body), csrfHeader) {
				t.Errorf("it does not say what is missing: %s", a.body)
			}
		}
	}
	for _, site := range []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site", "Origin: https://evil.example"} {
		r.refused(r.do("POST", "/v1/topics/t/pause", "", cookie, csrf, site), 403, "cross_origin", "")
		r.refused(r.do("POST", sessionPath, `{"token":"secret-read"}`, site), 403, "cross_origin", "")
		r.refused(r.do("DELETE", sessionPath, "", cookie, csrf, site), 403, "cross_origin", "")
		r.refused(r.do("GET", sessionPath, "", cookie, site), 403, "cross_origin", "")
	}
	// A form of another site can send no JSON.
	r.refused(r.do("POST", sessionPath, `{"token":"secret-read"}`, "Content-Type: text/plain"), 415, "unsupported_media_type", "")
	r.refused(r.do("GET", "/v1/topics/t", "", cookie), 404, "topic_not_found", "")
	// A token in the header is no cookie, and confirms itself.
	r.want(r.do("POST", "/v1/topics/t/pause", "", cookie, bearer("admin")), 204)
}

// A session opens what its token opens.
func TestSessionHasTheRightsOfItsToken(t *testing.T) {
	r := limitedRig(t)
	cookie, csrf := r.logIn("own")
	r.refused(r.do("GET", "/v1/tasks/theirs", "", cookie), 404, "not_found", "")
	r.refused(r.do("POST", "/v1/tasks", `{"topic":"foreign"}`, cookie, csrf), 403, "forbidden", "topic")
	r.refused(r.do("GET", "/v1/stats", "", cookie), 403, "forbidden", "")
	r.refused(r.do("POST", "/v1/topics/own.a/pause", "", cookie, csrf), 403, "forbidden", "")
	r.want(r.do("POST", "/v1/tasks", `{"topic":"own.a","delay":"1h"}`, cookie, csrf), 201)
	if v := r.want(r.do("GET", "/v1/tasks", "", cookie), 200); len(v["tasks"].([]any)) != 2 {
		t.Errorf("it lists %v", v)
	}
}

func TestSessionEndsWithItsToken(t *testing.T) {
	r := guarded(t, Config{})
	cookie, csrf := r.logIn("admin")
	stays, _ := r.logIn("read")
	replaced := tokenOf("admin", edge.ScopeAdmin)
	replaced.SHA256[0] ^= 1
	for _, now := range [][]edge.Token{{replaced, tokenOf("read", edge.ScopeRead)}, {tokenOf("read", edge.ScopeRead)}} {
		if err := r.api.callers.Set(now); err != nil {
			t.Fatal(err)
		}
		a := r.do("POST", "/v1/topics/t/pause", "", cookie, csrf)
		r.refused(a, 401, "unauthorized", "")
		if !strings.Contains(string(a.body), "the session has ended") {
			t.Errorf("it is answered %s", a.body)
		}
		if v := r.want(r.do("GET", sessionPath, "", cookie), 200); len(v["scopes"].([]any)) != 0 {
			t.Errorf("the session is %v", v)
		}
		r.want(r.do("GET", "/v1/stats", "", stays), 200)
	}
	// What the token may do is asked for with each request.
	if err := r.api.callers.Set([]edge.Token{tokenOf("read", edge.ScopeReceive)}); err != nil {
		t.Fatal(err)
	}
	r.refused(r.do("GET", "/v1/stats", "", stays), 403, "forbidden", "")
}

// Cookies that the server has not made, or not for this.
func TestForgedSessions(t *testing.T) {
	r := guarded(t, Config{})
	begin := func(name, text string, ends time.Time) string {
		return r.api.callers.Find(edge.DigestOf("secret-"+name)).Begin(text, ends).Ticket
	}
	digest := tokenOf("admin").SHA256
	later, past := time.Now().Add(time.Hour), time.Now().Add(-time.Second)
	good := begin("admin", "secret-admin", later)
	_, sealed, _ := strings.Cut(good, ".")
	changed := good[:len(good)-1] + map[bool]string{true: "B", false: "A"}[strings.HasSuffix(good, "A")]
	for name, cookie := range map[string]string{
		"empty":                           "",
		"no session":                      "x",
		"a token":                         "secret-admin",
		"a name alone":                    "admin.",
		"not base64":                      "admin.!",
		"too short":                       "admin.AAAA",
		"another token's name":            "read." + sealed,
		"an unknown name":                 "nobody." + sealed,
		"one letter changed":              changed,
		"cut off":                         good[:len(good)-4],
		"over":                            begin("admin", "secret-admin", past),
		"sealed by a reader of settings":  begin("admin", "guess", later),
		"sealed with the digest":          begin("admin", string(digest[:]), later),
		"another token's text":            begin("admin", "secret-read", later),
		"an admin's text under read":      begin("read", "secret-admin", later),
		"oversize":                        begin("admin", "secret-admin"+strings.Repeat("x", 4000), later),
		"oversize and for nothing at all": "admin." + strings.Repeat("A", 40<<10),
	} {
		for _, path := range []string{"/v1/stats", "/docs", "/metrics"} {
			if a := r.do("GET", path, "", "Cookie: "+sessionCookie+"="+cookie); a.status != 401 {
				t.Errorf("%s: %s is answered %d", name, path, a.status)
			}
		}
		if a := r.do("DELETE", sessionPath, "", "Cookie: "+sessionCookie+"="+cookie); a.status != 204 {
			t.Errorf("%s: the logout is answered %d", name, a.status)
		}
	}
	// A cookie of another name does not serve. Of several, those of other paths are passed over.
	r.refused(r.do("GET", "/v1/stats", "", "Cookie: session="+good), 401, "unauthorized", "")
	other := sessionCookie + "=x; "
	r.want(r.do("GET", "/v1/stats", "", "Cookie: "+other+sessionCookie+"="+good), 200)
	r.refused(r.do("GET", "/v1/stats", "", "Cookie: "+strings.Repeat(other, cookiesOfAName)+sessionCookie+"="+good), 401, "unauthorized", "")
	// A password that the browser has kept serves when the session does not.
	r.want(r.do("GET", "/v1/stats", "", "Cookie: "+other, password("read")), 200)
}

func TestLoginsThatAreRefused(t *testing.T) {
	log := make(lines, 100)
	r := guarded(t, Config{Log: slog.New(log)})
	for _, c := range []struct {
		body   string
		status int
		kind   string
		field  string
	}{
		{`{"token":"secret"}`, 401, "unauthorized", ""},
		{`{"token":"` + strings.Repeat("x", edge.MaxSessionToken) + `"}`, 401, "unauthorized", ""},
		{`{"token":"` + strings.Repeat("x", edge.MaxSessionToken+1) + `"}`, 422, "invalid", "token"},
		{`{"token":""}`, 422, "invalid", "token"},
		{`{}`, 422, "invalid", "token"},
		{`{"token":["secret-admin"]}`, 422, "invalid", "token"},
		{`{"token":"secret-admin","scope":"admin"}`, 422, "invalid", "scope"},
		{`secret-admin`, 400, "malformed", ""},
		{`{"token":"` + strings.Repeat("x", maxLoginBody) + `"}`, 413, "too_large", ""},
	} {
		a := r.do("POST", sessionPath, c.body)
		r.refused(a, c.status, c.kind, c.field)
		if a.header.Get("Set-Cookie") != "" || strings.Contains(string(a.body), "secret") {
			t.Errorf("%.40s is answered %v %s", c.body, a.header, a.body)
		}
	}
	// A wrong token is answered as everywhere.
	var texts []string
	for _, a := range []answer{r.do("POST", sessionPath, `{"token":"secret"}`), r.do("GET", "/v1/stats", "", bearer("none"))} {
		var p Problem
		if err := json.Unmarshal(a.body, &p); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, fmt.Sprint(p.Type, p.Detail, a.header.Values("WWW-Authenticate")))
	}
	if texts[0] != texts[1] {
		t.Errorf("a wrong token is answered %v", texts)
	}
	if n := r.api.Refusals()["token"]; n != 4 {
		t.Errorf("%d wrong tokens are counted, want 4", n)
	}
	r.logIn("admin")
	for len(log) > 0 {
		if line := <-log; strings.Contains(line, "secret") {
			t.Errorf("the log tells %s", line)
		}
	}
}

// A server that waits for its ledger knows its tokens.
func TestSessionWhileTheServerStarts(t *testing.T) {
	api, err := newServer(Config{Callers: callersOf(tokenOf("read", edge.ScopeRead)), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r := serve(t, api)
	cookie, _ := r.logIn("read")
	r.refused(r.do("GET", "/v1/stats", "", cookie), 503, "starting", "")
	if a := r.do("GET", "/", ""); a.status != 200 || a.header.Get("WWW-Authenticate") != "" {
		t.Errorf("the page is answered %d", a.status)
	}
}

// A stream of events ends when its session does.
func TestSessionOfAStream(t *testing.T) {
	slowly(t, func(w *wire, _ *tasks.Scheduler) {
		w.api.callers = callersOf(tokenOf("read", edge.ScopeRead))
		began := time.Now()
		defer time.AfterFunc(6*time.Minute, w.api.Close).Stop()
		session := w.api.callers.Find(edge.DigestOf("secret-read")).Begin("secret-read", began.Add(5*time.Minute))
		stream := w.listen("Cookie: " + sessionCookie + "=" + session.Ticket + "\r\n")
		if _, err := stream.next(); !errors.Is(err, io.EOF) {
			t.Errorf("the stream ends with %v", err)
		}
		if lasted := time.Since(began); lasted < 5*time.Minute || lasted >= 6*time.Minute {
			t.Errorf("the stream has lasted for %v", lasted)
		}
	})
}
