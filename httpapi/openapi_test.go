package httpapi

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"github.com/lapsehq/lapse/internal/pagetest"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

// pagesAndFiles are the routes that are no part of the API.
var pagesAndFiles = []string{"/", "/assets/{build}/*file", "/docs", "/openapi.json", "/metrics", "/problems/{name}"}

func document(t *testing.T, r *rig) map[string]any {
	t.Helper()
	v := r.want(r.do("GET", "/openapi.json", ""), 200)
	if !strings.HasPrefix(v["openapi"].(string), "3.1.") {
		t.Errorf("the document is of version %v", v["openapi"])
	}
	return v
}

func TestOpenAPIHasEveryRoute(t *testing.T) {
	r := newRig(t)
	paths := document(t, r)["paths"].(map[string]any)
	parameter := regexp.MustCompile(`:(\w+)`)
	operations := 0
	for _, route := range r.api.engine.Routes() {
		path := parameter.ReplaceAllString(route.Path, "{$1}")
		if slices.Contains(pagesAndFiles, path) {
			continue
		}
		operations++
		item, ok := paths[path].(map[string]any)
		if !ok || item[strings.ToLower(route.Method)] == nil {
			t.Errorf("%s %s is missing", route.Method, path)
		}
	}
	for path, item := range paths {
		operations -= len(item.(map[string]any))
		_ = path
	}
	if operations != 0 {
		t.Errorf("the document and the router differ by %d operations", operations)
	}
}

func TestOpenAPIIsSound(t *testing.T) {
	r := newRig(t)
	doc := document(t, r)
	ids := make(map[any]bool)
	for path, item := range doc["paths"].(map[string]any) {
		for method, o := range item.(map[string]any) {
			op := o.(map[string]any)
			where := method + " " + path
			if id := op["operationId"]; id == nil || ids[id] {
				t.Errorf("%s: operationId is %v", where, id)
			} else {
				ids[id] = true
			}
			if op["summary"] == nil {
				t.Errorf("%s has no summary", where)
			}
			declared := fmt.Sprint(op["parameters"])
			for _, name := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(path, -1) {
				if !strings.Contains(declared, "in:path") || !strings.Contains(declared, "name:"+name[1]) {
					t.Errorf("%s does not declare %s", where, name[1])
				}
			}
			open := path == "/healthz" || path == "/readyz" || path == sessionPath
			if ways, ok := op["security"].([]any); !ok || (len(ways) == 0) != open {
				t.Errorf("%s: security is %v", where, op["security"])
			}
			responses := op["responses"].(map[string]any)
			problem := responses["default"].(map[string]any)["content"].(map[string]any)[problemMedia]
			if problem == nil {
				t.Errorf("%s does not say how it fails", where)
			}
			success := 0
			for status, answer := range responses {
				if status[0] == '2' {
					success++
				}
				if answer.(map[string]any)["description"] == "" {
					t.Errorf("%s: %s has no description", where, status)
				}
			}
			if success == 0 {
				t.Errorf("%s never succeeds", where)
			}
		}
	}
	// Every reference leads to a schema, and every schema is referred to.
	schemas := doc["components"].(map[string]any)["schemas"].(map[string]any)
	used := make(map[string]bool)
	for _, ref := range regexp.MustCompile(`"\$ref":"([^"]+)"`).FindAllSubmatch(r.api.spec, -1) {
		name, ofSchema := strings.CutPrefix(string(ref[1]), "#/components/schemas/")
		if !ofSchema {
			continue
		}
		if used[name] = true; schemas[name] == nil {
			t.Errorf("%s leads nowhere", ref[1])
		}
	}
	for name, schema := range schemas {
		if !used[name] {
			t.Errorf("the schema %s is not used", name)
		}
		// Generators of clients make what has a default required.
		if hasDefault(schema) {
			t.Errorf("%s has a default, which a description should tell instead", name)
		}
	}
}

// hasDefault reports whether a schema, or one within it, has a default.
func hasDefault(schema any) bool {
	switch v := schema.(type) {
	case map[string]any:
		for name, inner := range v {
			if name == "default" || hasDefault(inner) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, hasDefault)
	}
	return false
}

