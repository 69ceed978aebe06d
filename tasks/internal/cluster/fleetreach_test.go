package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// wantMissing wants the answers of a node to say within two seconds that these nodes are missing,
// and why.
func wantMissing(n *rig.Node, wanted map[string]string) {
	n.T.Helper()
	ctx := n.T.Context()
	for what, call := range map[string]func() (Reach, error){
		"FleetStats":  func() (Reach, error) { _, r, err := n.Admin().FleetStats(ctx); return r, err },
		"FleetTopic":  func() (Reach, error) { _, r, err := n.Admin().FleetTopic(ctx, "x"); return r, err },
		"FleetTopics": func() (Reach, error) { _, r, err := n.Admin().FleetTopics(ctx, TopicQuery{}); return r, err },
		"FleetTopics by rank": func() (Reach, error) {
			_, r, err := n.Admin().FleetTopics(ctx, TopicQuery{Sort: SortWorst})
			return r, err
		},
		"FleetDeadReasons": func() (Reach, error) {
			d, r, err := n.Admin().FleetDeadReasons(ctx, Query{})
			if d.Complete != (len(wanted) == 0) {
				n.T.Errorf("the reasons without %v are complete: %v", wanted, d.Complete)
			}
			return r, err
		},
		"FleetCount": func() (Reach, error) {
			c, r, err := n.Admin().FleetCount(ctx, Query{}, MinWithin)
			if c.Complete != (len(wanted) == 0) {
				n.T.Errorf("a count without %v is complete: %v", wanted, c.Complete)
			}
			return r, err
		},
		"FleetTotals": func() (Reach, error) { _, r, err := n.Admin().FleetTotals(ctx); return r, err },
		"FleetPast":   func() (Reach, error) { _, r, err := n.Admin().FleetPast(ctx, PastQuery{}); return r, err },
		"FleetForecast": func() (Reach, error) {
			f, r, err := n.Admin().FleetForecast(ctx, Outlook{Window: time.Hour, Step: time.Hour})
			if f.Complete != (len(wanted) == 0) {
				n.T.Errorf("a forecast without %v is complete: %v", wanted, f.Complete)
			}
			return r, err
		},
	} {
		began := time.Now()
		reach, err := call()
		rig.Want(n.T, what, err, nil)
		missing := map[string]string{}
		for _, m := range reach.Missing {
			missing[m.Node] = m.Err.Error()
			if slices.Contains(reach.Nodes, m.Node) {
				n.T.Errorf("%s: node %s is missing and is not", what, m.Node)
			}
		}
		if diff := cmp.Diff(wanted, missing); diff != "" {
			n.T.Errorf("%s misses%s", what, diff)
		}
		if took := time.Since(began); took > 2*time.Second {
			n.T.Errorf("%s took %v", what, took)
		}
	}
}

// wantHeadline wants the diagnosis of a node to sum up so.
func wantHeadline(n *rig.Node, wanted string) {
	n.T.Helper()
	if d, _, err := n.Admin().Diagnose(n.T.Context()); err != nil || d.Headline != wanted {
		n.T.Errorf("the headline is %q, %v; want %q", d.Headline, err, wanted)
	}
}

// A node that is dead or does not answer is named, and the figures of the others are there. It is
// named no more when others have adopted what it held.
func TestFleetFiguresNameTheMissing(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		for _, name := range []string{"a", "b"} {
			f.Start(name, rig.FleetShards, Config{AnswerWithin: 10 * time.Second})
		}
		f.Join("c", rig.FleetShards, Config{})
		a, b, c := f.Nodes[0], f.Nodes[1], f.Nodes[2]
		a.T = t
		fillAll(f, 4, "x", "g")
		pending := func(n int64) {
			t.Helper()
			rig.Pass(2 * time.Second)
			if st, _, err := a.Admin().FleetStats(t.Context()); err != nil || st.Total.Pending != n {
				t.Errorf("%d are pending, %v", st.Total.Pending, err)
			}
		}
		pending(12)
		wantMissing(a, map[string]string{})
		f.Lose(func(from, to string, _ []byte) bool { return from == c.Name || to == c.Name })
		pending(8)
		wantMissing(a, map[string]string{"c": "no answer"})
		wantHeadline(a, "c does not answer.")
		f.Lose(nil)
		pending(12)
		wantMissing(a, map[string]string{})
		wantHeadline(a, "Nothing is late.")
		c.Crash()
		pending(8)
		wantMissing(a, map[string]string{"c": "no heartbeat"})
		wantHeadline(a, "c is down, and its tasks wait.")
		b.Adopt(c)
		pending(12)
		wantMissing(a, map[string]string{})
		wantHeadline(a, "c is down, and others have its tasks.")
	})
}

