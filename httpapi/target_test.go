package httpapi

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/webhook"
)

// newTargetRig is a server with a token of each scope, and a topic that lets tasks choose.
func newTargetRig(t *testing.T) *rig {
	t.Helper()
	way, err := webhook.New(webhook.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(way.Close)
	var all []edge.Token
	for _, s := range edge.Scopes {
		all = append(all, tokenOf(string(s), s))
	}
	r := newRigOn(t, memledger.New(), tasks.Config{Ways: []tasks.Way{way}}, Config{Callers: callersOf(all...)})
	r.want(r.do("PUT", "/v1/topics/w", `{"delivery":{"kind":"webhook","url":"https://shop.example/secret-of-topic"},"task_delivery":true,"retry":{"max_attempts":3}}`, bearer("admin")), 200)
	return r
}

// ownURL is what the tasks of these tests say of their delivery.
const ownURL = `{"url":"https://eu.shop.example/secret-path?a=1&b=2","headers":{"authorization":"Bearer secret-header"},"timeout":"5s","retry":{"max_attempts":5,"max_age":"1h"}}`

// A task says where it goes, in requests of all kinds, and answers say it.
func TestTaskDelivery(t *testing.T) {
	r := newTargetRig(t)
	admin := bearer("admin")
	shown := func(a map[string]any) string { return fmt.Sprint(a["delivery"], a["delivers_to"], a["undeliverable"]) }
	const full = "map[headers:map[authorization:Bearer secret-header] kind:webhook retry:map[max_age:1h max_attempts:5] timeout:5s url:https://eu.shop.example/secret-path?a=1&b=2]https://eu.shop.example<nil>"
	body := `{"id":"a","topic":"w","delay":"1h","delivery":` + ownURL + `}`
	if got := shown(r.want(r.do("POST", "/v1/tasks", body, admin), 201)); got != full {
		t.Errorf("answered: %s", got)
	}
	// The order of fields and blanks mean nothing.
	again := strings.Replace(body, `"timeout":"5s",`, "", 1)
	again = strings.Replace(again, `{"url"`, `{ "timeout" : "5s" , "kind" : "webhook" , "url"`, 1)
	r.want(r.do("POST", "/v1/tasks", again, admin), 200)
	r.refused(r.do("POST", "/v1/tasks", strings.Replace(body, "eu.shop", "us.shop", 1), admin), 409, "id_taken", "")
	a := r.want(r.do("GET", "/v1/tasks/a", "", admin), 200)
	if got := shown(a); got != full {
		t.Errorf("read: %s", got)
	}
	// What is read can be put back.
	r.want(r.do("PUT", "/v1/tasks/b", `{"topic":"w","delay":"1h","delivery":`+ownURL+`}`, admin), 201)
	text := string(r.do("GET", "/v1/tasks/b", "", admin).body)
	_, rest, _ := strings.Cut(text, `"delivery":`)
	object, _, _ := strings.Cut(rest, `,"delivers_to"`)
	r.want(r.do("PUT", "/v1/tasks/b", `{"topic":"w","delay":"1h","delivery":`+object+`}`, admin), 200)

	batch := r.want(r.do("POST", "/v1/tasks/batch", `[{"id":"c","topic":"w","delay":"1h","delivery":`+ownURL+`},{"topic":"w","delivery":{"url":"http://10.0.0.1/"}}]`, admin), 200)
	if fmt.Sprint(batch["accepted"], strings.Contains(fmt.Sprint(batch["errors"]), "delivery.url")) != "1 true" {
		t.Errorf("batch: %v", batch)
	}
	for _, listed := range r.want(r.do("GET", "/v1/tasks?topic=w", "", admin), 200)["tasks"].([]any) {
		if got := shown(listed.(map[string]any)); got != full {
			t.Errorf("listed: %s", got)
		}
	}
	for _, listed := range r.want(r.do("GET", "/v1/tasks?topic=w&details=false", "", admin), 200)["tasks"].([]any) {
		if got := shown(listed.(map[string]any)); got != "<nil> <nil> <nil>" {
			t.Errorf("listed without details: %s", got)
		}
	}
	moved := r.want(r.do("PATCH", "/v1/tasks/a", `{"delivery":{"timeout":"1s"}}`, admin), 200)
	if got := shown(moved); got != "map[kind:webhook timeout:1s]https://shop.example<nil>" {
		t.Errorf("patched: %s", got)
	}
	moved = r.want(r.do("PATCH", "/v1/tasks/a", `{"delay":"2h"}`, admin), 200)
	if got := shown(moved); got != "map[kind:webhook timeout:1s]https://shop.example<nil>" {
		t.Errorf("moved: %s", got)
	}
	moved = r.want(r.do("PATCH", "/v1/tasks/a", `{"delivery":null}`, admin), 200)
	if got := shown(moved); got != "<nil> <nil> <nil>" {
		t.Errorf("taken away: %s", got)
	}

	r.want(r.do("PATCH", "/v1/topics/w", `{"task_delivery":false}`, admin, "Content-Type: application/merge-patch+json"), 200)
	if got := r.want(r.do("GET", "/v1/tasks/b", "", admin), 200)["undeliverable"]; !strings.Contains(fmt.Sprint(got), "task_delivery") {
		t.Errorf("undeliverable: %v", got)
	}
}

// A caller that may not see the settings of topics sees neither paths nor headers.
func TestTaskDeliveryIsHidden(t *testing.T) {
	r := newTargetRig(t)
	made := r.do("POST", "/v1/tasks", `{"id":"a","topic":"w","delay":"1h","delivery":`+ownURL+`}`, bearer("schedule"))
	r.want(made, 201)
	for what, a := range map[string]answer{
		"scheduled": made,
		"read":      r.do("GET", "/v1/tasks/a", "", bearer("schedule")),
		"listed":    r.do("GET", "/v1/tasks?topic=w", "", bearer("schedule")),
		"moved":     r.do("PATCH", "/v1/tasks/a", `{"delay":"2h"}`, bearer("schedule")),
		"fired":     r.do("POST", "/v1/tasks/a/hold", "", bearer("schedule")),
		"put":       r.do("PUT", "/v1/tasks/a", `{"topic":"w","delay":"1h","delivery":`+ownURL+`}`, bearer("schedule")),
	} {
		body := string(a.body)
		if strings.Contains(body, "secret") || !strings.Contains(body, `"delivers_to":"https://eu.shop.example"`) || !strings.Contains(body, `"max_attempts":5`) {
			t.Errorf("%s: %s", what, body)
		}
	}
	if a := r.do("GET", "/v1/tasks/a", "", bearer("read")); !strings.Contains(string(a.body), "secret-path") {
		t.Errorf("with the scope read: %s", a.body)
	}
}

// Faults name their fields.
func TestTaskDeliveryRefused(t *testing.T) {
	r := newTargetRig(t)
	r.want(r.do("PUT", "/v1/topics/closed", `{"delivery":{"kind":"webhook","url":"https://shop.example/"}}`, bearer("admin")), 200)
	for delivery, field := range map[string]string{
		`"https://a.example"`:                   "delivery",
		`[]`:                                    "delivery",
		`{"url":"http://127.0.0.1/"}`:           "delivery.url",
		`{"url":5}`:                             "delivery.url",
		`{"mode":"async"}`:                      "delivery.mode",
		`{"kind":"stream","url":"https://a"}`:   "delivery.kind",
		`{"headers":{"host":"a"}}`:              "delivery.headers",
		`{"retry":{"max_attempts":0}}`:          "delivery.retry.max_attempts",
		`{"retry":{"attempts":1}}`:              "delivery.retry.attempts",
		`{"url":"https://a","url":"https://b"}`: "delivery.url",
	} {
		r.refused(r.do("POST", "/v1/tasks", `{"topic":"w","delivery":`+delivery+`}`, bearer("schedule")), 422, "invalid", field)
	}
	r.refused(r.do("POST", "/v1/tasks", `{"topic":"closed","delivery":`+ownURL+`}`, bearer("schedule")), 422, "invalid", "delivery")
	r.refused(r.do("PATCH", "/v1/topics/w", `{"task_delivery":"yes"}`, bearer("admin"), "Content-Type: application/merge-patch+json"), 422, "invalid", "task_delivery")
}

// What follows a dead task is set, shown, merged and taken away.
func TestOnDeadSetting(t *testing.T) {
	r := newRig(t)
	shown := func(a map[string]any) string { return fmt.Sprint(a["on_dead"]) }
	merge := "Content-Type: application/merge-patch+json"
	if got := shown(r.want(r.do("PUT", "/v1/topics/x", `{"on_dead":{"topic":"y","delay":"1h"},"retry":{"max_attempts":1}}`), 200)); got != "map[delay:1h topic:y]" {
		t.Errorf("set: %s", got)
	}
	if got := shown(r.want(r.do("PATCH", "/v1/topics/x", `{"on_dead":{"delay":null}}`, merge), 200)); got != "map[delay:0s topic:y]" {
		t.Errorf("patched: %s", got)
	}
	r.want(r.do("POST", "/v1/tasks", `{"id":"a","topic":"x","payload":{"n":1}}`), 201)
	receipt := r.reserve("x", `{"max":1,"wait":"5s"}`, 1)[0].(map[string]any)["receipt"].(string)
	r.want(r.do("POST", "/v1/receipts/release", `{"receipts":["`+receipt+`"],"reason":"no such order"}`), 200)
	next := r.reserve("y", `{"max":1,"wait":"5s"}`, 1)[0].(map[string]any)
	if h := next["headers"].(map[string]any); h["lapse-dead-id"] != "a" || h["lapse-dead-error"] != "no such order" || fmt.Sprint(next["payload"]) != "map[n:1]" {
		t.Errorf("the follow-up: %v", next)
	}
	if got := fmt.Sprint(r.want(r.do("GET", "/v1/topics/x", ""), 200)["counts"].(map[string]any)["follow_ups"]); got != "map[ended:0 lost:0 made:1]" {
		t.Errorf("counts: %s", got)
	}
	if got := shown(r.want(r.do("PATCH", "/v1/topics/x", `{"on_dead":null}`, merge), 200)); got != "<nil>" {
		t.Errorf("taken away: %s", got)
	}
	for body, field := range map[string]string{
		`{"on_dead":{"topic":"x"}}`: "on_dead.topic", `{"on_dead":{"delay":"1h"}}`: "on_dead.topic", `{"on_dead":{"topic":"a b"}}`: "on_dead.topic",
		`{"on_dead":{"topic":"y","delay":"-1s"}}`: "on_dead.delay", `{"on_dead":{"topic":"y","to":1}}`: "on_dead.to", `{"on_dead":"y"}`: "on_dead",
	} {
		r.refused(r.do("PUT", "/v1/topics/x", body), 422, "invalid", field)
	}
}

// A bound for groups is set, shown and felt.
func TestPerGroupSetting(t *testing.T) {
	r := newRig(t)
	if got := r.want(r.do("PUT", "/v1/topics/x", `{"concurrency_per_group":1}`), 200)["concurrency_per_group"]; fmt.Sprint(got) != "1" {
		t.Errorf("set: %v", got)
	}
	for _, id := range []string{"a", "b"} {
		r.want(r.do("POST", "/v1/tasks", `{"id":"`+id+`","topic":"x","group":"g"}`), 201)
	}
	ready := func() int {
		return int(r.want(r.do("GET", "/v1/topics/x", ""), 200)["counts"].(map[string]any)["ready"].(float64))
	}
	r.until("ready", 2, ready)
	r.reserve("x", `{"max":2}`, 1)
	if got := r.want(r.do("GET", "/v1/topics/x", ""), 200)["counts"].(map[string]any); fmt.Sprint(got["ready"], got["blocked"], got["strays"]) != "1 1 0" {
		t.Errorf("counts: %v", got)
	}
	if got := r.want(r.do("PATCH", "/v1/topics/x", `{"concurrency_per_group":null}`, "Content-Type: application/merge-patch+json"), 200)["concurrency_per_group"]; fmt.Sprint(got) != "0" {
		t.Errorf("taken away: %v", got)
	}
	r.reserve("x", `{"max":2}`, 1)
	for _, bad := range []string{"-1", "10001", `"1"`, "1.5"} {
		r.refused(r.do("PUT", "/v1/topics/x", `{"concurrency_per_group":`+bad+`}`), 422, "invalid", "concurrency_per_group")
	}
}