// The types that describe requests and the decoder know the same fields.
func TestDecoderKnowsTheDescribedFields(t *testing.T) {
	unknown := func(decode func(*scanner), field string) bool {
		s := scan([]byte(`{"` + field + `":{}}`))
		decode(s)
		for _, f := range s.faults {
			if f.Problem == "is not a known field" {
				return true
			}
		}
		return false
	}
	verdict := func(v tasks.Verb) func(*scanner) {
		return func(s *scanner) { s.verdict(&tasks.Verdict{Verb: v}) }
	}
	for _, c := range []struct {
		described any
		decode    func(*scanner)
	}{
		{NewTask{}, func(s *scanner) { s.task(new(tasks.Request)) }},
		{TaskChange{}, func(s *scanner) { s.move(new(tasks.Move)) }},
		{NewTopic{}, func(s *scanner) { s.settings(new(tasks.TopicSettings)) }},
		{NewRetry{}, func(s *scanner) { s.retry(new(tasks.Retry), "") }},
		{Rate{}, func(s *scanner) { s.rate(new(tasks.Rate)) }},
		{OnDeadIn{}, func(s *scanner) { s.onDead(new(tasks.OnDead)) }},
		{AckReceipts{}, verdict(tasks.Ack)},
		{ReleaseReceipts{}, verdict(tasks.Release)},
		{ExtendReceipts{}, verdict(tasks.Extend)},
		{BuryReceipts{}, verdict(tasks.Bury)},
	} {
		known := make(map[string]bool)
		for _, f := range reflect.VisibleFields(reflect.TypeOf(c.described)) {
			if f.Anonymous {
				continue
			}
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			known[name] = true
			if unknown(c.decode, name) {
				t.Errorf("%T describes %s, which is refused", c.described, name)
			}
		}
		for _, name := range []string{"id", "topic", "delay", "due_at", "payload", "headers", "max_lateness", "group", "delivery", "retry",
			"lease", "concurrency", "count_crashes", "paused", "kind", "max_attempts", "min_backoff", "max_backoff", "receipts", "reason",
			"rate", "per_second", "burst", "weight", "spread", "misfire", "dead_retention", "keep_finished"} {
			if !known[name] && !unknown(c.decode, name) {
				t.Errorf("%T does not describe %s, which is accepted", c.described, name)
			}
		}
	}
}

