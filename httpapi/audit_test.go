package httpapi

import (
	"encoding/json"
	"errors"
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

// What settings were is recorded as a request that makes them so again, unless they were changed
// since.
func TestAuditTakesBack(t *testing.T) {
	r := newRig(t)
	asked := []string{`{}`, `{"concurrency":5,"rate":{"per_second":2},"links":{"logs":"https://logs.example/{id}"},"concurrency_per_group":3,` +
		`"count_crashes":true,"task_delivery":true,"on_dead":{"topic":"d"},"delivery":{"kind":"pull"},"retry":{"max_attempts":4}}`}
	for i, set := range asked {
		topic := fmt.Sprint("/v1/topics/t", i)
		was := r.want(r.do("PUT", topic, set), 200)
		r.want(r.do("PATCH", topic, `{"weight":7,"links":null,"concurrency":9,"retry":{"max_age":"1h"}}`, "Content-Type: application/merge-patch+json"), 200)
		var before, named map[string]json.RawMessage
		for deadline := time.Now().Add(10 * time.Second); before == nil; {
			for _, e := range r.want(r.do("GET", fmt.Sprintf("/v1/audit?topic=t%d", i), ""), 200)["entries"].([]any) {
				if e := e.(map[string]any); e["verb"] == "change-topic" {
					if err := errors.Join(json.Unmarshal([]byte(e["before"].(string)), &before), json.Unmarshal([]byte(e["detail"].(string)), &named)); err != nil {
						t.Fatal(err)
					}
				}
			}
			if time.Now().After(deadline) {
				t.Fatal("the change is not recorded")
			}
		}
		var revision int
		if err := json.Unmarshal(before["revision"], &revision); err != nil {
			t.Fatal(err)
		}
		for name := range named {
			named[name] = before[name]
		}
		if i == 1 { // a patch leaves what it does not name
			named["retry"] = json.RawMessage(`{"max_age":null,"max_attempts":4}`)
		}
		body, err := json.Marshal(named)
		if err != nil {
			t.Fatal(err)
		}
		back := fmt.Sprintf("If-Match: \"%d\"", revision+1)
		is := r.want(r.do("PATCH", topic, string(body), back, "Content-Type: application/merge-patch+json"), 200)
		for name := range settable {
			if fmt.Sprint(is[name]) != fmt.Sprint(was[name]) {
				t.Errorf("%s is %v, and was %v", name, is[name], was[name])
			}
		}
		if is["concurrency_set"] != was["concurrency_set"] {
			t.Errorf("concurrency_set is %v", is["concurrency_set"])
		}
		r.want(r.do("PATCH", topic, string(body), back, "Content-Type: application/merge-patch+json"), 412)
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
		`no JSON`: "",
	} {
		if got := auditText([]byte(settings)); got != want {
			t.Errorf("%s is recorded as %s, want %s", settings, got, want)
		}
	}
}
