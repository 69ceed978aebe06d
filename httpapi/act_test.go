package httpapi

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// actions asks for actions until there is no cursor, and returns how many tasks were selected and
// changed, and why others were not.
func (r *rig) actions(body string, headers ...string) (matched, done float64, failed []string) {
	r.Helper()
	for cursor, more := "", true; more; {
		v := r.want(r.do("POST", "/v1/tasks/actions", `{`+cursor+strings.TrimPrefix(body, "{"), headers...), 200)
		matched, done = matched+v["matched"].(float64), done+v["done"].(float64)
		for _, f := range v["failed"].([]any) {
			one := f.(map[string]any)
			failed = append(failed, fmt.Sprint(one["id"], " ", strings.TrimPrefix(one["problem"].(map[string]any)["type"].(string), problemBase)))
		}
		var next any
		next, more = v["next_cursor"]
		cursor = fmt.Sprintf(`"cursor":%q,`, next)
	}
	return matched, done, failed
}

func TestActions(t *testing.T) {
	r := newRig(t)
	for i := range 5 {
		r.want(r.do("POST", "/v1/tasks", fmt.Sprintf(`{"id":"order-%d","topic":"campaign","group":"g%d","delay":"%dh"}`, i, i%2, i+1)), 201)
	}
	due := func(id string) time.Time {
		at, err := time.Parse(time.RFC3339, r.want(r.do("GET", "/v1/tasks/"+id, ""), 200)["due_at"].(string))
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	check := func(body string, matched, done float64, failed string) {
		t.Helper()
		m, d, f := r.actions(body)
		if m != matched || d != done || fmt.Sprint(f) != failed {
			t.Errorf("%s: %v selected, %v changed, %v; want %v, %v, %s", body, m, d, f, matched, done, failed)
		}
	}
	check(`{"action":"move","shift":"1d","dry_run":true,"filter":{"topic":"campaign"}}`, 5, 0, "[]")
	before := due("order-1")
	check(`{"action":"move","shift":"1d","limit":2,"filter":{"topic":"campaign","id_prefix":"order-"}}`, 5, 5, "[]")
	if by := due("order-1").Sub(before); by != 24*time.Hour {
		t.Errorf("moved by %v", by)
	}
	check(`{"action":"move","shift":-3600000,"ids":["order-1","none"]}`, 2, 1, "[none not_found]")
	if by := due("order-1").Sub(before); by != 23*time.Hour {
		t.Errorf("moved by %v", by)
	}
	check(`{"action":"move","due_at":"2031-01-31T12:00:00Z","filter":{"group":"g0","state":"pending"}}`, 3, 3, "[]")
	check(`{"action":"fire","filter":{"topic":"campaign","due_from":"2031-01-31T12:00:00Z"}}`, 3, 3, "[]")
	receipt := receiptOf(r.reserve("campaign", `{"wait":"60s","max":1}`, 1)[0])
	check(`{"action":"cancel","filter":{"topic":"campaign","state":"delivering"}}`, 1, 0, fmt.Sprintf("[%s delivering]", "order-0"))
	r.want(r.do("POST", "/v1/receipts/bury", `{"receipts":["`+receipt+`"],"reason":"no such order"}`), 200)
	check(`{"action":"cancel","ids":["order-0"]}`, 1, 0, "[order-0 dead]")
	check(`{"action":"requeue","ids":["order-0","order-1"],"due_at":"2031-01-31T12:00:00Z"}`, 2, 1, "[order-1 not_dead]")
	check(`{"action":"delete","filter":{"topic":"campaign","reason":"buried"}}`, 0, 0, "[]")
	check(`{"action":"cancel","filter":{"topic":"campaign"}}`, 5, 5, "[]")
	if left := r.listed("/v1/tasks?"); left != "" {
		t.Errorf("left are %s", left)
	}
}

// A list by id has the task in whatever state, and is empty where there is none for the caller.
func TestListById(t *testing.T) {
	r := limitedRig(t)
	own, admin := bearer("own"), bearer("admin")
	ids := func(query, who string) string {
		v := r.want(r.do("GET", "/v1/tasks?id="+query, "", who), 200)
		var all []string
		for _, one := range v["tasks"].([]any) {
			m := one.(map[string]any)
			all = append(all, fmt.Sprint(m["id"], " ", m["state"], " ", m["payload"] != nil))
		}
		return fmt.Sprint(all, v["next_cursor"])
	}
	r.want(r.do("PUT", "/v1/tasks/dies", `{"topic":"own.a","payload":1}`, admin), 201)
	r.want(r.do("POST", "/v1/tasks/mine/hold", "", admin), 200)
	v := r.want(r.do("POST", "/v1/topics/own.a/reserve", `{"wait":"60s"}`, admin), 200)
	r.want(r.do("POST", "/v1/receipts/bury", `{"receipts":["`+receiptOf(v["tasks"].([]any)[0])+`"]}`, admin), 200)
	for query, want := range map[string]string{"dies": "[dies dead true] <nil>", "dies&details=false": "[dies dead false] <nil>", "none": "[] <nil>", "theirs": "[] <nil>"} {
		if got := ids(query, own); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	if got := ids("theirs", admin); got == "[] <nil>" {
		t.Error("an admin does not find a task")
	}
	for _, query := range []string{"id=a&topic=own.a", "id=a&state=dead", "id=a&cursor=x"} {
		r.refused(r.do("GET", "/v1/tasks?"+query, "", own), 422, "invalid", "id")
	}
}

// The log says what an action was asked to change.
func TestActionsAreLogged(t *testing.T) {
	var text bytes.Buffer
	r := newRigOn(t, memledger.New(), tasks.Config{}, Config{Log: slog.New(slog.NewTextHandler(&text, nil))})
	for _, id := range []string{"a", "b"} {
		r.want(r.do("POST", "/v1/tasks", `{"id":"`+id+`","topic":"t","group":"g","delay":"1h"}`), 201)
	}
	r.actions(`{"action":"fire","filter":{"group":"g"}}`)
	r.actions(`{"action":"cancel","ids":["a","b","none"]}`)
	for _, part := range []string{`verb=fire topic="" group=g task="" target="" count=2 `, `verb=cancel topic="" group="" task="" target="" count=2 `} {
		if !strings.Contains(text.String(), part) {
			t.Errorf("%s is not in %s", part, &text)
		}
	}
}

// The dead of a group are found and acted on, and those with errors that are alike.
func TestActionsOnTheDeadOfAGroup(t *testing.T) {
	r := newRig(t)
	for i := range 4 {
		r.want(r.do("POST", "/v1/tasks", fmt.Sprintf(`{"id":"order-%d","topic":"t","group":"g%d"}`, i, i%2)), 201)
		receipt := receiptOf(r.reserve("t", `{"wait":"60s","max":1}`, 1)[0])
		r.want(r.do("POST", "/v1/receipts/bury", fmt.Sprintf(`{"receipts":[%q],"reason":"no stock %d"}`, receipt, i/3)), 200)
	}
	for query, want := range map[string]string{
		"group=g0": "order-0 order-2", "group=none": "", "group=g1&error=stock+1": "order-3",
		"error_like=no+stock+99": "order-0 order-1 order-2 order-3", "group=g0&error_like=no": "",
	} {
		if got := r.listed("/v1/topics/t/dead?" + query + "&"); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
		if got := r.listed("/v1/tasks?topic=t&state=dead&" + query + "&"); got != want {
			t.Errorf("%s: %q in the list of tasks, want %q", query, got, want)
		}
	}
	if m, d, _ := r.actions(`{"action":"requeue","filter":{"topic":"t","group":"g0","error_like":"no stock 7"}}`); m != 2 || d != 2 {
		t.Errorf("%v selected, %v requeued", m, d)
	}
	if m, d, _ := r.actions(`{"action":"delete","filter":{"topic":"t","group":"g1"}}`); m != 2 || d != 2 {
		t.Errorf("%v selected, %v deleted", m, d)
	}
	if left := r.listed("/v1/tasks?topic=t&"); left != "order-0 order-2" {
		t.Errorf("left are %q", left)
	}
	r.refused(r.do("GET", "/v1/topics/t/dead?group=%21", ""), 422, "invalid", "group")
}

func TestWrongActions(t *testing.T) {
	r := newRig(t)
	for body, field := range map[string]string{
		`{"ids":["a"]}`:                 "action",
		`{"action":"drop","ids":["a"]}`: "action",
		`{"action":"cancel"}`:           "ids",
		`{"action":"cancel","ids":["a"],"filter":{"topic":"t"}}`:           "ids",
		`{"action":"cancel","ids":[]}`:                                     "ids",
		`{"action":"cancel","filter":{}}`:                                  "filter",
		`{"action":"cancel","filter":{"topic":""}}`:                        "filter.topic",
		`{"action":"cancel","filter":{"topic":"t","state":"done"}}`:        "filter.state",
		`{"action":"cancel","filter":{"topic":"t","state":"dead"}}`:        "filter.state",
		`{"action":"cancel","filter":{"topic":"t","age":1}}`:               "filter.age",
		`{"action":"cancel","filter":{"topic":"t","due_from":"now"}}`:      "filter.due_from",
		`{"action":"cancel","filter":{"topic":"t","reason":"buried"}}`:     "filter.reason",
		`{"action":"delete","filter":{"reason":"buried"}}`:                 "filter.topic",
		`{"action":"move","filter":{"topic":"t"}}`:                         "due_at",
		`{"action":"move","shift":"0s","filter":{"topic":"t"}}`:            "shift",
		`{"action":"move","shift":"x","filter":{"topic":"t"}}`:             "shift",
		`{"action":"cancel","shift":"1h","filter":{"topic":"t"}}`:          "shift",
		`{"action":"cancel","limit":1001,"filter":{"topic":"t"}}`:          "limit",
		`{"action":"cancel","cursor":"Zx81secret","filter":{"topic":"t"}}`: "cursor",
		`{"action":"cancel","filter":{"topic":"t"},"undo":true}`:           "undo",
		`{"action":"cancel","filter":[]}`:                                  "filter",
		`{"action":"cancel","filter":{"topic":"t"},"dry_run":"yes"}`:       "dry_run",
		`{"action":"move","due_at":"3000-01-01T00:00:00Z","ids":["a"]}`:    "due_at",
		`{"action":"cancel","ids":["Zx81 secret"]}`:                        "ids",
	} {
		r.refused(r.do("POST", "/v1/tasks/actions", body), 422, "invalid", field)
	}
}

// A token acts within its scopes and topics.
func TestActionsOfTokens(t *testing.T) {
	r := limitedRig(t)
	own, admin := bearer("own"), bearer("admin")
	for _, action := range []string{"requeue", "delete"} {
		for _, which := range []string{`"filter":{"topic":"own.a"}`, `"ids":["mine"]`} {
			r.refused(r.do("POST", "/v1/tasks/actions", `{"action":"`+action+`",`+which+`}`, own), 403, "forbidden", "")
		}
	}
	r.refused(r.do("POST", "/v1/tasks/actions", `{"action":"cancel","filter":{"group":"g"}}`, bearer("read")), 403, "forbidden", "")
	if m, d, f := r.actions(`{"action":"fire","ids":["theirs","mine"]}`, own); m != 2 || d != 1 || fmt.Sprint(f) != "[theirs not_found]" {
		t.Errorf("fired %v of %v, %v", d, m, f)
	}
	if m, d, f := r.actions(`{"action":"cancel","filter":{"group":"g"}}`, own); m != 1 || d != 1 || f != nil {
		t.Errorf("cancelled %v of %v, %v", d, m, f)
	}
	r.want(r.do("GET", "/v1/tasks/theirs", "", admin), 200)
	if m, d, f := r.actions(`{"action":"delete","filter":{"topic":"foreign"}}`, admin); m != 0 || d != 0 || f != nil {
		t.Errorf("deleted %v of %v, %v", d, m, f)
	}
}
