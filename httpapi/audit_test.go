package httpapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// audited returns the verbs of the log of actions, the latest first, with what they are about.
func audited(r *rig, query string) (all []string) {
	r.Helper()
	v := r.want(r.do("GET", "/v1/audit"+query, ""), 200)
	for _, e := range v["entries"].([]any) {
		e := e.(map[string]any)
		on := e["topic"]
		if e["task"] != nil {
			on = e["task"]
		}
		all = append(all, fmt.Sprintf("%v %v %v", e["verb"], on, e["count"]))
	}
	return all
}

// Acts on topics and on many tasks are recorded, those on one task only if an operator's. What
// changes nothing is not recorded. The calls of one act are one entry. Pages go on where the one
// before has ended, and the past has marks for what was done with topics.
func TestAudit(t *testing.T) {
	r := newRig(t)
	for i := range 5 {
		r.want(r.do("PUT", fmt.Sprintf("/v1/tasks/a%d", i), `{"topic":"t","delay":"1h"}`), 201)
	}
	r.want(r.do("DELETE", "/v1/tasks/a0", ""), 204)
	r.do("DELETE", "/v1/tasks/a1", "", "Lapse-Operator: yes")
	r.do("POST", "/v1/topics/t/pause", "")
	r.do("POST", "/v1/topics/t/pause", "")
	for range 2 { // the second one changes nothing
		r.want(r.do("PATCH", "/v1/topics/t", `{"weight":7}`, "Content-Type: application/merge-patch+json"), 200)
	}
	cursor := ""
	for {
		v := r.want(r.do("POST", "/v1/tasks/actions", fmt.Sprintf(`{"action":"cancel","filter":{"topic":"t"},"limit":2%s}`, cursor)), 200)
		if v["next_cursor"] == nil {
			break
		}
		cursor = fmt.Sprintf(`,"cursor":%q`, v["next_cursor"])
	}
	wanted := []string{"cancel t 3", "change-topic t 0", "pause t 0", "cancel a1 1"}
	deadline := time.Now().Add(10 * time.Second)
	for {
		got := audited(r, "")
		if fmt.Sprint(got) == fmt.Sprint(wanted) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("recorded %q, want %q", got, wanted)
		}
	}
	v := r.want(r.do("GET", "/v1/audit?limit=2&topic=t", ""), 200)
	entry := v["entries"].([]any)[1].(map[string]any)
	if entry["detail"] != `{"weight":7}` || entry["before"] == nil || entry["door"] != "http" || entry["partial"] != false {
		t.Errorf("the change of settings: %v", entry)
	}
	if got := audited(r, fmt.Sprintf("?limit=2&topic=t&cursor=%v", v["next_cursor"])); fmt.Sprint(got) != "[pause t 0 cancel a1 1]" {
		t.Errorf("the next page has %q", got)
	}
	kinds := ""
	for _, m := range r.want(r.do("GET", "/v1/history?topic=t", ""), 200)["marks"].([]any) {
		kinds += fmt.Sprintf(" %v", m.(map[string]any)["kind"])
	}
	if kinds != " node_started paused settings" {
		t.Errorf("the marks are%s", kinds)
	}
	r.want(r.do("GET", "/v1/audit?from=2027-01-01T00:00:00Z&to=2026-01-01T00:00:00Z", ""), 422)
	r.want(r.do("GET", "/v1/history?step=1m&from=2026-01-01T00:00:00Z&to=2026-02-01T00:00:00Z", ""), 422)
}

// actOf waits until the log has an act with a verb on a topic, and returns it. The latest counts.
func actOf(r *rig, topic, verb string) map[string]any {
	r.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		for _, e := range r.want(r.do("GET", "/v1/audit?topic="+topic, ""), 200)["entries"].([]any) {
			if e := e.(map[string]any); e["verb"] == verb {
				return e
			}
		}
	}
	r.Fatalf("there is no %s of %s in the log", verb, topic)
	return nil
}

func undo(r *rig, act map[string]any) answer {
	return r.do("POST", fmt.Sprintf("/v1/audit/%v/undo", act["id"]), "")
}

