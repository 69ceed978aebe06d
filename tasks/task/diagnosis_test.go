package task

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// A cause is told before what follows of it; what is known of a part is told as that.
func TestDiagnosis(t *testing.T) {
	at := time.Date(2026, 11, 29, 2, 0, 0, 0, time.UTC)
	live := func(name string) Node {
		return Node{Name: name, Live: true, Shards: 16, Held: 16, Status: &NodeStatus{}}
	}
	self := live("n1")
	self.Self = true
	well := Readiness{Ready: true, LedgerOK: true}
	late := Topic{Name: "order.unpaid", Settings: TopicSettings{Kind: Pull}, Counts: Counts{Ready: 3, OverdueCounts: OverdueCounts{Overdue: 3, OverdueOldest: at.Add(-5 * time.Second)}}}
	failing := Topic{Name: "coupon", LastError: "HTTP 503", Counts: Counts{FailedRecent: 1, OverdueCounts: OverdueCounts{OverdueOldest: at.Add(-500 * time.Millisecond)}}}
	paused := Topic{Name: "p", Settings: TopicSettings{Paused: true}, Counts: Counts{Ready: 1, OverdueCounts: OverdueCounts{Overdue: 1, OverduePaused: 1, OverdueOldest: at.Add(-time.Hour)}, Dead: 2}}
	silent := Node{Name: "n3", Silent: 40 * time.Second, Shards: 16}
	owner := silent
	owner.Held = 2
	unknown := func(name string) Node {
		n := live(name)
		n.Unknown, n.Silent = true, 7*time.Second
		return n
	}
	down := Readiness{Ready: true, Condition: "no answer in 5s", Stalled: 7 * time.Second}
	catching := live("n2")
	catching.Status = &NodeStatus{Catching: true}
	draining, cutOff, quiet, spools, stale := live("n2"), live("n2"), silent, silent, silent
	spools.Spools = true
	stale.Live, stale.Quiet, stale.Status = true, true, &NodeStatus{Unsure: true, Catching: true}
	draining.Status, cutOff.Status = &NodeStatus{Draining: true}, &NodeStatus{Unsure: true}
	quiet.Live, quiet.Quiet = true, true
	missing := func(node string) Reach {
		return Reach{Missing: []*NodeError{{Node: node, Err: errors.New("no answer")}}}
	}
	for name, c := range map[string]struct {
		sight    Sight
		headline string
		kinds    string
	}{
		"well":    {Sight{Readiness: well, Nodes: []Node{self, live("n2")}}, "Nothing is late.", ""},
		"late":    {Sight{Readiness: well, Nodes: []Node{self}, Topics: []Topic{late}}, "order.unpaid is late.", "late"},
		"several": {Sight{Readiness: well, Topics: []Topic{late, late, failing}}, "2 topics are late; coupon is failing.", "late late failing"},
		"more":    {Sight{Readiness: well, Topics: []Topic{late, late}, More: true}, "At least 2 topics are late.", "late late"},
		"no more": {Sight{Readiness: well, Topics: []Topic{late, late, {}}, More: true}, "2 topics are late.", "late late"},
		"notes":   {Sight{Readiness: well, Topics: []Topic{paused}}, "Nothing is late.", "dead paused"},
		"adopted": {Sight{Readiness: well, Nodes: []Node{self, silent}, Topics: []Topic{late}}, "n3 is down, and others have its tasks; order.unpaid is late.", "adopted late"},
		"waits": {Sight{Readiness: well, Nodes: []Node{self, owner}, Reach: missing("n3"), Topics: []Topic{late}},
			"n3 is down, and its tasks wait; order.unpaid is late.", "silent late"},
		"ledger": {Sight{Readiness: down, Nodes: []Node{self, unknown("n2"), unknown("n3")}, Reach: missing("n3"), Topics: []Topic{late}},
			"The ledger does not answer; nothing is known of n2 and n3; order.unpaid is late.", "ledger unknown unknown late"},
		"ledger, and no write has shown it yet": {Sight{Readiness: well, Nodes: []Node{self, unknown("n2"), unknown("n3")}, Reach: missing("n3"), Topics: []Topic{late}},
			"The ledger does not answer; nothing is known of n2 and n3; order.unpaid is late.", "ledger unknown unknown late"},
		"unheard":  {Sight{Readiness: well, Nodes: []Node{self, live("n2")}, Reach: missing("n2")}, "n2 does not answer.", "unheard"},
		"nameless": {Sight{Readiness: well, Nodes: []Node{self}, Reach: missing("")}, "The rest of the fleet does not answer.", "unheard"},
		"catching": {Sight{Readiness: well, Nodes: []Node{self, catching}, Reach: Reach{Missing: []*NodeError{{Node: "n2", Err: ErrReplaying}}}},
			"Nothing is late among the tasks that are read so far.", "replaying"},
		"catching, and no heartbeat says so": {Sight{Readiness: well, Nodes: []Node{self, live("n2")}, Reach: Reach{Missing: []*NodeError{{Node: "n2", Err: ErrReplaying}}}},
			"Nothing is late among the tasks that are read so far.", "replaying"},
		"spool": {Sight{Readiness: well, Nodes: []Node{self, spools}, Reach: missing("n3")}, "n3 is down, and its tasks wait.", "silent"},
		"stale": {Sight{Readiness: well, Nodes: []Node{self, stale}}, "n3 is down, and its tasks wait.", "silent"},
		"two nameless": {Sight{Readiness: well, Nodes: []Node{self}, Reach: Reach{Missing: []*NodeError{{Err: errors.New("a")}, {Node: "n2", Err: errors.New("b")}}}},
			"The rest of the fleet and n2 do not answer.", "unheard unheard"},
		"catching and unheard": {Sight{Readiness: well, Nodes: []Node{self, catching}, Reach: missing("n2")}, "n2 does not answer.", "unheard replaying"},
		"draining and unheard": {Sight{Readiness: well, Nodes: []Node{self, draining}, Reach: missing("n2")}, "n2 does not answer.", "unheard draining"},
		"quiet":                {Sight{Readiness: well, Nodes: []Node{self, quiet}}, "n3 is down, and its tasks wait.", "silent"},
		"cut off":              {Sight{Readiness: well, Nodes: []Node{self, cutOff}}, "n2 is cut off from the ledger.", "cut_off"},
		"more notes":           {Sight{Readiness: well, Topics: []Topic{late, late, paused}, More: true}, "2 topics are late.", "late late dead paused"},
		"full":                 {Sight{Readiness: Readiness{Condition: "no space left"}, Nodes: []Node{self}}, "The ledger takes no new tasks.", "refusing"},
		"unasked":              {Sight{Readiness: well, Reach: missing("")}, "The rest of the fleet does not answer.", "unheard"},
		"ahead":                {Sight{Readiness: well, Nodes: []Node{self}, Peaks: []Peak{{At: at.Add(time.Hour)}, {At: at.Add(-time.Hour), Wait: time.Hour}}, Topics: []Topic{paused}}, "Nothing is late.", "ahead dead paused"},
		"behind":               {Sight{Readiness: well, Nodes: []Node{self}, Peaks: []Peak{{At: at.Add(-time.Hour), Wait: time.Hour}}}, "Nothing is late.", ""},
		"five": {Sight{Readiness: down, Nodes: []Node{self, unknown("a"), unknown("b"), unknown("c"), unknown("d"), unknown("e")}},
			"The ledger does not answer; nothing is known of a, b, c and 2 more nodes.", "ledger unknown unknown unknown unknown unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			c.sight.At = at
			d := c.sight.Diagnose()
			var kinds []string
			for _, x := range d.Troubles {
				kinds = append(kinds, string(x.Kind))
			}
			if d.Headline != c.headline || strings.Join(kinds, " ") != c.kinds {
				t.Errorf("%q, %v", d.Headline, kinds)
			}
		})
	}
	s := Sight{At: at, Readiness: down, Nodes: []Node{silent}}
	if d := s.Diagnose(); !d.Troubles[1].Since.Equal(at.Add(-40*time.Second)) || !d.Troubles[0].Since.Equal(at.Add(-7*time.Second)) || d.Troubles[0].Detail != "no answer in 5s" {
		t.Errorf("%+v", d)
	}
	s = Sight{At: at, Readiness: well, Nodes: []Node{self, unknown("n2")}}
	if d := s.Diagnose(); !d.Troubles[0].Since.Equal(at.Add(-7 * time.Second)) {
		t.Errorf("%+v", d)
	}
	for _, fleet := range []struct {
		nodes []Node
		text  string
	}{{nil, "Which nodes there are is not known."}, {[]Node{self}, "One node, and it is live."}, {[]Node{self, live("n2")}, "All 2 nodes are there."}} {
		s := Sight{At: at, Readiness: well, Nodes: fleet.nodes, Topics: []Topic{late}}
		if d := s.Diagnose(); d.Fleet != fleet.text {
			t.Errorf("of %d nodes it says %q", len(fleet.nodes), d.Fleet)
		}
	}
}

