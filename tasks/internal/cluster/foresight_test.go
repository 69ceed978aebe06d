package cluster_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// What falls due is judged by the best minute that any node has shown, also once that node has
// begun anew or is dead; and a diagnosis tells of a peak that will wait, if tasks have waited
// before.
func TestForecastIsJudged(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, fleet *rig.Fleet) {
		a, b := fleet.Nodes[0], fleet.Nodes[1]
		ahead := func(n *rig.Node) bool {
			t.Helper()
			_, _, err := n.Admin().Diagnose(t.Context()) // which has it judged
			rig.Want(t, "Diagnose", err, nil)
			rig.Pass(5 * time.Second)
			d, _, err := n.Admin().Diagnose(t.Context())
			rig.Want(t, "Diagnose", err, nil)
			told := slices.ContainsFunc(d.Troubles, func(x Trouble) bool { return x.Kind == TroubleAhead && strings.Contains(x.Detail, "300 tasks") })
			if wait := n.Stats().ForecastWait; wait > time.Minute != told {
				t.Errorf("told: %v, ForecastWait is %v", told, wait)
			}
			return told
		}
		judge := func(ctx context.Context, n *rig.Node, topic string) Foresight {
			t.Helper()
			f, _, err := n.Admin().FleetForecast(ctx, Outlook{Topic: topic, Window: 12 * time.Hour, Step: time.Hour})
			rig.Want(t, "FleetForecast", err, nil)
			return f.Judgement
		}
		if j := judge(t.Context(), a, ""); j.Rate.Delivered != 0 || !strings.Contains(j.Text, "No rate") {
			t.Errorf("before anything was delivered: %+v", j)
		}
		for range 60 { // overdue when they are pulled: receivers are the limit
			_, err := b.Schedule(t.Context(), Request{Topic: "t"})
			rig.Want(t, "Schedule", err, nil)
		}
		for range 300 {
			_, err := b.Schedule(t.Context(), Request{Topic: "t", Delay: 10 * time.Hour})
			rig.Want(t, "Schedule", err, nil)
		}
		rig.Pass(5 * time.Minute)
		ds, err := b.Reserve(t.Context(), "t", 60, 0, time.Minute)
		rig.Want(t, "Reserve", err, nil)
		for _, d := range ds {
			b.Ack(d)
		}
		rig.Pass(3 * time.Minute)
		want := func(when string, n *rig.Node) {
			t.Helper()
			for _, topic := range []string{"", "t"} {
				j := judge(t.Context(), n, topic)
				if j.Rate.Delivered != 60 || !j.Rate.Limit || len(j.Peaks) != 1 || j.Peaks[0].Tasks != 300 || j.Peaks[0].Spread != 5*time.Minute {
					t.Errorf("%s, of topic %q: %+v", when, topic, j)
				}
			}
			if j := judge(t.Context(), n, "other"); j.Rate.Delivered != 0 || len(j.Peaks) != 0 {
				t.Errorf("%s, of another topic: %+v", when, j)
			}
			own := WithGrant(t.Context(), &Grant{Topics: []string{"t"}})
			if j := judge(own, n, ""); j.Rate.Delivered != 0 {
				t.Errorf("%s, of some topics: %+v", when, j)
			}
			if !ahead(n) {
				t.Errorf("%s the diagnosis does not tell of the peak", when)
			}
		}
		want("at the other node", a)
		b.Stop()
		b.Restart()
		rig.Pass(3 * time.Minute)
		want("after a restart", b)
		b.Crash()
		rig.Pass(3 * time.Minute)
		f, _, err := a.Admin().FleetForecast(t.Context(), Outlook{Window: 12 * time.Hour, Step: time.Hour})
		rig.Want(t, "FleetForecast", err, nil)
		if j := f.Judgement; j.Rate.Delivered != 60 || f.Complete || !strings.Contains(j.Text, "not all tasks are in it") {
			t.Errorf("after a crash: %+v", f)
		}
		own, err := a.Admin().Forecast(t.Context(), Outlook{Window: 12 * time.Hour, Step: time.Hour})
		if rig.Want(t, "Forecast", err, nil); own.Judgement.Rate.Delivered != 0 {
			t.Errorf("a node alone, which has delivered nothing, is judged by %+v", own.Judgement.Rate)
		}
	})
}

// Each node looks at its tasks once for all that ask within a second, and each forecast has them
// once.
func TestPartsOfAForecastAreShared(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, fleet *rig.Fleet) {
		sum := func(when string, want int64, of ...string) {
			t.Helper()
			for _, n := range fleet.Nodes {
				f, _, err := n.Admin().FleetForecast(WithGrant(t.Context(), &Grant{Topics: of}), Outlook{Window: 2 * time.Hour, Step: time.Hour})
				if rig.Want(t, "FleetForecast", err, nil); f.Counts[1] != want {
					t.Errorf("%s, at %s: %v fall due, want %d", when, n.Name, f.Counts, want)
				}
			}
		}
		add := func() {
			for _, n := range fleet.Nodes {
				_, err := n.Schedule(t.Context(), Request{Topic: "t", Delay: 90 * time.Minute})
				rig.Want(t, "Schedule", err, nil)
			}
		}
		add()
		sum("at first", 3)
		add()
		sum("within the second", 3)
		sum("of other topics", 0, "u")
		sum("of another query", 6, "*")
		time.Sleep(time.Second)
		sum("a second later", 6)
	})
}
