package cluster_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/task"
)

// greatest are the figures that do not add up, see task.Stats.Add.
var greatest = map[string]bool{"Max": true, "Concurrency": true, "ConcurrencyNow": true, "LargestBatch": true, "Stall": true}

// sumInto adds figures, whatever they are: counts add up, and of two times the earlier one counts.
func sumInto(to, from reflect.Value, name string) {
	switch {
	case to.Type() == reflect.TypeFor[time.Time]():
		a, b := to.Interface().(time.Time), from.Interface().(time.Time)
		if a.IsZero() || !b.IsZero() && b.Before(a) {
			to.Set(from)
		}
	case to.Kind() == reflect.Struct:
		for i := range to.NumField() {
			sumInto(to.Field(i), from.Field(i), to.Type().Field(i).Name)
		}
	case to.Kind() == reflect.Array:
		for i := range to.Len() {
			sumInto(to.Index(i), from.Index(i), name)
		}
	case to.CanInt() && greatest[name]:
		to.SetInt(max(to.Int(), from.Int()))
	case to.CanInt():
		to.SetInt(to.Int() + from.Int())
	}
}

func sum[T any](to *T, from T) {
	sumInto(reflect.ValueOf(to).Elem(), reflect.ValueOf(&from).Elem(), "")
}

// sums are the figures of all nodes that live, as a test adds them up.
type sums struct {
	Total  Counts
	Sweep  SweepStats
	Shards ShardStats
	Load   LoadStats
	Peers  PeerStats
	Armed  int
	Topics map[string]Counts
}

func sumsOf(all ...Stats) sums {
	s := sums{Topics: map[string]Counts{}}
	for i := range all {
		st := &all[i]
		sum(&s.Total, st.Total)
		sum(&s.Sweep, st.SweepStats)
		sum(&s.Shards, st.ShardStats)
		sum(&s.Load, st.LoadStats)
		sum(&s.Peers, st.PeerStats)
		sum(&s.Armed, st.Armed)
		for _, t := range st.Topics {
			c := s.Topics[t.Name]
			sum(&c, t.Counts)
			s.Topics[t.Name] = c
		}
	}
	s.Sweep.FullSweepTook = 0 // belongs to FullSweepAt, and is no sum
	return s
}

// upset does something to the tasks of a fleet, or to its shards.
func upset(f *rig.Fleet, rng *rand.Rand) {
	live := slices.DeleteFunc(slices.Clone(f.Nodes), func(n *rig.Node) bool { return n.Dead })
	n := live[rng.IntN(len(live))]
	topic := fmt.Sprint("t", rng.IntN(4))
	ctx := f.T.Context()
	switch rng.IntN(12) {
	default:
		_, _ = n.Schedule(ctx, Request{Topic: topic, Group: topic, Delay: time.Duration(rng.IntN(60)) * time.Second})
	case 0, 1:
		ds, _ := n.Reserve(ctx, topic, 1+rng.IntN(3), 0, 30*time.Second)
		for i := range ds {
			v := Verdict{Verb: []Verb{Ack, Release, Bury, Extend}[rng.IntN(4)], Reason: n.Name + " is out of stock"}
			_, _ = n.Settle(ctx, v, []string{ds[i].Receipt()})
		}
	case 2:
		_ = n.Admin().PauseTopic(ctx, topic, rng.IntN(2) == 0)
	case 3:
		_, _ = n.CancelGroup(ctx, topic)
	case 7:
		a := []Action{HoldAction, HoldAction, ResumeAction}[rng.IntN(3)]
		_, _ = n.Admin().Act(ctx, Act{Action: a, Query: Query{Topic: topic, Limit: 5}})
	case 4:
		to := live[rng.IntN(len(live))]
		if to != n && rng.IntN(3) == 0 {
			_ = to.Cluster().Fetch(ctx, n.Name, f.Nodes[rng.IntN(len(f.Nodes))].ShardID(rng.IntN(rig.FleetShards)))
		}
	case 5:
		if len(live) > 1 && rng.IntN(3) == 0 {
			n.Crash()
			for _, o := range live {
				if o != n {
					o.Member.AdoptFrom(n.Member.Member)
					break
				}
			}
		}
	case 6:
		for _, o := range f.Nodes {
			if o.Dead {
				o.Restart() // and asks for what is its own
			}
		}
	}
	rig.Pass(time.Duration(rng.IntN(2000)) * time.Millisecond)
}

// At rest the figures of the fleet are the sums of those of its nodes, at whichever node they are
// asked for, and each task counts once, whatever has become of its shard.
func TestFleetFiguresAreSums(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	for round := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed+round), func(t *testing.T) {
			rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
				f.T = t
				rng := rand.New(rand.NewPCG(seed+round, 0))
				for range 150 {
					upset(f, rng)
				}
				rig.Pass(10 * time.Second)
				wantSums(f, rng)
			})
		})
	}
}

