package engine_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// countsOf makes tasks in every state at some nodes, and compares counts with lists.
func countsOf(t *testing.T, nodes []*Scheduler) {
	pick := func(i int) *Scheduler { return nodes[i%len(nodes)] }
	for i := range 30 {
		r := Request{ID: fmt.Sprint("t", i), Topic: []string{"x", "y"}[i%2], Group: []string{"", "g"}[i/2%2], Delay: time.Hour}
		if i%3 == 0 {
			r.Delay = 0
		}
		r.Held = i == 4
		_, err := pick(i).Schedule(t.Context(), r)
		rig.Want(t, "Schedule", err, nil)
	}
	rig.Pass(time.Second)
	ds, err := pick(0).Reserve(t.Context(), "x", 2, 0, 0)
	if rig.Want(t, "Reserve", err, nil); len(ds) == 0 {
		t.Fatal("nothing was reserved")
	}
	_, err = pick(0).Settle(t.Context(), Verdict{Verb: Bury, Reason: "refused"}, []string{ds[0].Receipt()})
	rig.Want(t, "Settle", err, nil)
	rig.Pass(3 * time.Second)
	for i, q := range []Query{
		{}, {Topic: "x"}, {Group: "g"}, {Topic: "y", Group: "g"}, {State: Pending}, {State: Held}, {State: Ready}, {State: Delivering},
		{IDPrefix: "t1"}, {Error: "refused"}, {Topic: "none"}, {DueTo: time.Now()}, {State: Dead, Topic: "x"},
		{State: Dead, Topic: "x", Error: "refused"}, {State: Dead, Topic: "x", Error: "no such"},
	} {
		rig.Pass(3 * time.Second) // no answer is used again
		all, _ := found(t, func() *Scheduler { return nodes[0] }, q)
		c, reach, err := pick(i).Admin().FleetCount(t.Context(), q, 0)
		if rig.Want(t, "FleetCount", err, nil); c.Total.All() != len(all) || !c.Complete || c.LookedAt != c.Of || len(reach.Nodes) != len(nodes) {
			t.Errorf("%+v: %+v of %v, want %d", q, c, reach.Nodes, len(all))
		}
		sum, own := 0, 0
		for j := range c.Topics {
			sum += c.Topics[j].All()
		}
		for _, s := range nodes {
			one, err := s.Admin().Count(t.Context(), q, 0)
			rig.Want(t, "Count", err, nil)
			own += one.Total.All()
		}
		if sum != len(all) || own != len(all) {
			t.Errorf("%+v: %d by topic and %d by node, want %d", q, sum, own, len(all))
		}
	}
	c, _, err := nodes[0].Admin().FleetCount(t.Context(), Query{State: Dead}, 0) // of all topics
	if rig.Want(t, "FleetCount", err, nil); c.Total.Dead != 1 || !c.Complete {
		t.Errorf("dead: %+v", c)
	}
}

func TestCountsMatchLists(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) { countsOf(t, []*Scheduler{r.Scheduler}) })
}

func TestCountsMatchListsAtAllNodes(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		var nodes []*Scheduler
		for _, n := range f.Nodes {
			nodes = append(nodes, n.Scheduler)
		}
		countsOf(t, nodes)
	})
}

// A grant bounds the topics of a count, and what is wrong is refused.
func TestCountsUnderAGrant(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		for _, topic := range []string{"own.a", "foreign"} {
			_, err := r.Schedule(t.Context(), Request{Topic: topic, Delay: time.Hour})
			rig.Want(t, "Schedule", err, nil)
		}
		ctx := WithGrant(t.Context(), &Grant{Topics: []string{"own.*"}})
		c, _, err := r.Admin().FleetCount(ctx, Query{}, 0)
		if rig.Want(t, "FleetCount", err, nil); c.Total.Pending != 1 || len(c.Topics) != 1 || c.Topics[0].Topic != "own.a" {
			t.Errorf("under a grant %+v", c)
		}
		_, _, err = r.Admin().FleetCount(ctx, Query{Topic: "foreign"}, 0)
		rig.Want(t, "FleetCount", err, ErrNotGranted)
		_, _, err = r.Admin().FleetCount(ctx, Query{}, time.Minute)
		rig.Want(t, "FleetCount within a minute", err, ErrInvalid)
		_, _, err = r.Admin().FleetCount(ctx, Query{Node: "none"}, 0)
		rig.Want(t, "FleetCount of a node", err, ErrNoNode)
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		_, _, err = r.Admin().FleetCount(canceled, Query{}, 0)
		rig.Want(t, "FleetCount", err, context.Canceled)
	})
}
