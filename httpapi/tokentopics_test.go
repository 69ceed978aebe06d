package httpapi

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/edge"
)

// limitedRig is a rig with a token "own" that may do all but administer, in the topics own.*
// only; it has a foreign task and one of its own, both in the group g.
func limitedRig(t *testing.T) *rig {
	own := tokenOf("own", edge.ScopeSchedule, edge.ScopeReceive, edge.ScopeRead)
	own.Topics = []string{"own.*"}
	r := guarded(t, Config{}, own)
	for _, body := range []string{`{"id":"theirs","topic":"foreign","group":"g","delay":"1h"}`, `{"id":"mine","topic":"own.a","group":"g","delay":"1h"}`} {
		r.want(r.do("POST", "/v1/tasks", body, bearer("admin")), 201)
	}
	return r
}

// What a token that is limited to topics gets of each route, where this names a topic or a
// task that is not among them. Every route must be here.
var ofOthers = map[string]struct {
	path, body string
	status     int    // 403: refused because of the topic
	problem    string // of an answer that is refused for another reason
}{
	"POST /v1/tasks":            {body: `{"topic":"foreign"}`, status: 403},
	"POST /v1/tasks/batch":      {body: `[{"topic":"own.b","delay":"1h"},{"id":"new","topic":"foreign"}]`, status: 200},
	"GET /v1/tasks":             {path: "/v1/tasks?topic=foreign", status: 403},
	"GET /v1/tasks/:id":         {path: "/v1/tasks/theirs", status: 404, problem: "not_found"},
	"PUT /v1/tasks/:id":         {path: "/v1/tasks/theirs", body: `{"topic":"own.a"}`, status: 409, problem: "id_taken"},
	"PATCH /v1/tasks/:id":       {path: "/v1/tasks/theirs", body: `{"delay":"2h"}`, status: 404, problem: "not_found"},
	"DELETE /v1/tasks/:id":      {path: "/v1/tasks/theirs", status: 404, problem: "not_found"},
	"POST /v1/tasks/:id/fire":   {path: "/v1/tasks/theirs/fire", status: 404, problem: "not_found"},
	"POST /v1/tasks/:id/hold":   {path: "/v1/tasks/theirs/hold", status: 404, problem: "not_found"},
	"POST /v1/tasks/:id/resume": {path: "/v1/tasks/theirs/resume", status: 404, problem: "not_found"},
	"POST /v1/tasks/actions":    {body: `{"action":"cancel","filter":{"topic":"foreign"}}`, status: 403},

	"GET /v1/groups/:group":    {path: "/v1/groups/g", status: 200},
	"DELETE /v1/groups/:group": {path: "/v1/groups/g", status: 200},

	"POST /v1/topics/:topic/reserve": {path: "/v1/topics/foreign/reserve", status: 403},
	"POST /v1/receipts/ack":          {status: 200},
	"POST /v1/receipts/return":       {status: 200},
	"POST /v1/receipts/release":      {status: 200},
	"POST /v1/receipts/extend":       {status: 200},
	"POST /v1/receipts/bury":         {status: 200},

	"GET /v1/topics":                     {status: 200},
	"GET /v1/topics/:topic":              {path: "/v1/topics/foreign", status: 403},
	"GET /v1/topics/:topic/dead":         {path: "/v1/topics/foreign/dead", status: 403},
	"GET /v1/topics/:topic/dead/reasons": {path: "/v1/topics/foreign/dead/reasons", status: 403},
	"GET /v1/dead/reasons":               {status: 200},
	"GET /v1/counts":                     {path: "/v1/counts?topic=foreign", status: 403},
	"GET /v1/search":                     {path: "/v1/search?q=theirs", status: 200},
	"GET /v1/audit":                      {path: "/v1/audit?topic=foreign", status: 403},
	"GET /v1/forecast":                   {path: "/v1/forecast?topic=foreign", status: 403},
	"GET /v1/history":                    {path: "/v1/history?topic=foreign", status: 403},
	"GET /v1/waves":                      {path: "/v1/waves?from=2026-01-31T12:00:00Z&topic=foreign", status: 403},
	"GET /v1/events":                     {path: "/v1/events?topic=own.a&topic=foreign", status: 403},

	// These report on all topics.
	"GET /v1/stats": {status: 403, problem: "forbidden"},
	"GET /metrics":  {status: 403, problem: "forbidden"},

	// These report on none.
	"GET /v1/nodes":       {status: 200},
	"GET /v1/diagnosis":   {status: 200},
	"GET /v1/nodes/:node": {path: "/v1/nodes/local", status: 200},
	"GET /":               {status: 200},
	"POST /v1/session":    {body: `{"token":"secret-own"}`, status: 200},
	"GET /v1/session":     {status: 200},
	"DELETE /v1/session":  {status: 204},
	"GET /docs":           {status: 200},
	"GET /openapi.json":   {status: 200},
	"GET /healthz":        {status: 200},
	"GET /readyz":         {status: 200},
	"GET /problems/:name": {path: "/problems/invalid", status: 200},

	"GET /assets/:build/*file": {path: "/assets/0/app.js", status: 200},
}