// wantSums compares the figures of the fleet with those of its nodes, which are at rest.
func wantSums(f *rig.Fleet, rng *rand.Rand) {
	f.T.Helper()
	ctx := f.T.Context()
	live := slices.DeleteFunc(slices.Clone(f.Nodes), func(n *rig.Node) bool { return n.Dead })
	var names []string
	for _, n := range live {
		names = append(names, n.Name)
	}
	listed := listed(f, live[0])
	outlook := Outlook{Window: time.Minute, Step: time.Second}
	for _, n := range live {
		var each []Stats
		for _, o := range live {
			each = append(each, o.Stats())
		}
		all, reach, err := n.Admin().FleetStats(ctx)
		rig.Want(f.T, "FleetStats", err, nil)
		wanted, got := sumsOf(each...), sumsOf(all)
		for topic, c := range got.Topics {
			if diff := cmp.Diff(wanted.Topics[topic], c); diff != "" {
				f.T.Errorf("%s at %s: %s", topic, n.Name, diff)
			}
		}
		if diff := cmp.Diff(slices.Sorted(maps.Keys(wanted.Topics)), slices.Sorted(maps.Keys(got.Topics))); diff != "" {
			f.T.Errorf("the topics at %s: %s", n.Name, diff)
		}
		wanted.Topics, got.Topics = nil, nil
		if diff := cmp.Diff(wanted, got); diff != "" {
			f.T.Errorf("at %s: %s", n.Name, diff)
		}
		if !slices.Equal(reach.Nodes, names) || len(reach.Missing) > 0 {
			f.T.Errorf("at %s the figures are those of %+v", n.Name, reach)
		}
		for topic, states := range listed {
			one, _, err := n.Admin().FleetTopic(ctx, topic)
			c := &one.Counts
			if rig.Want(f.T, "FleetTopic", err, nil); *states != (stateCounts{c.Pending, c.Ready, c.Delivering, c.Dead, c.Held}) {
				f.T.Errorf("%s at %s has %+v; listed are %+v", topic, n.Name, c, states)
			}
			wantLastError(f, live, one)
		}
		wantPages(f, n, all.Topics, 1+rng.IntN(4))
		wantSorted(f, n, all.Topics, rng)
		wantHistory(f, n, all.Total)
		for _, topic := range []string{"", "t1"} {
			outlook.Topic = topic
			forecast, _, err := n.Admin().FleetForecast(ctx, outlook)
			rig.Want(f.T, "FleetForecast", err, nil)
			var sum Forecast
			for i, o := range live {
				own, err := o.Engine().Forecast(ctx, outlook, forecast.From.UnixMilli())
				if rig.Want(f.T, "Forecast", err, nil); i == 0 {
					sum = own
				} else {
					sum.Add(&own)
				}
			}
			sum.Judgement = forecast.Judgement
			if diff := cmp.Diff(sum, forecast); diff != "" {
				f.T.Errorf("the forecast of %q at %s: %s", topic, n.Name, diff)
			}
		}
	}
}

// stateCounts counts tasks by state.
type stateCounts [5]int64

// listed counts the tasks of all nodes by topic and state, as lists show them.
func listed(f *rig.Fleet, n *rig.Node) map[string]*stateCounts {
	f.T.Helper()
	all := map[string]*stateCounts{}
	count := func(q Query) {
		q.Limit = 1000
		page, err := n.List(f.T.Context(), q)
		if rig.Want(f.T, "List", err, nil); page.Cursor != "" {
			f.T.Fatal("the list has more than one page")
		}
		for i := range page.Tasks {
			topic := page.Tasks[i].Topic
			if all[topic] == nil {
				all[topic] = &stateCounts{}
			}
			if page.Tasks[i].State == Held {
				page.Tasks[i].State = Pending
				all[topic][4]++
			}
			all[topic][slices.Index([]State{Pending, Ready, Delivering, Dead}, page.Tasks[i].State)]++
		}
	}
	count(Query{})
	for i := range 4 {
		count(Query{State: Dead, Topic: fmt.Sprint("t", i)})
	}
	return all
}

// wantLastError wants a topic to have the latest error of all nodes.
func wantLastError(f *rig.Fleet, live []*rig.Node, got task.Topic) {
	f.T.Helper()
	var latest time.Time
	texts := map[string]bool{"": true}
	for _, n := range live {
		t, err := n.Topic(got.Name)
		switch {
		case err != nil:
		case t.LastFailed.After(latest):
			latest, texts = t.LastFailed, map[string]bool{t.LastError: true}
		case t.LastFailed.Equal(latest):
			texts[t.LastError] = true
		}
	}
	if !got.LastFailed.Equal(latest) || !texts[got.LastError] {
		f.T.Errorf("%s failed last %v with %q; want %v, %v", got.Name, got.LastFailed, got.LastError, latest, texts)
	}
}

// wantPages wants pages of so many topics to be those that have tasks or settings.
func wantPages(f *rig.Fleet, n *rig.Node, topics []task.Topic, limit int) {
	f.T.Helper()
	var wanted, got []string
	for i := range topics {
		wanted = append(wanted, topics[i].Name)
	}
	for q := (TopicQuery{Limit: limit}); len(got) <= len(wanted); {
		page, _, err := n.Admin().FleetTopics(f.T.Context(), q)
		if rig.Want(f.T, "FleetTopics", err, nil); len(page.Topics) > limit {
			f.T.Errorf("a page of %d topics has %d", limit, len(page.Topics))
		}
		for i := range page.Topics {
			got = append(got, page.Topics[i].Name)
		}
		if q.Cursor = page.NextCursor; q.Cursor == "" {
			break
		}
	}
	if !slices.Equal(wanted, got) {
		f.T.Errorf("pages of %d topics at %s have %q; want %q", limit, n.Name, got, wanted)
	}
}