// What the server answers is what the document says.
func TestAnswersMatchTheirSchemas(t *testing.T) {
	r := newRig(t)
	var doc struct {
		Paths map[string]map[string]struct {
			Responses map[string]struct {
				Content map[string]struct {
					Schema struct {
						Ref string `json:"$ref"`
					}
				}
			}
		}
	}
	if err := json.Unmarshal(r.api.spec, &doc); err != nil {
		t.Fatal(err)
	}
	registry := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	for _, v := range []any{Task{}, TaskPage{}, BatchAnswer{}, Reserved{}, SettleAnswer{}, Topic{}, TopicList{}, Requeued{}, Purged{}, Forecast{}, History{}, NodeList{}, Stats{}, TopicAnswer{}, DeadReasons{}, Alive{}, Readiness{}, Problem{}} {
		registry.Schema(reflect.TypeOf(v), true, "")
	}
	r.bury("dead", 1)
	r.want(r.do("POST", "/v1/tasks", `{"id":"a","topic":"t","headers":{"x":"1"},"group":"g","max_lateness":"1h","payload":{"deep":[1,null]}}`), 201)
	receipt := receiptOf(r.reserve("t", `{"wait":"60s"}`, 1)[0])
	for _, c := range []struct{ method, path, route, body string }{
		{"POST", "/v1/tasks", "", `{"id":"b","topic":"t","delay":"1h","payload":1}`},
		{"POST", "/v1/tasks", "", `{"id":"b","topic":"t","delay":"2h"}`},
		{"GET", "/v1/tasks", "", ""},
		{"GET", "/v1/tasks/a", "/v1/tasks/{id}", ""},
		{"PUT", "/v1/tasks/b", "/v1/tasks/{id}", `{"topic":"t","delay":"1h"}`},
		{"PATCH", "/v1/tasks/b", "/v1/tasks/{id}", `{"delay":"1h"}`},
		{"PATCH", "/v1/tasks/none", "/v1/tasks/{id}", `{"delay":"1h"}`},
		{"POST", "/v1/tasks/b/hold", "/v1/tasks/{id}/hold", ""},
		{"POST", "/v1/tasks/b/resume", "/v1/tasks/{id}/resume", ""},
		{"POST", "/v1/tasks/b/fire", "/v1/tasks/{id}/fire", ""},
		{"POST", "/v1/tasks/batch", "", `[{"topic":"t"},{}]`},
		{"POST", "/v1/topics/t/reserve", "/v1/topics/{topic}/reserve", `{"wait":"60s"}`},
		{"POST", "/v1/receipts/extend", "", `{"receipts":["` + receipt + `"]}`},
		{"POST", "/v1/receipts/ack", "", `{"receipts":["` + receipt + `","x"]}`},
		{"PUT", "/v1/topics/t", "/v1/topics/{topic}", `{}`},
		{"GET", "/v1/topics/t", "/v1/topics/{topic}", ""},
		{"GET", "/v1/topics", "", ""},
		{"GET", "/v1/topics/dead/dead", "/v1/topics/{topic}/dead", ""},
		{"GET", "/v1/topics/dead/dead/reasons", "/v1/topics/{topic}/dead/reasons", ""},
		{"GET", "/v1/dead/reasons?scope=node", "/v1/dead/reasons", ""},
		{"POST", "/v1/topics/dead/dead/requeue", "/v1/topics/{topic}/dead/requeue", `{"all":true}`},
		{"GET", "/v1/forecast", "", ""},
		{"GET", "/v1/forecast?window=0", "/v1/forecast", ""},
		{"DELETE", "/v1/topics/t/tasks", "/v1/topics/{topic}/tasks", ""},
		{"GET", "/v1/nodes", "", ""},
		{"GET", "/v1/nodes/local", "/v1/nodes/{node}", ""},
		{"POST", "/v1/nodes/n/drain", "/v1/nodes/{node}/drain", ""},
		{"GET", "/v1/stats", "", ""},
		{"GET", "/healthz", "", ""},
		{"GET", "/readyz", "", ""},
	} {
		if c.route == "" {
			c.route = c.path
		}
		a := r.do(c.method, c.path, c.body)
		var value any
		if err := json.Unmarshal(a.body, &value); err != nil {
			t.Fatal(err)
		}
		ref := doc.Paths[c.route][strings.ToLower(c.method)].Responses[fmt.Sprint(a.status)].Content[a.header.Get("Content-Type")].Schema.Ref
		schema := registry.SchemaFromRef(ref)
		if ref == "" || schema == nil {
			t.Errorf("%s %s: an answer with %d is not described", c.method, c.route, a.status)
			continue
		}
		var result huma.ValidateResult
		huma.Validate(registry, schema, huma.NewPathBuffer(nil, 0), huma.ModeReadFromServer, value, &result)
		for _, err := range result.Errors {
			t.Errorf("%s %s: %v in %s", c.method, c.route, err, a.body)
		}
	}
}

func TestPages(t *testing.T) {
	r := newRig(t)
	for path, parts := range map[string][]string{
		"/":                   {"app.js", "lapse stats"},
		"/docs":               {"/v1/tasks/{id}/fire", "due_at", "Schedule a task"},
		"/problems/not_found": {"Unknown or finished", "/problems/not_found"},
	} {
		a := r.do("GET", path, "", "Accept: text/html")
		policy := a.header.Get("Content-Security-Policy")
		if a.status != 200 || !strings.HasPrefix(a.header.Get("Content-Type"), "text/html") || !strings.HasPrefix(policy, "default-src 'none'") {
			t.Errorf("%s is answered %d %v", path, a.status, a.header)
		}
		for _, part := range parts {
			if !strings.Contains(string(a.body), part) {
				t.Errorf("%s does not show %q", path, part)
			}
		}
		if external := regexp.MustCompile(`(?:src|href)="(?:https?:)?//`).Find(a.body); external != nil {
			t.Errorf("%s loads from elsewhere", path)
		}
		if mark := regexp.MustCompile(`\{\{[a-z]+\}\}`).Find(a.body); mark != nil {
			t.Errorf("%s: %s is not replaced", path, mark)
		}
		if absolute := regexp.MustCompile(`(?:src|href)="/[^"]*"`).Find(a.body); absolute != nil {
			t.Errorf("%s has %s, which leads out of the prefix that it is served below", path, absolute)
		}
		if strings.Contains(policy, "unsafe") || regexp.MustCompile(`<script>|<style|style=| on[a-z]+=`).Match(a.body) {
			t.Errorf("%s has a script or a style in itself, or the policy %s admits such", path, policy)
		}
	}
	r.refused(r.do("GET", "/problems/none", ""), 404, "no_such_route", "")
}