// A limited token reads figures of its own topics. Those of all topics together are not told.
func TestLimitedTokenReadsFiguresOfItsTopics(t *testing.T) {
	r := limitedRig(t)
	for _, scope := range []string{"fleet", "node"} {
		for _, path := range []string{"/v1/history?", "/v1/forecast?", "/v1/counts?", "/v1/waves?from=2026-01-31T12:00:00Z&"} {
			path += "scope=" + scope
			r.want(r.do("GET", path+"&topic=own.a", "", bearer("own")), 200)
			r.refused(r.do("GET", path+"&topic=foreign", "", bearer("own")), 403, "forbidden", "topic")
			a := r.do("GET", path, "", bearer("own"))
			if strings.HasPrefix(path, "/v1/history") {
				r.refused(a, 403, "forbidden", "topic")
			} else if r.want(a, 200); strings.Contains(string(a.body), "foreign") {
				t.Errorf("%s tells of other topics: %s", path, a.body)
			}
		}
	}
}

// The reports of nodes count the tasks of all topics, so a limited token does not get them.
func TestLimitedTokenSeesNodesWithoutCounts(t *testing.T) {
	r := limitedRig(t)
	for caller, has := range map[string]bool{"own": false, "admin": true} {
		n := r.want(r.do("GET", "/v1/nodes", "", bearer(caller)), 200)["nodes"].([]any)[0].(map[string]any)
		if _, got := n["status"]; got != has || n["state"] != "live" {
			t.Errorf("%s gets %v", caller, n)
		}
	}
}

// A task of another topic is not told from an id that was never given: the answer names the id.
func TestUnknownTaskIsNamed(t *testing.T) {
	r := limitedRig(t)
	for _, id := range []string{"theirs", "none"} {
		for method, paths := range map[string][]string{"GET": {""}, "DELETE": {""}, "POST": {"/fire", "/hold", "/resume"}} {
			for _, path := range paths {
				a := r.do(method, "/v1/tasks/"+id+path, "", bearer("own"))
				if v := r.want(a, 404); v["detail"] != "unknown or finished: "+id {
					t.Errorf("%s of %s is answered %v", method, id, v)
				}
			}
		}
	}
	if v := r.want(r.do("GET", "/v1/tasks/a%20%0Ab", "", bearer("own")), 404); v["detail"] != "unknown or finished" {
		t.Errorf("text that is no id is answered %v", v)
	}
}

