package httpapi

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	"github.com/lapsehq/lapse/tasks"
)

// figurePaths are the routes of figures.
var figurePaths = []string{
	"/v1/stats", "/v1/stats?topics=false", "/v1/topics", "/v1/topics?sort=worst&search=X", "/v1/topics/x", "/v1/history", "/v1/forecast?window=2h&step=2h",
}

// scoped adds a scope to a path.
func scoped(path, scope string) string {
	if strings.Contains(path, "?") {
		return path + "&scope=" + scope
	}
	return path + "?scope=" + scope
}

// figuresOf asks a server for figures of the topic x, which has the only tasks, and returns how
// many are pending, and which nodes the answer covers and misses.
func (r *rig) figuresOf(path string) string {
	r.Helper()
	v := r.want(r.do("GET", path, ""), 200)
	pending := v["total"]
	switch {
	case v["topics"] != nil && pending == nil:
		pending = v["topics"].([]any)[0].(map[string]any)["counts"]
	case v["counts"] != nil && pending == nil:
		pending = v["counts"]
	}
	if points, ok := v["points"].([]any); ok {
		scheduled := 0.0
		for _, p := range points {
			scheduled += p.(map[string]any)["scheduled"].(float64)
		}
		pending = []any{scheduled}
	}
	var n any
	if steps, ok := pending.([]any); ok {
		n = steps[0]
	} else {
		n = pending.(map[string]any)["pending"]
	}
	return fmt.Sprint(n, " ", v["scope"], " ", v["covers"], " ", v["missing"])
}

// The figures of all nodes come from any node, and name the node that is missing. With scope=node
// they are those of the node that is asked.
func TestFiguresOfTheFleet(t *testing.T) {
	t.Parallel()
	fleet := memfleet.New()
	var all []*rig
	var members []*memfleet.Member
	for i, name := range []string{"n1", "n2", "n3"} {
		members = append(members, fleet.Join(name, 2))
		r := newRigOn(t, members[i], tasks.Config{Node: name}, Config{Log: slog.New(slog.DiscardHandler)})
		all = append(all, r)
	}
	for i, r := range all {
		for range i + 1 {
			r.want(r.do("POST", "/v1/tasks", `{"topic":"x","delay":"1h"}`), 201)
		}
	}
	for _, path := range figurePaths {
		for i, r := range all {
			if got := r.figuresOf(path); got != "6 fleet [n1 n2 n3] []" {
				t.Errorf("%s of n%d: %s", path, i+1, got)
			}
			own := scoped(path, "node")
			if got := r.figuresOf(own); got != fmt.Sprintf("%d node [n%d] []", i+1, i+1) {
				t.Errorf("%s: %s", own, got)
			}
		}
	}
	members[2].Crash()
	for _, path := range figurePaths {
		const wanted = "3 fleet [n1 n2] [map[error:no heartbeat node:n3]]"
		got := all[0].figuresOf(path)
		// Answers are used again for a second.
		for limit := time.After(time.Minute); got != wanted; got = all[0].figuresOf(path) {
			select {
			case <-limit:
				t.Fatalf("%s: %s", path, got)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
}

func TestScopeIsChecked(t *testing.T) {
	r := newRig(t)
	r.want(r.do("POST", "/v1/tasks", `{"topic":"x","delay":"1h"}`), 201)
	for _, path := range figurePaths {
		if got := r.figuresOf(path); got != "1 fleet [local] []" {
			t.Errorf("%s: %s", path, got)
		}
		a := r.do("GET", scoped(path, "all"), "")
		r.refused(a, 422, "invalid", "scope")
		if problem := string(a.body); !containsAll(problem, "fleet", "node") {
			t.Errorf("%s: %s", path, problem)
		}
	}
}

func containsAll(text string, parts ...string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}