// A node whose version does not know the calls counts as one that has not answered.
func TestFleetFiguresOfAnOlderVersion(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		a.T = t
		fillAll(f, 4, "x", "g")
		for _, method := range []string{cluster.StatsMethod.Name, cluster.TopicsMethod.Name, cluster.RanksMethod.Name, cluster.ForecastMethod.Name, cluster.PastMethod.Name, cluster.SurveyMethod.Name, cluster.SearchMethod.Name} {
			delete(b.Cluster().Fleet.Methods, method)
		}
		wantMissing(a, map[string]string{"b": "its version cannot tell its figures"})
		if st, _, err := a.Admin().FleetStats(t.Context()); err != nil || st.Total.Pending != 4 {
			t.Errorf("%d are pending, %v", st.Total.Pending, err)
		}
	})
}

// However many callers ask one node, it asks the others about once a second.
func TestFleetFiguresAreShared(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		var asked atomic.Int64
		for _, n := range f.Nodes[1:] {
			methods := n.Cluster().Fleet.Methods
			serve := methods[cluster.StatsMethod.Name]
			methods[cluster.StatsMethod.Name] = func(s *cluster.Cluster, ctx context.Context, from string, body []byte) []byte {
				asked.Add(1)
				return serve(s, ctx, from, body)
			}
		}
		gone, leave := context.WithCancel(t.Context())
		leave()
		_, _, err := f.Nodes[0].Admin().FleetStats(gone)
		rig.Want(t, "FleetStats", err, context.Canceled)
		const pollers, polls, pause = 50, 40, 250 * time.Millisecond
		var group sync.WaitGroup
		for range pollers {
			group.Go(func() {
				for range polls {
					if _, reach, err := f.Nodes[0].Admin().FleetStats(t.Context()); err != nil || len(reach.Nodes) != 3 {
						t.Errorf("FleetStats: %+v, %v", reach, err)
					}
					time.Sleep(pause)
				}
			})
		}
		group.Wait()
		synctest.Wait()
		if n := asked.Load(); n < 2*polls/5 || n > 2*(polls/4+1) {
			t.Errorf("the others were asked %d times in %v", n, polls*pause)
		}
		// Distinct queries are not kept without a bound.
		for i := range 100 {
			_, _, err := f.Nodes[0].Admin().FleetTopic(t.Context(), fmt.Sprint("x", i))
			rig.Want(t, "FleetTopic", err, ErrNoTopic)
		}
		if n := f.Nodes[0].Cluster().Gathered(); n > 8 {
			t.Errorf("the answers to %d queries are kept", n)
		}
		rig.Pass(2 * time.Second)
		if n := f.Nodes[0].Cluster().Gathered(); n > 0 {
			t.Errorf("the answers to %d queries are kept for ever", n)
		}
	})
}