// Settings that were changed become what they were, unless they were changed since.
func TestUndoSettings(t *testing.T) {
	r := newRig(t)
	asked := []string{`{}`, `{"concurrency":5,"rate":{"per_second":2},"links":{"logs":"https://logs.example/{id}"},"concurrency_per_group":3,` +
		`"count_crashes":true,"task_delivery":true,"on_dead":{"topic":"d"},"delivery":{"kind":"pull"},"retry":{"max_attempts":4}}`}
	for i, set := range asked {
		name := fmt.Sprint("t", i)
		topic := "/v1/topics/" + name
		was := r.want(r.do("PUT", topic, set), 200)
		r.want(r.do("PATCH", topic, `{"weight":7,"links":null,"concurrency":9,"retry":{"max_age":"1h"}}`, "Content-Type: application/merge-patch+json"), 200)
		change := actOf(r, name, "change-topic")
		if change["undo"] != "change-topic" {
			t.Fatalf("the act is %v", change)
		}
		if v := r.want(undo(r, change), 200); v["verb"] != "change-topic" || v["topic"] != name || v["id"] != change["id"] {
			t.Errorf("it is answered %v", v)
		}
		if by := actOf(r, name, "change-topic"); by["undoes"] != change["id"] {
			t.Errorf("the undo is recorded as %v", by)
		}
		is := r.want(r.do("GET", topic, ""), 200)
		for name := range settable {
			if fmt.Sprint(is[name]) != fmt.Sprint(was[name]) {
				t.Errorf("%s is %v, and was %v", name, is[name], was[name])
			}
		}
		if is["concurrency_set"] != was["concurrency_set"] {
			t.Errorf("concurrency_set is %v", is["concurrency_set"])
		}
		r.refused(undo(r, change), 412, "precondition_failed", "")
		r.want(undo(r, actOf(r, name, "change-topic")), 200) // an undo is an act
		if is := r.want(r.do("GET", topic, ""), 200); is["weight"] != 7.0 || is["concurrency"] != 9.0 {
			t.Errorf("done again, it is %v", is)
		}
	}
	r.do("POST", "/v1/topics/t0/pause", "")
	pause := actOf(r, "t0", "pause")
	r.want(undo(r, pause), 200)
	if is := r.want(r.do("GET", "/v1/topics/t0", ""), 200); is["paused"] != false {
		t.Error("the topic is paused")
	}
	if actOf(r, "t0", "resume")["undoes"] != pause["id"] {
		t.Error("the undo does not name what it has undone")
	}
	r.refused(undo(r, pause), 412, "precondition_failed", "")
	r.want(undo(r, actOf(r, "t0", "resume")), 200)
	if is := r.want(r.do("GET", "/v1/topics/t0", ""), 200); is["paused"] != true {
		t.Error("the topic is not paused")
	}
}

