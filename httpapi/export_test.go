package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/tasks"
)

const asLines = "Content-Type: " + mediaNDJSON

// exported returns the lines of an export that say something of the content, sorted.
func (r *rig) exported(path string) (content []string, end string) {
	r.Helper()
	for cursor := ""; ; {
		a := r.do("GET", path+cursor, "")
		if a.status != 200 || a.header.Get("Content-Type") != mediaNDJSON {
			r.Fatalf("status %d, %s: %s", a.status, a.header, a.body)
		}
		all := strings.Split(strings.TrimSuffix(string(a.body), "\n"), "\n")
		if cursor == "" {
			var head struct {
				Type    string
				Version int
			}
			if err := json.Unmarshal([]byte(all[0]), &head); err != nil || head.Type != lineHead || head.Version != exportVersion {
				r.Errorf("the first line: %s", all[0])
			}
			all = all[1:]
		}
		var last struct{ Type, Cursor string }
		end = all[len(all)-1]
		if err := json.Unmarshal([]byte(end), &last); err != nil {
			r.Fatal(err)
		}
		content = append(content, all[:len(all)-1]...)
		if last.Type == lineEnd {
			slices.Sort(content)
			return content, end
		}
		cursor = "?cursor=" + last.Cursor
	}
}

// An export of version 1 is imported by every version, and exported as it was. A file is never
// changed: what the form gets later has another one.
func TestImportOfGoldenExport(t *testing.T) {
	for _, name := range []string{"export-1.ndjson", "export-1-delivery.ndjson"} {
		t.Run(name, func(t *testing.T) { importGolden(t, name) })
	}
}

func importGolden(t *testing.T, name string) {
	golden, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Split(strings.TrimSuffix(string(golden), "\n"), "\n")
	var has struct{ Topics, Tasks, Dead, Finished int }
	if err := json.Unmarshal([]byte(all[len(all)-1]), &has); err != nil {
		t.Fatal(err)
	}
	want := slices.Clone(all[1 : len(all)-2])
	for i, line := range want { // which are written as they are meant
		want[i] = strings.ReplaceAll(strings.ReplaceAll(line, `"delivery":{"kind":"pull"},`, ""), `"last_error":"refused: \"no\"\n\u00fc"`, `"last_error":"refused: \"no\"\nü"`)
	}
	slices.Sort(want)
	r := newRig(t)
	for k := range 2 {
		v := r.want(r.do("POST", "/v1/import", string(golden), asLines), 200)
		count := float64(has.Tasks + has.Dead + has.Finished)
		if diff := cmp.Diff(map[string]any{
			"imported": count * float64(1-k), "present": count * float64(k), "topics": float64(has.Topics * (1 - k)), "topics_present": float64(has.Topics * k), "errors": []any{},
		}, v); diff != "" {
			t.Errorf("import %d: %s", k, diff)
		}
		got, end := r.exported("/v1/export")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("exported again: %s", diff)
		}
		if end != all[len(all)-1] {
			t.Errorf("the end: %s", end)
		}
	}
	var first struct{ Topic string }
	if err := json.Unmarshal([]byte(all[1]), &first); err != nil {
		t.Fatal(err)
	}
	replaced := strings.Replace(all[1], `"weight":1`, `"weight":2`, 1)
	r.want(r.do("POST", "/v1/import?replace_topics=true", replaced, asLines), 200)
	if topic, err := r.scheduler.Topic(first.Topic); err != nil || topic.Settings.Weight != 2 {
		t.Errorf("the topic was not replaced: %+v, %v", topic.Settings, err)
	}
}

// An export has all settings that a request can give.
func TestExportHasAllSettings(t *testing.T) {
	names := func(of reflect.Type) (all []string) {
		for f := range of.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			all = append(all, name)
		}
		slices.Sort(all)
		return all
	}
	if diff := cmp.Diff(names(reflect.TypeFor[NewTopic]()), names(reflect.TypeFor[exportedSettings]())); diff != "" {
		t.Error(diff)
	}
}