func TestEveryRouteKnowsTheTopicsOfAToken(t *testing.T) {
	t.Parallel()
	r := limitedRig(t)
	for _, route := range r.api.engine.Routes() {
		name := route.Method + " " + route.Path
		want, known := ofOthers[name]
		if mayUse[name] == "" { // admins', who cannot be limited
			if known {
				t.Errorf("%s is for admins", name)
			}
			continue
		}
		if !known {
			t.Errorf("it is not written down what a limited token gets of %s", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			r := limitedRig(t)
			path, body := want.path, want.body
			if path == "" {
				path = route.Path
			}
			if verb, settles := strings.CutPrefix(route.Path, "/v1/receipts/"); settles {
				r.want(r.do("POST", "/v1/tasks/theirs/fire", "", bearer("admin")), 202)
				v := r.want(r.do("POST", "/v1/topics/foreign/reserve", `{"wait":"60s"}`, bearer("admin")), 200)
				receipt := receiptOf(v["tasks"].([]any)[0])
				v = r.want(r.do("POST", path, `{"receipts":["`+receipt+`"]}`, bearer("own")), 200)
				wantForeign(r, v["errors"].([]any), verb)
				if v := r.want(r.do("POST", path, `{"receipts":["`+receipt+`"]}`, bearer("admin")), 200); v["settled"] != 1.0 {
					t.Errorf("afterwards it is answered %v", v)
				}
				return
			}
			a := r.do(route.Method, path, body, bearer("own"))
			// The id that the caller gave is repeated, as of one that was never given.
			told := strings.Replace(string(a.body), `"unknown or finished: theirs"`, "", 1)
			if strings.Contains(told, "foreign") || strings.Contains(told, "theirs") {
				t.Errorf("it tells of what it must not: %s", a.body)
			}
			switch {
			case want.problem != "":
				r.refused(a, want.status, want.problem, "")
			case want.status == 403:
				r.refused(a, 403, "forbidden", "topic")
			case a.status != want.status:
				t.Fatalf("it is answered %d %s", a.status, a.body)
			}
			switch name {
			case "POST /v1/tasks/batch":
				wantForeign(r, r.want(a, 200)["errors"].([]any), "the batch")
			case "DELETE /v1/groups/:group":
				if v := r.want(a, 200); v["cancelled"] != 1.0 {
					t.Errorf("it has cancelled %v", v)
				}
			}
			if got := r.want(r.do("GET", "/v1/tasks/theirs", "", bearer("admin")), 200); got["revision"] != 1.0 || got["state"] != "pending" {
				t.Errorf("the foreign task has become %v", got)
			}
		})
	}
	if len(ofOthers) != len(mayUse)-countAdmins() {
		t.Error("there are routes written down that do not exist")
	}
}

func countAdmins() (n int) {
	for _, who := range mayUse {
		if who == "" {
			n++
		}
	}
	return n
}

// wantForeign checks that one entry was refused because of its topic.
func wantForeign(r *rig, errs []any, what string) {
	r.Helper()
	if len(errs) != 1 {
		r.Fatalf("%s: errors %v", what, errs)
	}
	p := errs[0].(map[string]any)["problem"].(map[string]any)
	if p["type"] != "/problems/forbidden" || p["errors"].([]any)[0].(map[string]any)["field"] != "topic" {
		r.Errorf("%s: %v", what, p)
	}
}

// A call about many topics returns to a limited token its own topics only, and all of them.
func TestLimitedTokenGetsItsOwn(t *testing.T) {
	r := limitedRig(t)
	own := bearer("own")
	for _, path := range []string{"/v1/tasks", "/v1/groups/g", "/v1/tasks?topic=own.a"} {
		list := r.want(r.do("GET", path, "", own), 200)["tasks"].([]any)
		if len(list) != 1 || list[0].(map[string]any)["id"] != "mine" {
			t.Errorf("%s lists %v", path, list)
		}
	}
	if list := r.want(r.do("GET", "/v1/topics", "", own), 200)["topics"].([]any); len(list) != 1 || list[0].(map[string]any)["name"] != "own.a" {
		t.Errorf("the topics are %v", list)
	}
	counts := r.want(r.do("GET", "/v1/forecast?window=2h&step=2h", "", own), 200)["counts"].([]any)
	if counts[0] != 1.0 {
		t.Errorf("the forecast is %v", counts)
	}
	r.want(r.do("PATCH", "/v1/tasks/mine", `{"payload":1}`, own), 200)
	r.want(r.do("PUT", "/v1/tasks/mine", `{"topic":"own.b"}`, own), 200)
	v := r.want(r.do("POST", "/v1/topics/own.b/reserve", `{"wait":"60s"}`, own), 200)
	if v := r.want(r.do("POST", "/v1/receipts/bury", `{"receipts":["`+receiptOf(v["tasks"].([]any)[0])+`"]}`, own), 200); v["settled"] != 1.0 {
		t.Errorf("settled %v", v)
	}
	r.want(r.do("GET", "/v1/topics/own.b/dead", "", own), 200)
	r.want(r.do("GET", "/v1/topics/own.b", "", own), 200)
	if a := r.do("DELETE", "/v1/tasks/mine", "", own); a.status != 204 {
		t.Errorf("cancelled: %d", a.status)
	}
}