// Acts on one task are undone only if the task was not changed since, and where that leads back.
func TestUndoOfTasks(t *testing.T) {
	r := newRig(t)
	r.want(r.do("PUT", "/v1/topics/kept", `{"keep_finished":"1h"}`), 200)
	due := time.Now().Add(1000 * time.Hour).UTC().Format("2006-01-02T15:04:05.000Z")
	for _, topic := range []string{"kept", "gone"} {
		r.want(r.do("PUT", "/v1/tasks/"+topic, `{"topic":"`+topic+`","due_at":"`+due+`","payload":{"a":1},"group":"g"}`), 201)
	}
	const operator = "Lapse-Operator: yes"
	state := func() any { return r.want(r.do("GET", "/v1/tasks/kept", ""), 200)["state"] }
	for _, test := range []struct{ method, path, body, verb, undo, state string }{
		{"POST", "/hold", "", "hold", "resume", "held"},
		{"PATCH", "", `{"delay":"1h"}`, "move", "move", "pending"},
		{"POST", "/fire", "", "fire", "move", "ready"},
		{"DELETE", "", "", "cancel", "schedule", "finished"},
	} {
		if a := r.do(test.method, "/v1/tasks/kept"+test.path, test.body, operator); a.status/100 != 2 {
			t.Fatalf("%s is answered %d %s", test.verb, a.status, a.body)
		}
		act := actOf(r, "kept", test.verb)
		if is := state(); is != test.state || act["undo"] != test.undo {
			t.Errorf("after %v the task is %v", act, is)
		}
		if v := r.want(undo(r, act), 200); v["verb"] != test.undo || v["task"] != "kept" {
			t.Errorf("%s is undone by %v", test.verb, v)
		}
		v := r.want(r.do("GET", "/v1/tasks/kept", ""), 200)
		if v["state"] != "pending" || test.verb != "hold" && v["due_at"] != due || fmt.Sprint(v["payload"]) != "map[a:1]" || v["group"] != "g" {
			t.Errorf("after the undo of %s it is %v", test.verb, v)
		}
		if by := actOf(r, "kept", test.undo); by["undoes"] != act["id"] {
			t.Errorf("recorded is %v", by)
		}
		r.refused(undo(r, act), 412, "precondition_failed", "")
		r.want(r.do("PATCH", "/v1/tasks/kept", `{"due_at":"`+due+`"}`), 200)
	}
	cancelled := actOf(r, "kept", "cancel")
	r.want(r.do("DELETE", "/v1/tasks/kept", ""), 204) // on purpose, after the undo
	if r.refused(undo(r, cancelled), 412, "precondition_failed", ""); state() != "finished" {
		t.Error("a cancel that came later was undone")
	}
	r.do("PATCH", "/v1/tasks/gone", `{"payload":{"a":2}}`, operator)
	r.refused(undo(r, actOf(r, "gone", "move")), 409, "not_undone", "")
	r.do("DELETE", "/v1/tasks/gone", "", operator)
	r.refused(undo(r, actOf(r, "gone", "cancel")), 409, "not_undone", "")
}

// What cannot be led back to what it was is refused, with the reason.
func TestNotUndone(t *testing.T) {
	r := newRig(t)
	r.want(r.do("PUT", "/v1/tasks/a", `{"topic":"t","delay":"1h"}`), 201)
	for _, verb := range []string{"hold", "resume"} {
		r.want(r.do("POST", "/v1/tasks/actions", `{"action":"`+verb+`","filter":{"topic":"t"}}`), 200)
		act := actOf(r, "t", verb)
		a := undo(r, act)
		if r.refused(a, 409, "not_undone", ""); act["undo"] != nil || !strings.Contains(string(a.body), "filter") {
			t.Errorf("%s is refused with %s", verb, a.body)
		}
	}
	r.want(r.do("PUT", "/v1/topics/t", `{"delivery":{"kind":"pull"},"links":{"a":"https://`+strings.Repeat("x", 300)+`"}}`), 200)
	r.want(r.do("PATCH", "/v1/topics/t", `{"links":null}`, "Content-Type: application/merge-patch+json"), 200)
	a := undo(r, actOf(r, "t", "change-topic"))
	if r.refused(a, 409, "not_undone", ""); !strings.Contains(string(a.body), "links") {
		t.Errorf("refused with %s", a.body)
	}
	for _, id := range []string{"none", "mq2k8w1c-1-mq2k7z00", "-", "zzzzzzzzzzzzzzzzzzzz"} {
		r.refused(r.do("POST", "/v1/audit/"+id+"/undo", ""), 404, "act_not_found", "")
	}
}

// The log of actions has no secret of a delivery, and nothing long.
func TestAuditTellsNoSecrets(t *testing.T) {
	for settings, want := range map[string]string{
		`{"weight":7}`: `{"weight":7}`,
		`{"delivery":{"kind":"webhook","url":"https://u:p@a.example:8/hook/SECRET?k=SECRET","secret":"SECRET"}}`: `{"delivery":{"kind":"webhook","url":"https://a.example:8"}}`,
		`{"delivery":{"kind":"stream","stream":"SECRET"},"paused":true}`:                                         `{"delivery":{"kind":"stream"},"paused":true}`,
		`{"delivery":"SECRET"}`:                              `{"delivery":null}`,
		`{"links":{"a":"` + strings.Repeat("x", 300) + `"}}`: `{"links":"..."}`,
	} {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal([]byte(settings), &fields); err != nil {
			t.Fatal(err)
		}
		if got := auditText(fields); got != want {
			t.Errorf("%s is recorded as %s, want %s", settings, got, want)
		}
	}
}
