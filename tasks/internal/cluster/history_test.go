package cluster_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/task"
)

// wantHistory wants the past of all nodes to have what they have counted since their start, less
// than an hour ago, and perhaps more, which processes have counted that are gone.
func wantHistory(f *rig.Fleet, n *rig.Node, total Counts) {
	f.T.Helper()
	h, reach, err := n.Admin().FleetPast(f.T.Context(), PastQuery{})
	if rig.Want(f.T, "FleetPast", err, nil); len(reach.Missing) > 0 {
		f.T.Errorf("the history misses %v", reach.Missing)
	}
	var got Counts
	for i := range h.Points {
		m := &h.Points[i]
		sum(&got, Counts{Scheduled: m.Scheduled, Delivered: m.Delivered, Failed: m.Failed, DeathCounts: DeathCounts{Died: m.Died}, Cancelled: m.Cancelled, Lateness: Histogram{Counts: m.Lateness.Counts}})
		if i > 0 && m.At.Sub(h.Points[i-1].At) != time.Minute {
			f.T.Errorf("minute %d begins at %v, after %v", i, m.At, h.Points[i-1].At)
		}
	}
	pairs := [][2]int64{
		{total.Scheduled, got.Scheduled}, {total.Delivered, got.Delivered}, {total.Failed, got.Failed},
		{total.Died, got.Died}, {total.Cancelled, got.Cancelled},
	}
	for i, count := range total.Lateness.Counts {
		pairs = append(pairs, [2]int64{count, got.Lateness.Counts[i]})
	}
	for i, p := range pairs {
		if p[1] < p[0] {
			f.T.Errorf("figure %d of the history at %s is %d, less than %d of those that live", i, n.Name, p[1], p[0])
		}
	}
}

// Each minute has what happened in it, and after an hour it is forgotten.
func TestHistory(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		if err := r.Handle("fails", func(context.Context, *Delivery) error { return errors.New("down") }); err != nil {
			t.Fatal(err)
		}
		r.MustSetTopic("late", TopicSettings{Retry: Retry{MaxAttempts: 1}})
		began := time.Now()
		time.Sleep(30 * time.Second) // so that no boundary of a minute is near
		r.Must(Request{ID: "a", Topic: "late"})
		r.Must(Request{ID: "b", Topic: "late"})
		r.Must(Request{ID: "c", Topic: "late", Delay: time.Hour})
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "c"), nil)
		time.Sleep(2 * time.Minute)
		for _, verb := range []Verb{Ack, Release} {
			ds, err := r.Reserve(t.Context(), "late", 1, 0, time.Minute)
			if rig.Want(t, "Reserve", err, nil); len(ds) != 1 {
				t.Fatalf("%d deliveries", len(ds))
			}
			_, err = r.Settle(t.Context(), Verdict{Verb: verb}, []string{ds[0].Receipt()})
			rig.Want(t, "Settle", err, nil)
		}
		synctest.Wait()
		late := RecentLateness{Max: 2 * time.Minute}
		var h Histogram
		h.Observe(2 * time.Minute)
		h.Observe(2 * time.Minute)
		late.Counts = h.Counts
		wanted := task.History{Since: began.UTC(), Minutes: []PastMinute{
			{At: began.UTC(), Scheduled: 3, Cancelled: 1},
			{At: began.Add(time.Minute).UTC()},
			{At: began.Add(2 * time.Minute).UTC(), Delivered: 1, Failed: 1, Died: 1, Lateness: late},
		}}
		if diff := cmp.Diff(wanted, r.Engine().History()); diff != "" {
			t.Errorf("the history: %s", diff)
		}
		time.Sleep(time.Hour)
		past := r.Engine().History().Minutes
		if len(past) != HistoryMinutes+1 || past[0].Delivered != 1 || past[HistoryMinutes].At != began.Add(62*time.Minute).UTC() {
			t.Errorf("an hour later there are %d minutes, from %+v", len(past), past[0])
		}
		time.Sleep(time.Minute)
		for _, m := range r.Engine().History().Minutes {
			if m.Delivered != 0 {
				t.Errorf("more than an hour later there is %+v", m)
			}
		}
	})
}

// A node with a wrong clock takes no minute of the last hour from the others.
func TestHistoryOfAWrongClock(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{time.Minute, 3 * time.Hour, -3 * time.Hour} {
		rig.FleetBubble(t, 1, func(t *testing.T, f *rig.Fleet) {
			b := f.Start("b", rig.FleetShards, Config{Clock: func() time.Time { return time.Now().Add(ahead) }})
			rig.Pass(90 * time.Minute)
			for _, n := range []*rig.Node{f.Nodes[0], f.Nodes[0], b} {
				_, err := n.Schedule(t.Context(), Request{Topic: "t", Delay: 24 * time.Hour})
				rig.Want(t, "Schedule", err, nil)
			}
			h, _, err := f.Nodes[0].Admin().FleetPast(t.Context(), PastQuery{})
			rig.Want(t, "FleetPast", err, nil)
			scheduled := int64(0)
			for i := range h.Points {
				scheduled += h.Points[i].Scheduled
			}
			last := time.Now().Truncate(time.Minute)
			if n := len(h.Points); scheduled != 2 || n != HistoryMinutes+1 || !h.Points[n-1].At.Equal(last) {
				t.Errorf("with a clock that is %v ahead, %d tasks are in %d minutes to %v; want 2 to %v", ahead, scheduled, n, h.Points[n-1].At, last)
			}
		})
	}
}
