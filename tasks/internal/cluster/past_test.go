package cluster_test

import (
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// pastOf sums up what a node answers.
func pastOf(t *testing.T, n *rig.Node, q PastQuery) (scheduled int64, p Past) {
	t.Helper()
	p, _, err := n.Admin().FleetPast(t.Context(), q)
	rig.Want(t, "FleetPast", err, nil)
	if p.Unread != nil {
		t.Errorf("the ledger: %v", p.Unread)
	}
	for i := range p.Points {
		scheduled += p.Points[i].Scheduled
	}
	return scheduled, p
}

// What nodes have counted stays in the past when they are restarted or dead, by the minute and by
// the hour, of all topics and of one. A restarted node does not count twice. Marks say what has
// happened.
func TestPastSurvives(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		began := time.Now()
		schedule := func(n *rig.Node, topic string) {
			t.Helper()
			_, err := n.Schedule(t.Context(), Request{Topic: topic, Delay: 90 * 24 * time.Hour})
			rig.Want(t, "Schedule", err, nil)
		}
		want := func(when string, n *rig.Node, scheduled, ofTopic int64) {
			t.Helper()
			for _, q := range []PastQuery{{From: began}, {From: began, Step: time.Hour}, {From: began, Topic: "t"}, {From: began, Topic: "t", Step: time.Hour}} {
				wanted := scheduled
				if q.Topic != "" {
					wanted = ofTopic
				}
				got, p := pastOf(t, n, q)
				if got != wanted {
					t.Errorf("%s, %+v: %d were scheduled, want %d", when, q, got, wanted)
				}
				if nodes := p.Points[0].Nodes; nodes != 2 {
					t.Errorf("%s, %+v: the first point is of %d nodes, want 2", when, q, nodes)
				}
			}
		}
		schedule(a, "t")
		schedule(b, "t")
		schedule(b, "other")
		want("at once", a, 3, 2)
		rig.Pass(3 * time.Minute)
		want("minutes later", b, 3, 2)
		schedule(a, "t")
		a.Stop()
		a.Restart()
		schedule(a, "t")
		rig.Pass(90 * time.Minute)
		want("after a restart", a, 5, 4)
		want("after a restart of the other node", b, 5, 4)
		b.Crash()
		rig.Pass(2 * time.Minute)
		want("after a crash", a, 5, 4)
		_, p := pastOf(t, a, PastQuery{})
		if last := p.Points[len(p.Points)-1]; last.Nodes != 1 {
			t.Errorf("the last point is of %d nodes, want 1", last.Nodes)
		}
		_, p = pastOf(t, a, PastQuery{From: began})
		var kinds []MarkKind
		for _, m := range p.Marks {
			kinds = append(kinds, m.Kind)
		}
		if n := len(kinds); n < 4 {
			t.Errorf("the marks are %v", kinds)
		}
		rig.Pass(48 * time.Hour)
		if scheduled, p := pastOf(t, a, PastQuery{From: began, To: began.Add(time.Hour)}); scheduled != 0 || len(p.Points) != 0 {
			t.Errorf("two days later %d are in the first minutes", scheduled)
		}
		if scheduled, _ := pastOf(t, a, PastQuery{From: began, Step: time.Hour}); scheduled != 5 {
			t.Errorf("two days later %d are in the hours, want 5", scheduled)
		}
	})
}

// A query that makes no sense names its field.
func TestPastRefuses(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		now := time.Now()
		for field, q := range map[string]PastQuery{
			"step":  {Step: time.Second},
			"topic": {Topic: "no topic"},
			"from":  {From: now.Add(-26*time.Hour - time.Minute), To: now},
		} {
			_, err := r.Admin().Past(t.Context(), q)
			rig.Want(t, field, err, ErrInvalid)
		}
	})
}

// However many callers ask for the same past, the ledger is read once for all of them, as long as
// the same processes answer. What they do with the answer is their own.
func TestPastIsReadOnce(t *testing.T) {
	rig.FleetBubble(t, 1, func(t *testing.T, f *rig.Fleet) {
		n := f.Nodes[0]
		began := time.Now()
		_, err := n.Schedule(t.Context(), Request{Topic: "t", Delay: time.Hour})
		rig.Want(t, "Schedule", err, nil)
		rig.Pass(2 * time.Minute)
		_, first := pastOf(t, n, PastQuery{From: began})
		first.Marks = append(first.Marks[:0], Mark{Kind: "changed"})
		// It is no mark of an answer that is kept.
		n.Admin().Record(AuditEntry{Verb: "pause", Topic: "t"})
		_, again := pastOf(t, n, PastQuery{From: began})
		if len(again.Marks) != 1 || again.Marks[0].Kind != "node_started" {
			t.Errorf("the marks are %+v", again.Marks)
		}
		rig.Pass(6 * time.Second)
		if _, later := pastOf(t, n, PastQuery{From: began}); len(later.Marks) != 2 {
			t.Errorf("later they are %+v", later.Marks)
		}
	})
}