// A topic whose attempts fail says since when, and how many have succeeded.
func TestFailingTopic(t *testing.T) {
	at := time.Date(2026, 11, 29, 2, 0, 0, 0, time.UTC)
	oldest := at.Add(-33 * time.Minute)
	retries := OverdueCounts{Overdue: 214, OverdueRetrying: 214, OverdueOldest: oldest}
	for name, c := range map[string]struct {
		topic  Topic
		kinds  string
		detail string // of what fails
		since  time.Time
	}{
		"all fail": {Topic{LastError: "HTTP 503", Counts: Counts{FailedRecent: 1900, OverdueCounts: retries}}, "late failing",
			"0 of 1900 attempts of the last 5 minutes succeeded: HTTP 503", oldest},
		"some fail":   {Topic{Counts: Counts{FailedRecent: 1, DeliveredRecent: 2}}, "failing", "2 of 3 attempts of the last 5 minutes succeeded", time.Time{}},
		"none lately": {Topic{Counts: Counts{OverdueCounts: retries}}, "late failing", "no attempt in the last 5 minutes", oldest},
		"paused":      {Topic{Settings: TopicSettings{Paused: true}, Counts: Counts{OverdueCounts: retries}}, "paused", "", time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			var kinds []string
			for _, x := range c.topic.Troubles(at) {
				kinds = append(kinds, string(x.Kind))
				if x.Kind == TroubleFailing && (x.Detail != c.detail || !x.Since.Equal(c.since)) {
					t.Errorf("%+v", x)
				}
			}
			if strings.Join(kinds, " ") != c.kinds {
				t.Errorf("%v, want %s", kinds, c.kinds)
			}
		})
	}
}