// Wrong lines are named, and the others are imported.
func TestImportNamesWrongLines(t *testing.T) {
	r := newRig(t)
	good := `{"type":"task","id":"good","topic":"x","due_at":"2099-01-01T00:00:00Z","next_at":"2099-01-01T00:00:00Z","created_at":"2026-01-01T00:00:00Z","attempt":0,"revision":1,"fingerprint":"0123456789abcdef"}`
	wrong := []struct{ from, to, field string }{
		{`"type":"task"`, `"type":"tusk"`, "type"},
		{`"type":"task",`, ``, "type"},
		{`"id":"good"`, `"id":"a b"`, "id"},
		{`,"fingerprint":"0123456789abcdef"`, ``, "fingerprint"},
		{`"attempt":0`, `"attempt":0,"group":""`, "group"},
		{`0123456789abcdef`, `xyz`, "fingerprint"},
		{`"attempt":0`, `"attempt":-1`, "attempt"},
		{`"revision":1`, `"revision":1,"colour":"red"`, "colour"},
		{`"id":"good","topic":"x","due_at":"2099`, `"id":"early","topic":"x","due_at":"2100`, "next_at"},
		{`"revision":1`, `"revision":1,"payload_base64":"?"`, "payload_base64"},
		{`"revision":1`, `"revision":1,"attempts":[{"attempt":0,"at":"2026-01-01T00:00:00Z","outcome":"failed"}]`, "attempts.attempt"},
		{`"revision":1`, `"revision":1,"delivery":{"url":"https://shop.example"}`, "delivery.kind"},
		{`"revision":1`, `"revision":1,"delivery":{"kind":"webhook"}`, "delivery.kind"},
		{`"revision":1`, `"revision":1,"delivery":{"kind":"webhook","url":"` + strings.Repeat("x", 4096) + `"}`, "delivery"},
		{`"revision":1`, `"revision":1,"delivery":[]`, "delivery"},
		{`"revision":1`, `"revision":1,"delivery":{"retry":{"min_backoff":"2h","max_backoff":"1h"}}`, "delivery.retry.max_backoff"},
		{`"revision":1`, `"revision":1,"delivers_to":"https://shop.example"`, "delivers_to"},
	}
	body := good + "\n\n"
	for i, w := range wrong {
		line := strings.Replace(good, w.from, w.to, 1)
		body += strings.Replace(line, `"id":"good"`, fmt.Sprintf(`"id":"wrong-%d"`, i), 1) + "\n"
	}
	var a Imported
	answer := r.do("POST", "/v1/import", body, asLines)
	if err := json.Unmarshal(answer.body, &a); err != nil || a.Imported != 1 || len(a.Errors) != len(wrong) {
		t.Fatalf("%v: %s", err, answer.body)
	}
	for i, e := range a.Errors {
		if e.Line != i+3 || e.Problem.Status != 422 || e.Problem.Errors[0].Field != wrong[i].field {
			t.Errorf("line %d, want line %d and the field %s: %+v", e.Line, i+3, wrong[i].field, e.Problem)
		}
	}
	page := r.do("GET", "/v1/export", "").body // with the line that says where the tasks begin
	if v := r.want(r.do("POST", "/v1/import", string(page), asLines), 200); !bytes.Contains(page, []byte(`,"begins":true}`)) || len(v["errors"].([]any)) != 0 {
		t.Errorf("a page imported as it is: %v: %s", v, page)
	}
	r.refused(r.do("POST", "/v1/import", "{\n", asLines), 400, "malformed", "")
	r.refused(r.do("POST", "/v1/import", good), 415, "unsupported_media_type", "")
	r.refused(r.do("GET", "/v1/export?cursor=x", ""), 422, "invalid", "cursor")
	r.refused(r.do("GET", "/v1/export?topic=*x", ""), 422, "invalid", "topic")
	r.refused(r.do("POST", "/v1/import", `{"type":"lapse_export","version":2}`+"\n"+good, asLines), 422, "invalid", "version")
	other := strings.Replace(good, "0123", "3210", 1)
	answer = r.do("POST", "/v1/import", other, asLines)
	if err := json.Unmarshal(answer.body, &a); err != nil || len(a.Errors) != 1 || a.Errors[0].Problem.Type != problemBase+"id_taken" {
		t.Errorf("another task of an id: %s", answer.body)
	}
}

