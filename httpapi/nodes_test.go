package httpapi

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	"github.com/lapsehq/lapse/tasks"
)

// A server whose ledger is not shared is its only node, and has no node to hand tasks to.
func TestOneNode(t *testing.T) {
	r := newRigWith(t, tasks.Config{Node: "n1"}, Config{Version: "1.2.3"})
	r.want(r.do("POST", "/v1/tasks", `{"id":"a","topic":"x","delay":"1h"}`), 201)
	list := r.want(r.do("GET", "/v1/nodes", ""), 200)["nodes"].([]any)
	if len(list) != 1 {
		t.Fatalf("got %v", list)
	}
	n := list[0].(map[string]any)
	if n["name"] != "n1" || n["self"] != true || n["state"] != "live" || n["version"] != "1.2.3" || n["status"].(map[string]any)["pending"] != 1.0 {
		t.Errorf("got %v", n)
	}
	one := r.want(r.do("GET", "/v1/nodes/n1", ""), 200)
	if one["name"] != "n1" || one["version"] != "1.2.3" || one["status"].(map[string]any)["pending"] != 1.0 {
		t.Errorf("got %v", one)
	}
	r.refused(r.do("GET", "/v1/nodes/n2", ""), 404, "node_not_found", "")
	r.refused(r.do("GET", "/v1/tasks?node=n2", ""), 404, "node_not_found", "")
	if list := r.want(r.do("GET", "/v1/tasks?node=n1", ""), 200)["tasks"].([]any); len(list) != 1 {
		t.Errorf("listed by its node: %v", list)
	}
	r.refused(r.do("POST", "/v1/nodes/n1/drain", ""), 409, "nobody_to_take_over", "")
	r.refused(r.do("POST", "/v1/nodes/n2/drain", ""), 404, "node_not_found", "")
	r.want(r.do("POST", "/v1/tasks", `{"id":"b","topic":"x","delay":"1h"}`), 201)
	if state := r.want(r.do("GET", "/readyz", ""), 200); state["draining"] != false {
		t.Errorf("got %v", state)
	}
}

// fleetOf makes servers that share a ledger.
func fleetOf(t *testing.T, fleet *memfleet.Fleet, names ...string) []*rig {
	t.Helper()
	var all []*rig
	for _, name := range names {
		all = append(all, newRigOn(t, fleet.Join(name, 4), tasks.Config{Node: name}, Config{Log: slog.New(slog.DiscardHandler)}))
	}
	return all
}

// nodesOf asks a server for the nodes, by name.
func (r *rig) nodesOf() map[string]map[string]any {
	r.Helper()
	all := map[string]map[string]any{}
	for _, n := range r.want(r.do("GET", "/v1/nodes", ""), 200)["nodes"].([]any) {
		one := n.(map[string]any)
		all[one["name"].(string)] = one
	}
	return all
}

func TestNodes(t *testing.T) {
	fleet := memfleet.New()
	all := fleetOf(t, fleet, "n1", "n2")
	dead := fleet.Join("n3", 4)
	dead.Crash()
	all[1].want(all[1].do("POST", "/v1/tasks", `{"topic":"x","delay":"1h"}`), 201)
	nodes := all[0].nodesOf()
	if len(nodes) != 3 || nodes["n1"]["self"] != true || nodes["n2"]["self"] != false || nodes["n2"]["state"] != "live" || nodes["n3"]["state"] != "silent" {
		t.Fatalf("got %v", nodes)
	}
	if nodes["n2"]["status"].(map[string]any)["pending"] != 1.0 || nodes["n3"]["status"] != nil {
		t.Errorf("got %v", nodes)
	}
	if s := nodes["n1"]["shards"].(map[string]any); s["own"] != 4.0 || s["held"] != 4.0 || s["adopted"] != 0.0 {
		t.Errorf("got %v", s)
	}
	all[0].refused(all[0].do("POST", "/v1/nodes/n3/drain", ""), 503, "node_unavailable", "")
}