// With too many topics for one answer the total covers all, and pages list them.
func TestFleetFiguresOfManyTopics(t *testing.T) {
	t.Parallel()
	const each = 450
	rig.FleetBubble(t, 4, func(t *testing.T, f *rig.Fleet) {
		for i, n := range f.Nodes[:3] {
			for k := range each {
				n.Must(Request{ID: n.IDAt(0), Topic: fmt.Sprintf("t%04d", i*each+k), Delay: time.Hour})
				n.Must(Request{ID: n.IDAt(0), Topic: "all", Delay: time.Hour})
			}
		}
		rig.Pass(2 * time.Second)
		st, _, err := f.Nodes[0].Admin().FleetStats(t.Context())
		rig.Want(t, "FleetStats", err, nil)
		if len(st.Topics) != 0 || st.Beyond != 3*each+1 || st.Total.Pending != 6*each || st.Others.Pending != 6*each {
			t.Errorf("%d topics are listed, %d are not; %d tasks", len(st.Topics), st.Beyond, st.Total.Pending)
		}
		var names []string
		var tasks int64
		for q := (TopicQuery{Limit: 100}); len(names) <= 3*each+1; { // at a node that has met none
			page, _, err := f.Nodes[3].Admin().FleetTopics(t.Context(), q)
			rig.Want(t, "FleetTopics", err, nil)
			for i := range page.Topics {
				names, tasks = append(names, page.Topics[i].Name), tasks+page.Topics[i].Counts.Pending
			}
			if q.Cursor = page.NextCursor; q.Cursor == "" {
				break
			}
		}
		if len(names) != 3*each+1 || !slices.IsSorted(names) || tasks != 6*each {
			t.Errorf("the pages have %d topics with %d tasks", len(names), tasks)
		}
		own := WithGrant(t.Context(), &Grant{Topics: []string{"t04*"}})
		page, _, err := f.Nodes[2].Admin().FleetTopics(own, TopicQuery{Limit: 100})
		if rig.Want(t, "FleetTopics", err, nil); len(page.Topics) != 100 || page.Topics[0].Name != "t0400" || page.NextCursor != "" {
			t.Errorf("a limited caller gets %d topics, and then %q", len(page.Topics), page.NextCursor)
		}
		_, _, err = f.Nodes[2].Admin().FleetTopics(own, TopicQuery{Limit: 1001})
		rig.Want(t, "FleetTopics", err, ErrInvalid)
		outlook := Outlook{Topic: "all", Window: 2 * time.Hour, Step: 2 * time.Hour}
		_, _, err = f.Nodes[2].Admin().FleetForecast(own, outlook)
		rig.Want(t, "FleetForecast", err, ErrNotGranted)
		outlook.Topic = ""
		forecast, _, err := f.Nodes[2].Admin().FleetForecast(own, outlook)
		if rig.Want(t, "FleetForecast", err, nil); forecast.Counts[0] != 100 {
			t.Errorf("a limited caller gets %+v", forecast)
		}
	})
}

// A topic that was deleted at the node that is asked is gone at once, though other nodes do not
// know it yet, unless one of them has tasks of it.
func TestFleetFiguresWithoutDeletedTopics(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		for _, name := range []string{"x", "kept"} {
			_, err := a.SetTopic(t.Context(), name, TopicSettings{}, -1)
			rig.Want(t, "SetTopic", err, nil)
		}
		b.Must(Request{ID: b.IDAt(0), Topic: "kept", Delay: time.Hour})
		rig.Want(t, "Cancel", b.Cancel(t.Context(), b.Create(Request{ID: b.IDAt(0), Topic: "x", Delay: time.Hour})), nil)
		rig.Pass(2 * time.Second)
		_, err := a.Admin().KillTopic(t.Context(), "kept", -1)
		rig.Want(t, "KillTopic", err, nil)
		_, _, err = a.Admin().FleetTopic(t.Context(), "x") // the answer of b is used again below
		rig.Want(t, "FleetTopic", err, nil)
		page, _, err := a.Admin().FleetTopics(t.Context(), TopicQuery{})
		if rig.Want(t, "FleetTopics", err, nil); len(page.Topics) != 2 {
			t.Errorf("listed are %+v", page.Topics)
		}
		rig.Want(t, "DeleteTopic", a.Admin().DeleteTopic(t.Context(), "x", -1), nil)
		_, _, err = a.Admin().FleetTopic(t.Context(), "x")
		rig.Want(t, "FleetTopic of a deleted one", err, ErrNoTopic)
		kept, _, err := a.Admin().FleetTopic(t.Context(), "kept")
		if rig.Want(t, "FleetTopic of one with dead tasks", err, nil); kept.Counts.Dead != 1 {
			t.Errorf("it has %+v", kept.Counts)
		}
		page, _, err = a.Admin().FleetTopics(t.Context(), TopicQuery{})
		if rig.Want(t, "FleetTopics", err, nil); len(page.Topics) != 1 || page.Topics[0].Name != "kept" {
			t.Errorf("listed are %+v", page.Topics)
		}
	})
}