// A limited token gets the events of its own topics, until it is revoked.
func TestEventsOfALimitedToken(t *testing.T) {
	r := limitedRig(t)
	q, err := http.NewRequestWithContext(t.Context(), "GET", r.url+eventsPath, nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer secret-own")
	a, err := r.client.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	lines := bufio.NewScanner(a.Body)
	lines.Scan() // it has begun
	r.want(r.do("PATCH", "/v1/tasks/theirs", `{"payload":1}`, bearer("admin")), 200)
	r.want(r.do("POST", "/v1/tasks", `{"topic":"foreign"}`, bearer("admin")), 201)
	r.want(r.do("POST", "/v1/tasks", `{"id":"heard","topic":"own.c"}`, bearer("admin")), 201)
	for lines.Scan() {
		data, is := strings.CutPrefix(lines.Text(), "data: ")
		if !is {
			continue
		}
		var e Event
		if err := json.Unmarshal([]byte(data), &e); err != nil || e.Topic != "own.c" {
			t.Fatalf("it hears %s, %v", data, err)
		}
		break
	}
	narrow := tokenOf("own", edge.ScopeRead)
	narrow.Topics = []string{"own.d"}
	if err := r.api.callers.Set([]edge.Token{narrow, tokenOf("admin", edge.ScopeAdmin)}); err != nil {
		t.Fatal(err)
	}
	r.want(r.do("POST", "/v1/tasks", `{"topic":"own.c"}`, bearer("admin")), 201)
	for lines.Scan() { // it ends
		if strings.HasPrefix(lines.Text(), "data: ") {
			t.Errorf("it still hears %s", lines.Text())
		}
	}
}

// The bounds of a token hold for its topics, and for no other caller: an admin can set topics up
// although the token has reached its bounds.
func TestBoundsOfAToken(t *testing.T) {
	own := tokenOf("own", edge.ScopeSchedule)
	own.Topics, own.MaxTopics, own.MaxPending = []string{"own.*"}, 2, 5
	r := guarded(t, Config{}, own)
	var batch []string
	for i := range 7 {
		batch = append(batch, fmt.Sprintf(`{"topic":"own.%d","delay":"1h"}`, i))
	}
	v := r.want(r.do("POST", "/v1/tasks/batch", "["+strings.Join(batch, ",")+"]", bearer("own")), 200)
	if v["accepted"] != 2.0 {
		t.Errorf("of 7 topics it got %v", v)
	}
	a := r.do("POST", "/v1/tasks", batch[5], bearer("own"))
	r.refused(a, 429, "quota", "")
	if a.header.Get("Retry-After") == "" {
		t.Error("it is not told when to ask again")
	}
	for range 3 {
		r.want(r.do("POST", "/v1/tasks", batch[0], bearer("own")), 201)
	}
	r.refused(r.do("POST", "/v1/tasks", batch[0], bearer("own")), 429, "quota", "")
	r.want(r.do("POST", "/v1/tasks", batch[6], bearer("admin")), 201)
	if got := r.scheduler.Stats().Total.Pending; got != 6 {
		t.Errorf("%d tasks are pending", got)
	}
}

// A token whose tasks die, or are kept when they are finished, fills no memory with them.
func TestBoundsOfATokenHoldForTheBuried(t *testing.T) {
	own := tokenOf("own", edge.ScopeSchedule, edge.ScopeReceive)
	own.Topics, own.MaxPending = []string{"own.*"}, 5
	r := guarded(t, Config{}, own)
	r.want(r.do("PUT", "/v1/topics/own.kept", `{"keep_finished":"1d"}`, bearer("admin")), 200)
	r.want(r.do("PUT", "/v1/topics/own.dead", `{"delivery":{"kind":"pull"}}`, bearer("admin")), 200)
	r.want(r.do("POST", "/v1/tasks", `{"topic":"own.kept","id":"k","delay":"1h"}`, bearer("own")), 201)
	r.want(r.do("DELETE", "/v1/tasks/k", "", bearer("own")), 204)
	for range 4 {
		r.want(r.do("POST", "/v1/tasks", `{"topic":"own.dead"}`, bearer("own")), 201)
		v := r.want(r.do("POST", "/v1/topics/own.dead/reserve", `{"wait":"10s"}`, bearer("own")), 200)
		receipt := v["tasks"].([]any)[0].(map[string]any)["receipt"]
		r.want(r.do("POST", "/v1/receipts/bury", fmt.Sprintf(`{"receipts":[%q]}`, receipt), bearer("own")), 200)
	}
	a := r.do("POST", "/v1/tasks", `{"topic":"own.more"}`, bearer("own"))
	if r.refused(a, 429, "quota", ""); !strings.Contains(string(a.body), "5 tasks are dead, or finished and kept") {
		t.Errorf("the answer is %s", a.body)
	}
	r.want(r.do("POST", "/v1/tasks", `{"topic":"other"}`, bearer("admin")), 201)
	r.want(r.do("DELETE", "/v1/topics/own.dead/dead", `{"all":true}`, bearer("admin")), 204)
	r.want(r.do("POST", "/v1/tasks", `{"topic":"own.more"}`, bearer("own")), 201)
}

// A change names the revision that it is about.
func TestIfMatchOfTasks(t *testing.T) {
	r := newRig(t)
	created := r.do("POST", "/v1/tasks", `{"id":"t","topic":"x","delay":"1h"}`)
	tag := created.header.Get("ETag")
	got := r.do("GET", "/v1/tasks/t", "")
	if tag == "" || got.header.Get("ETag") != tag {
		t.Fatalf("the ETag is %q, then %q", tag, got.header.Get("ETag"))
	}
	calls := map[string]string{"PATCH /v1/tasks/t": `{"payload":1}`, "PUT /v1/tasks/t": `{"topic":"x","delay":"2h"}`, "POST /v1/tasks/t/fire": "", "DELETE /v1/tasks/t": ""}
	order := []string{"PATCH /v1/tasks/t", "PUT /v1/tasks/t", "POST /v1/tasks/t/fire", "DELETE /v1/tasks/t"}
	for _, name := range order {
		method, path, _ := strings.Cut(name, " ")
		for _, bad := range []string{"x", `"x"`, `"1"`, `W/` + tag, `"1.+-"`, `"0.1"`, `"-1.1"`} {
			r.refused(r.do(method, path, calls[name], "If-Match: "+bad), 422, "invalid", "If-Match")
		}
		r.refused(r.do(method, path, calls[name], `If-Match: "99.`+strings.Split(tag, ".")[1]), 412, "precondition_failed", "")
		a := r.do(method, path, calls[name], "If-Match: "+tag)
		if a.status >= 300 {
			t.Fatalf("%s is answered %d %s", name, a.status, a.body)
		}
		if next := a.header.Get("ETag"); name == "DELETE /v1/tasks/t" {
			break
		} else if next == tag || next == "" {
			t.Errorf("%s leaves the ETag %q", name, next)
		}
		r.refused(r.do(method, path, calls[name], "If-Match: "+tag), 412, "precondition_failed", "")
		tag = a.header.Get("ETag")
	}
	// Another task under the same id has another ETag, and a conditional change creates nothing.
	r.refused(r.do("PUT", "/v1/tasks/t", `{"topic":"x"}`, "If-Match: *"), 412, "precondition_failed", "")
	again := func() string {
		return r.do("POST", "/v1/tasks", `{"id":"t","topic":"x","delay":"1h"}`).header.Get("ETag")
	}
	for again() == created.header.Get("ETag") { // as long as it is in the same millisecond
		r.do("DELETE", "/v1/tasks/t", "")
	}
	if a := r.do("DELETE", "/v1/tasks/t", "", "If-Match: *"); a.status != 204 {
		t.Errorf("with * it is answered %d", a.status)
	}
}