// A call about many tasks covers the tasks of all nodes, or answers a problem that names the
// missing node and says what was done.
func TestAllNodes(t *testing.T) {
	t.Parallel()
	fleet := memfleet.New()
	var all []*rig
	var members []*memfleet.Member
	for _, name := range []string{"n1", "n2"} {
		members = append(members, fleet.Join(name, 2))
		all = append(all, newRigOn(t, members[len(members)-1], tasks.Config{Node: name, AnswerWithin: 500 * time.Millisecond}, Config{Log: slog.New(slog.DiscardHandler)}))
	}
	schedule := func() {
		t.Helper()
		for _, r := range all {
			r.want(r.do("POST", "/v1/tasks", `{"topic":"x","group":"g","delay":"1h"}`), 201)
		}
	}
	schedule()
	if got := all[0].want(all[0].do("GET", "/v1/groups/g", ""), 200)["tasks"].([]any); len(got) != 2 {
		t.Errorf("got %v", got)
	}
	all[1].refused(all[1].do("DELETE", "/v1/topics/x", ""), 409, "topic_in_use", "")
	if got := all[1].want(all[1].do("DELETE", "/v1/groups/g", ""), 200); got["cancelled"] != 2.0 {
		t.Errorf("got %v", got)
	}
	schedule()
	gone := fleet.Join("n3", 2)
	if _, err := gone.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone.Crash()
	for _, path := range []string{"/v1/tasks", "/v1/groups/g", "/v1/topics/x/dead"} {
		all[0].refused(all[0].do("GET", path, ""), 503, "node_unavailable", "")
	}
	got := all[0].want(all[0].do("DELETE", "/v1/groups/g", ""), 503)
	if detail, _ := got["detail"].(string); got["done"] != 2.0 || !strings.Contains(detail, "node n3") {
		t.Errorf("got %v", got)
	}
	members[1].AdoptFrom(gone)
	if got := all[0].want(all[0].do("DELETE", "/v1/groups/g", ""), 200); got["cancelled"] != 0.0 {
		t.Errorf("got %v", got)
	}
}

// A node that is drained by another one takes nothing new, is not ready, and says when
// nothing is left.
func TestDrain(t *testing.T) {
	t.Parallel()
	all := fleetOf(t, memfleet.New(), "n1", "n2")
	n1, n2 := all[0], all[1]
	n2.want(n2.do("POST", "/v1/tasks", `{"id":"a","topic":"x","delay":"1h"}`), 201)
	for range 2 { // repeated, it does no harm
		n1.want(n1.do("POST", "/v1/nodes/n2/drain", ""), 202)
	}
	<-n2.scheduler.Admin().Drained()
	n2.refused(n2.do("POST", "/v1/tasks", `{"id":"b","topic":"x","delay":"1h"}`), 503, "draining", "")
	if state := n2.want(n2.do("GET", "/readyz", ""), 503); state["draining"] != true || state["ready"] != false {
		t.Errorf("got %v", state)
	}
	nodes := n1.nodesOf()
	if s := nodes["n1"]["shards"].(map[string]any); nodes["n2"]["state"] != "draining" || s["adopted"] != 4.0 {
		t.Errorf("got %v", nodes)
	}
	n1.want(n1.do("GET", "/v1/tasks/a", ""), 200)
	// Now no node is left that could take over.
	n1.refused(n1.do("POST", "/v1/nodes/n1/drain", ""), 409, "nobody_to_take_over", "")
}

// A list by node has the tasks of that node alone, at any node.
func TestListByNode(t *testing.T) {
	all := fleetOf(t, memfleet.New(), "n1", "n2")
	for _, r := range all {
		r.until("the status of /readyz", 200, func() int { return r.do("GET", "/readyz", "").status })
	}
	all[0].want(all[0].do("POST", "/v1/tasks", `{"topic":"x","delay":"1h","payload":1}`), 201)
	for range 2 {
		all[1].want(all[1].do("POST", "/v1/tasks", `{"topic":"x","delay":"1h","payload":2}`), 201)
	}
	for _, r := range all {
		for node, count := range map[string]int{"n1": 1, "n2": 2} {
			list := r.want(r.do("GET", "/v1/tasks?node="+node, ""), 200)["tasks"].([]any)
			if len(list) != count {
				t.Errorf("%s has %v", node, list)
			}
		}
	}
}