// The figures of a node without others are its own.
func TestFleetFiguresOfOneNode(t *testing.T) {
	rig.Bubble(t, Config{Node: "n1"}, func(t *testing.T, r *rig.Rig) {
		r.Must(Request{ID: "a", Topic: "x", Delay: time.Hour})
		st, reach, err := r.Admin().FleetStats(t.Context())
		if rig.Want(t, "FleetStats", err, nil); !slices.Equal(reach.Nodes, []string{"n1"}) || len(reach.Missing) > 0 {
			t.Errorf("the figures are those of %+v", reach)
		}
		if diff := cmp.Diff(r.Stats(), st, cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" {
			t.Error(diff)
		}
		own, err := r.Topic("x")
		x, _, fleetErr := r.Admin().FleetTopic(t.Context(), "x")
		if err = errors.Join(err, fleetErr); err != nil || !reflect.DeepEqual(own, x) {
			t.Errorf("the topic is %+v, %v", x, err)
		}
		_, _, err = r.Admin().FleetTopic(t.Context(), "none")
		rig.Want(t, "FleetTopic", err, ErrNoTopic)
		page, _, err := r.Admin().FleetTopics(t.Context(), TopicQuery{})
		if rig.Want(t, "FleetTopics", err, nil); len(page.Topics) != 1 {
			t.Errorf("the page is %+v", page)
		}
		f, _, err := r.Admin().FleetForecast(t.Context(), Outlook{Window: time.Hour, Step: time.Hour})
		if rig.Want(t, "FleetForecast", err, nil); f.Counts[0]+f.Later != 1 {
			t.Errorf("the forecast is %+v", f)
		}
	})
}

// While a node has not read the settings of a topic, it does not show the defaults for them, though
// another node has met the topic.
func TestFleetTopicOfUnreadSettings(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, other := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		for _, name := range []string{"a-read", "b-unread"} {
			_, err := other.SetTopic(t.Context(), name, TopicSettings{Concurrency: 7}, -1)
			rig.Want(t, "SetTopic", err, nil)
		}
		rig.Pass(time.Second)
		a.Crash()
		var release func()
		f.Before = func(m *rig.FaultyMember) { release = m.Hold("EachSetting but one") }
		a = f.Join("a", 1, Config{})
		_, _, err := a.Admin().FleetTopic(t.Context(), "b-unread")
		rig.Want(t, "FleetTopic", err, ErrReplaying)
		release()
		rig.Pass(2 * time.Second)
		topic, reach, err := a.Admin().FleetTopic(t.Context(), "b-unread")
		rig.Want(t, "FleetTopic", err, nil)
		if topic.Settings.Concurrency != 7 || len(reach.Missing) > 0 {
			t.Errorf("FleetTopic = %+v, %+v", topic, reach)
		}
	})
}

// Figures of the last minutes lack what a process had counted that has ended or was started anew
// since, which any node says for as long as they reach back to it.
func TestRecentFiguresLackWhatEndedProcessesCounted(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		a, b, c := f.Nodes[0], f.Nodes[1], f.Nodes[2]
		check := func(what string, since time.Time, without ...string) {
			t.Helper()
			for _, n := range []*rig.Node{a, c} {
				_, stats, err := n.Admin().FleetStats(t.Context())
				rig.Want(t, "FleetStats", err, nil)
				_, topics, err := n.Admin().FleetTopics(t.Context(), TopicQuery{Sort: SortWorst})
				rig.Want(t, "FleetTopics", err, nil)
				hour := time.Now().Truncate(time.Minute)
				_, waves, err := n.Admin().FleetWaves(t.Context(), WaveQuery{From: hour, To: hour.Add(time.Hour)})
				rig.Want(t, "FleetWaves", err, nil)
				for _, r := range []Reach{stats, topics, waves} {
					if d := r.RecentSince.Sub(since); !slices.Equal(r.RecentWithout, without) || d.Abs() > 5*time.Second {
						t.Errorf("%s: %s says that it lacks what %v had counted until %v, want %v, %v", what, n.Name, r.RecentWithout, r.RecentSince, without, since)
					}
				}
			}
		}
		rig.Pass(time.Second)
		check("at first", time.Now().Add(-4*time.Second), "a", "b", "c")
		rig.Pass(10 * time.Minute)
		check("at rest", time.Time{})
		died := time.Now()
		b.Crash()
		rig.Pass(2 * time.Minute)
		check("a node has died", died, "b")
		rig.Pass(4 * time.Minute)
		check("it is dead for long", time.Time{})
		back := time.Now()
		b.Restart()
		rig.Pass(time.Minute)
		check("it is back", back, "b")
		rig.Pass(5 * time.Minute)
		check("for long", time.Time{})
		left := time.Now()
		b.Stop()
		rig.Pass(time.Minute)
		check("it has ended", left, "b")
		rig.Pass(5 * time.Minute)
		check("long ago", time.Time{})
	})
}
