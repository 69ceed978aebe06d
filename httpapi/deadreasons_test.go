package httpapi

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	"github.com/lapsehq/lapse/tasks"
)

// reasonsOf asks for reasons, and returns them with what was looked at.
func (r *rig) reasonsOf(path string) string {
	r.Helper()
	v := r.want(r.do("GET", path, ""), 200)
	var all []string
	for _, one := range v["reasons"].([]any) {
		m := one.(map[string]any)
		if m["first_died_at"].(string) > m["last_died_at"].(string) {
			r.Errorf("%s: %v", path, m)
		}
		all = append(all, fmt.Sprintf("%v %v %v: %v", m["count"], m["topic"], m["reason"], m["error"]))
	}
	return fmt.Sprintf("%q %v %v %v %v %v", all, v["left_out"], v["looked_at"], v["dead"], v["complete"], v["covers"])
}

// dies schedules a task and buries it.
func (r *rig) dies(id, topic, reason string) {
	r.Helper()
	r.want(r.do("POST", "/v1/tasks", fmt.Sprintf(`{"id":%q,"topic":%q,"group":"g%s"}`, id, topic, topic)), 201)
	receipt := receiptOf(r.reserve(topic, `{"wait":"60s"}`, 1)[0])
	r.want(r.do("POST", "/v1/receipts/bury", fmt.Sprintf(`{"receipts":[%q],"reason":%q}`, receipt, reason)), 200)
}

// The dead tasks of all nodes are counted at any of them, and each reason selects its tasks.
func TestDeadReasons(t *testing.T) {
	fleet := memfleet.New()
	var all []*rig
	for _, name := range []string{"n1", "n2"} {
		all = append(all, newRigOn(t, fleet.Join(name, 2), tasks.Config{Node: name}, Config{Log: slog.New(slog.DiscardHandler)}))
	}
	for i := range 6 {
		all[i%2].dies(fmt.Sprint("order-", i), "order", fmt.Sprintf("order %d: HTTP 503", i))
	}
	all[0].dies("m", "mail", "")
	for _, r := range all {
		for path, want := range map[string]string{
			"/v1/dead/reasons":                                 `["6 order buried: order #: HTTP 503" "1 mail buried: buried"] 0 7 7 true [n1 n2]`,
			"/v1/dead/reasons?limit=1":                         `["6 order buried: order #: HTTP 503"] 1 7 7 true [n1 n2]`,
			"/v1/dead/reasons?group=gmail":                     `["1 mail buried: buried"] 0 7 7 true [n1 n2]`,
			"/v1/topics/order/dead/reasons?error=503":          `["6 order buried: order #: HTTP 503"] 0 6 6 true [n1 n2]`,
			"/v1/topics/order/dead/reasons?reason=exhausted":   `[] 0 6 6 true [n1 n2]`,
			"/v1/topics/none/dead/reasons":                     `[] 0 0 0 true [n1 n2]`,
			"/v1/dead/reasons?died_to=2020-01-01T00:00:00Z":    `[] 0 0 7 true [n1 n2]`,
			"/v1/topics/order/dead/reasons?error_like=order+1": `[] 0 6 6 true [n1 n2]`,
		} {
			if got := r.reasonsOf(path); got != want {
				t.Errorf("%s: %s, want %s", path, got, want)
			}
		}
	}
	own := all[0].reasonsOf("/v1/topics/order/dead/reasons?scope=node")
	if own != `["3 order buried: order #: HTTP 503"] 0 3 3 true [n1]` {
		t.Errorf("at one node %s", own)
	}
	for query, field := range map[string]string{"limit=51": "limit", "reason=x": "reason", "group=%21": "group", "died_from=now": "died_from"} {
		all[0].refused(all[0].do("GET", "/v1/dead/reasons?"+query, ""), 422, "invalid", field)
	}
	m, d, _ := all[1].actions(`{"action":"requeue","filter":{"topic":"order","reason":"buried","error_like":"order #: HTTP 503"}}`)
	if m != 6 || d != 6 {
		t.Errorf("%v selected, %v requeued", m, d)
	}
}