var update = flag.Bool("update", false, "write docs/problems.md anew")

// docs/problems.md is the catalogue, for people.
func TestProblemsAreDocumented(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Problems\n\nEvery answer that is not a success is `application/problem+json` (RFC 9457). Compare its `type`;\n" +
		"`title` and `detail` are for people and may change. `errors[]` names each field that is wrong, and never\n" +
		"repeats a value. The type is a path on the server, where the same explanation can be read.\n\n" +
		"<!-- run: lapse serve -->\n```\n$ curl -i localhost:7480/v1/tasks/order-42\nHTTP/1.1 404 Not Found\n" +
		"Content-Type: application/problem+json\n\n" +
		"{\"type\":\"/problems/not_found\",\"title\":\"Unknown or finished\",\"status\":404,\"detail\":\"unknown or finished: order-42\",\"request_id\":\"eb47e7af622523b2\"}\n```\n\n" +
		"This page is generated: `go test ./httpapi -run TestProblemsAreDocumented -update`.\n")
	status := 0
	for _, k := range catalogue {
		if k.status < status {
			t.Errorf("%s is out of order", k.name)
		}
		status = k.status
		fmt.Fprintf(&b, "\n## `%s%s`\n\n%d, %s.\n\n%s\n\n%s\n", problemBase, k.name, k.status, k.title, k.means, k.remedy)
	}
	for _, a := range answers {
		if !slices.Contains(catalogue, a.kind) {
			t.Errorf("%s is not in the catalogue", a.kind.name)
		}
	}
	const file = "../docs/problems.md"
	text := pagetest.Wrap(b.String())
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != text {
		t.Error("docs/problems.md is not up to date: run this test with -update")
	}
}

// Every error of the scheduler has an answer.
func TestEveryErrorHasAProblem(t *testing.T) {
	for _, a := range answers {
		p := problemOf(fmt.Errorf("wrapped: %w", a.err))
		if p == nil || p.Type != problemBase+a.kind.name || p.Status < 400 {
			t.Errorf("%v is answered %+v", a.err, p)
		}
		if waits := p.Status == 429 || p.Status == 503; waits != (p.GetHeaders().Get("Retry-After") != "") {
			t.Errorf("%v: Retry-After is %q", a.err, p.GetHeaders().Get("Retry-After"))
		}
	}
}

// A problem has the text of the kind of error, not that of what the error wraps: it may name files.
func TestProblemTellsKind(t *testing.T) {
	moving := task.KindOf(tasks.ErrNodeAway, "shard unavailable; retry")
	for _, c := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("%w (%w)", moving, errors.New("/secret")), "shard unavailable; retry"},
		{&tasks.NodeError{Node: "b", Err: moving}, "node b: shard unavailable; retry"},
		{fmt.Errorf("%w: %w", tasks.ErrNodeAway, errors.New("/secret")), "node unavailable"},
		{fmt.Errorf("%w: %w", tasks.ErrUnavailable, errors.New("/secret")), tasks.ErrUnavailable.Error()},
		{task.KindOf(tasks.ErrNotFound, "finished"), tasks.ErrNotFound.Error()},
	} {
		if p := problemOf(c.err); p == nil || p.Detail != c.want {
			t.Errorf("%v is answered %+v", c.err, p)
		}
	}
}
