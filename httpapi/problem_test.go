package httpapi

import (
	"encoding/json"
	"testing"
)

// What is said of parameters is said as of fields.
func TestWhatParametersMustBe(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct{ query, field, problem string }{
		{"topics?scope=all", "scope", "must be fleet or node"},
		{"topics?sort=best", "sort", "must be name, worst, late, failed, dead, ready, pending or paused"},
		{"topics?limit=0", "limit", "must be an integer from 1 to 1000"},
		{"topics?limit=1e3", "limit", "must be an integer from 1 to 1000"},
		{"history?minutes=61", "minutes", "must be an integer from 1 to 60"},
		{"stats?topics=some", "topics", "must be true or false"},
		{"events?kind=dead&kind=died", "kind", "must be scheduled, started, delivered, retried, dead, cancelled, skipped, rescued or due"},
		{"tasks?state=gone", "state", "must be pending, retrying, held, ready, delivering, dead or finished"},
		{"topics?scope=node&scope=fleet", "scope", "is given twice"},
		{"tasks?topic=a&limit=1&topic=a", "topic", "is given twice"},
		{"tasks?status=ready", "status", "is not a known parameter"},
	} {
		a := r.do("GET", "/v1/"+c.query, "")
		r.refused(a, 422, "invalid", c.field)
		var p Problem
		if err := json.Unmarshal(a.body, &p); err != nil || len(p.Errors) != 1 || p.Errors[0].Problem != c.problem {
			t.Errorf("%s is answered %s, want %q", c.query, a.body, c.problem)
		}
	}
}