// Lines that are refused count as those that are imported, so a body of the shortest lines costs no
// more memory than one of tasks.
func TestRefusedLinesOfAnImportAreCounted(t *testing.T) {
	r := newRig(t)
	many := r.do("POST", "/v1/import", strings.Repeat("{}\n", tasks.MaxBatch+1), asLines)
	if r.refused(many, 422, "invalid", "body"); !strings.Contains(string(many.body), "at most 10000 lines that are not blank") {
		t.Errorf("too many lines: %s", many.body)
	}
	answer := r.do("POST", "/v1/import", strings.Repeat("{}\n", tasks.MaxBatch), asLines)
	if n := bytes.Count(answer.body, []byte(`"line":`)); answer.status != 200 || n != tasks.MaxBatch {
		t.Errorf("status %d, %d lines are refused", answer.status, n)
	}
	m, body := &importing{}, bytes.Repeat([]byte("{}\n"), 4<<20/3)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := m.read(body)
	runtime.ReadMemStats(&after)
	if spent := after.TotalAlloc - before.TotalAlloc; err == nil || len(m.answer.Errors) > tasks.MaxBatch+1 || spent > 8*uint64(len(body)) {
		t.Errorf("%d bytes cost %d and %d refusals: %v", len(body), spent, len(m.answer.Errors), err)
	}
}

// Export and import need the scope admin.
func TestExportIsForAdmins(t *testing.T) {
	r := newRigWith(t, tasks.Config{}, Config{Callers: callersOf(tokenOf("others", edge.ScopeRead, edge.ScopeSchedule, edge.ScopeReceive), tokenOf("admin", edge.ScopeAdmin))})
	r.refused(r.do("GET", "/v1/export", "", bearer("others")), 403, "forbidden", "")
	r.refused(r.do("POST", "/v1/import", "{}", asLines, bearer("others")), 403, "forbidden", "")
	r.want(r.do("POST", "/v1/import", "", asLines, bearer("admin")), 200)
	if a := r.do("GET", "/v1/export", "", bearer("admin")); a.status != 200 {
		t.Errorf("status %d", a.status)
	}
}

// The topics of a page count as its tasks do.
func TestTopicsOfAnExportAreCounted(t *testing.T) {
	r := newRigWith(t, tasks.Config{}, Config{MaxAnswers: LeastMaxAnswers})
	for i := range 100 {
		r.do("PUT", fmt.Sprintf("/v1/topics/t%03d", i), `{"concurrency":1000,"rate":{"per_second":1000,"burst":1000},"on_dead":{"topic":"x","delay":"1h"}}`)
	}
	a := r.do("GET", "/v1/export", "")
	if a.status != 200 || len(a.body) < 2*taskAnswer {
		t.Fatalf("%d, %d bytes", a.status, len(a.body))
	}
	full := filled(r.api.lists, int64(LeastMaxAnswers/2-len(a.body)))
	r.refused(r.do("GET", "/v1/export", ""), 429, "overloaded", "")
	if now, _ := r.api.lists.Used(); now != full.Bytes() {
		t.Errorf("%d bytes are counted, want %d", now, full.Bytes())
	}
	if size := sizeOfTopic(&tasks.ExportedTopic{Settings: tasks.TopicSettings{Delivery: make([]byte, 32<<10)}}); size < 32<<10 {
		t.Errorf("a topic with 32 KiB of settings counts as %d bytes", size)
	}
}
