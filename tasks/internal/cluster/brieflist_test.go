package cluster_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A brief list has the same tasks without what is large of them, on one node and from all nodes.
// What is left out does not travel between nodes, and an error is found by a part that is cut off.
func TestBriefList(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		large := []byte(`"` + strings.Repeat("x", 1000) + `"`)
		reason := strings.Repeat("y", 2*MaxBriefError) + " at last"
		a := f.Join("a", 1, Config{})
		ask := func(what string, ids ...string) {
			t.Helper()
			for _, q := range []Query{{Topic: "live", Error: "AT LAST"}, {Topic: "dead", State: Dead, Error: "at last"}} {
				q.Brief = true
				page, err := a.List(t.Context(), q)
				var want []string
				for _, id := range ids {
					want = append(want, q.Topic+id)
				}
				if got := rig.IDsOf(page.Tasks); err != nil || !slices.Equal(got, want) {
					t.Fatalf("%s: %q, %v; want %q", what, got, err, want)
				}
				for _, v := range page.Tasks {
					if v.Payload != nil || v.Headers != nil || v.Attempts != nil || v.LastError != reason[:MaxBriefError] || v.Topic != q.Topic || v.Attempt != 1 {
						t.Errorf("%s: %+v", what, v)
					}
				}
			}
		}
		fail := func(n *rig.Node, topic, id string, v Verdict) {
			t.Helper()
			n.Create(Request{ID: id, Topic: topic, Payload: large, Headers: map[string]string{"k": "v"}})
			rig.Pass(0)
			v.Reason = reason
			answers, err := n.Settle(t.Context(), v, []string{n.PullOwn(topic, id)[0].Receipt()})
			if err != nil || answers[0].Err != nil {
				t.Fatalf("settle: %v, %+v", err, answers)
			}
		}
		fail(a, "live", "live1", Verdict{Verb: Release, Delay: rig.Ptr(time.Hour)})
		fail(a, "dead", "dead1", Verdict{Verb: Bury})
		ask("one node", "1")

		b := f.Join("b", 1, Config{})
		rig.Pass(time.Second)
		fail(b, "live", "live2", Verdict{Verb: Release, Delay: rig.Ptr(time.Hour)})
		fail(b, "dead", "dead2", Verdict{Verb: Bury})
		travels := 0
		f.Lose(func(_, _ string, message []byte) bool {
			if bytes.Contains(message, []byte(`"Payload":"`)) {
				travels++
			}
			return false
		})
		ask("two nodes", "1", "2")
		if travels > 0 {
			t.Error("payloads have come from the other node")
		}
	})
}
