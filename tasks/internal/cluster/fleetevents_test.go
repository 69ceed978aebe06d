package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// The filter of the kind holds at other nodes too. A node that adopts a task tells it again.
func TestFleetEventDue(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		a.T = t
		u, all := subscribeFleet(a, EventFilter{Kinds: []EventKind{EventDue}}), subscribeFleet(a, EventFilter{})
		b.Must(Request{ID: "b1", Topic: "x", Delay: time.Second})
		rig.Pass(2 * time.Second)
		u.wants(3*time.Second, "b: covered", "b: due b1")
		all.wants(3*time.Second, "b: covered", "b: scheduled b1")
		b.Crash()
		a.Adopt(b)
		if got := u.told(3 * time.Second); len(got) == 0 || got[len(got)-1] != "a: due b1" && got[0] != "a: due b1" {
			t.Errorf("told %q", got)
		}
	})
}

// A fleetReader reads the events of all nodes.
type fleetReader struct {
	*FleetSubscription
	t testing.TB
}

// subscribeFleet makes a subscription to all nodes that ends with the test.
func subscribeFleet(n *rig.Node, f EventFilter) *fleetReader {
	n.T.Helper()
	u, err := n.Admin().FleetSubscribe(n.T.Context(), f)
	rig.Want(n.T, "FleetSubscribe", err, nil)
	n.T.Cleanup(u.Close)
	return &fleetReader{u, n.T}
}

// told is what was heard until nothing comes for some time, as "node: kind id", "node: lost n" or
// "node: covered".
func (u *fleetReader) told(patience time.Duration) (all []string) {
	u.t.Helper()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		n, err := u.Next(ctx)
		cancel()
		if err != nil {
			rig.Want(u.t, "Next", err, context.DeadlineExceeded)
			return all
		}
		all = append(all, textOf(&n)...)
	}
}

func textOf(n *NodeEvents) (all []string) {
	for _, e := range n.Events {
		all = append(all, fmt.Sprint(n.Node, ": ", e.Kind, " ", e.ID))
	}
	if n.Lost > 0 {
		all = append(all, fmt.Sprint(n.Node, ": lost ", n.Lost))
	}
	if n.Change != "" {
		text := fmt.Sprint(n.Node, ": ", n.Change)
		if n.Gap {
			text += " after a gap"
		}
		if n.Err != nil {
			text += ", " + n.Err.Error()
		}
		all = append(all, text)
	}
	return all
}

// wants wants to be told this, whatever the order of nodes. The events of each node are in order.
func (u *fleetReader) wants(patience time.Duration, wanted ...string) {
	u.t.Helper()
	byNode := func(a, b string) int { return strings.Compare(a[:1], b[:1]) }
	got := u.told(patience)
	slices.SortStableFunc(got, byNode)
	slices.SortStableFunc(wanted, byNode)
	if !slices.Equal(got, wanted) {
		u.t.Fatalf("told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(wanted, "\n"))
	}
}

// later makes a task of a node that is due in an hour.
func later(n *rig.Node, topic string, ids ...string) {
	n.T.Helper()
	for _, id := range ids {
		n.Must(Request{ID: id, Topic: topic, Delay: time.Hour})
	}
}

// feeds wants every node to have so many feeds for readers at others.
func feeds(f *rig.Fleet, want int) {
	f.T.Helper()
	for _, n := range f.Nodes {
		if got := n.Cluster().EventFeeds(); !n.Dead && got != want {
			f.T.Errorf("node %s has %d feeds, want %d", n.Name, got, want)
		}
		if st := n.Stats(); !n.Dead && (want == 0) != (n.Engine().Feed.Counts().Remote == 0) {
			f.T.Errorf("node %s has %d subscriptions of others, %d of its own", n.Name, n.Engine().Feed.Counts().Remote, st.Subscriptions)
		}
	}
}

// A subscription hears of the tasks of all nodes from its first moment on, with all that an event
// says. The filter holds at each.
func TestFleetEvents(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		a, b, c := f.Nodes[0], f.Nodes[1], f.Nodes[2]
		for _, n := range f.Nodes {
			n.T = t
		}
		all := subscribeFleet(a, EventFilter{})
		x := subscribeFleet(b, EventFilter{Topics: []string{"x"}, Kinds: []EventKind{EventScheduled, EventCancelled}})
		granted := subscribeFleet(c, EventFilter{Patterns: []string{"y*"}})
		if st := b.Stats(); st.Subscriptions != 1 || b.Engine().Feed.Counts().Subscriptions != 3 {
			t.Errorf("%d subscriptions, %d with those of others", st.Subscriptions, b.Engine().Feed.Counts().Subscriptions)
		}
		for _, n := range f.Nodes {
			later(n, "x", n.Name+"1", n.Name+"2")
			later(n, "y1", n.Name+"3")
		}
		rig.Want(t, "Cancel", a.Cancel(t.Context(), "c1"), nil)
		all.wants(3*time.Second, "a: scheduled a1", "a: scheduled a2", "a: scheduled a3", "b: covered", "b: scheduled b1", "b: scheduled b2",
			"b: scheduled b3", "c: covered", "c: scheduled c1", "c: scheduled c2", "c: scheduled c3", "c: cancelled c1")
		x.wants(3*time.Second, "a: covered", "a: scheduled a1", "a: scheduled a2", "b: scheduled b1", "b: scheduled b2", "c: covered", "c: scheduled c1", "c: scheduled c2", "c: cancelled c1")
		granted.wants(3*time.Second, "a: covered", "a: scheduled a3", "b: covered", "b: scheduled b3", "c: scheduled c3")

		d := b.Must(Request{ID: "d", Topic: "z"})
		rig.Pass(200 * time.Millisecond)
		now := time.Now().UTC()
		ds, err := b.Reserve(WithReceiver(t.Context(), "someone"), "z", 1, 0, time.Minute)
		if rig.Want(t, "Reserve", err, nil); len(ds) != 1 {
			t.Fatal("nothing was reserved")
		}
		_, err = b.Settle(t.Context(), Verdict{Verb: Bury, Reason: "no stock"}, []string{ds[0].Receipt()})
		rig.Want(t, "Settle", err, nil)
		rig.Pass(time.Second)
		var got []Event
		for len(got) < 3 {
			n, err := all.Next(t.Context())
			if rig.Want(t, "Next", err, nil); n.Node != "b" {
				t.Fatalf("told %+v", n)
			}
			got = append(got, n.Events...)
		}
		started := Event{Kind: EventStarted, At: now, ID: d.ID, Topic: "z", Attempt: 1, Lateness: 200 * time.Millisecond}
		died := Event{Kind: EventDied, At: now, ID: d.ID, Topic: "z", Attempt: 1, Err: "no stock"}
		if got[1] != started || got[2] != died {
			t.Errorf("told %+v\nwant %+v\n%+v", got[1:], started, died)
		}
		feeds(f, 2)
		for _, u := range []*fleetReader{all, x, granted} {
			u.Close()
			u.Close()
			_, err = u.Next(t.Context())
			rig.Want(t, "Next", err, ErrClosed)
		}
		rig.Pass(100 * time.Millisecond)
		feeds(f, 0)
	})
}

// While no subscription is open nothing is sent between the nodes for events.
func TestFleetEventsCostNothingWithoutAReader(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		feeds(f, 0)
		u, err := f.Nodes[0].Admin().FleetSubscribe(t.Context(), EventFilter{})
		rig.Want(t, "FleetSubscribe", err, nil)
		rig.Pass(time.Second)
		u.Close()
		rig.Pass(time.Second)
		before := f.Sent.Load()
		later(f.Nodes[0], "x", "a1")
		rig.Pass(100 * time.Millisecond)
		registered := f.Sent.Load() - before
		later(f.Nodes[1], "x", "b1")
		rig.Pass(100 * time.Millisecond)
		if n := f.Sent.Load() - before; n > 2*registered {
			t.Errorf("%d messages", n)
		}
		feeds(f, 0)
	})
}

// A node that does not answer for less than the lease is missing, and none of its events are. After
// the lease there is a gap.
func TestFleetEventsOfASilentNode(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		a.T, b.T = t, t
		u := subscribeFleet(a, EventFilter{})
		u.wants(time.Second, "b: covered")
		for round, silent := range []time.Duration{5 * time.Second, 2 * cluster.EventLease} {
			id := func(k int) string { return fmt.Sprintf("b%d-%d", round, k) }
			f.Lose(func(_, _ string, _ []byte) bool { return true })
			rig.Want(t, "Create", b.CreateOwned(Request{ID: b.IDAt(0), Topic: "x", Delay: time.Hour}), nil)
			n, err := next(u, 2*time.Second)
			if rig.Want(t, "Next", err, nil); n.Change != NodeMissing || n.Err.Error() != "no answer" {
				t.Errorf("told %v", textOf(&n))
			}
			rig.Pass(silent - 2*time.Second)
			rig.Want(t, "Create", b.CreateOwned(Request{ID: b.IDAt(0), Topic: "x", Delay: time.Hour}), nil)
			f.Lose(nil)
			rig.Pass(3 * time.Second)
			later(b, "x", id(1))
			got := u.told(3 * time.Second)
			lost := silent > cluster.EventLease
			switch {
			case lost && (len(got) != 2 || got[0] != "b: covered after a gap" || got[1] != "b: scheduled "+id(1)):
				t.Errorf("after %v told %q", silent, got)
			case !lost && (len(got) != 4 || got[0] != "b: covered" || got[3] != "b: scheduled "+id(1)):
				t.Errorf("after %v told %q", silent, got)
			}
		}
	})
}

// next waits for what is heard next.
func next(u *fleetReader, patience time.Duration) (NodeEvents, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return u.Next(ctx)
}

// A node that dies is missing until others have adopted what it held. It comes back under its name.
// A node that joins is covered, one that ends leaves.
func TestFleetEventsOfNodesThatComeAndGo(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		a, b, c := f.Nodes[0], f.Nodes[1], f.Nodes[2]
		a.T, b.T, c.T = t, t, t
		later(c, "x", "c1")
		u := subscribeFleet(a, EventFilter{})
		u.wants(time.Second, "b: covered", "c: covered")
		c.Crash()
		if got := u.told(3 * time.Second); len(got) != 1 || !strings.HasPrefix(got[0], "c: missing, ") {
			t.Errorf("told %q", got)
		}
		b.Adopt(c)
		u.wants(3*time.Second, "c: left")
		c.Restart()
		rig.Pass(3 * time.Second)
		later(c, "x", "c2")
		u.wants(3*time.Second, "c: covered after a gap", "c: scheduled c2")
		// A process that takes the place of another one at once.
		c.Crash()
		c.Restart()
		if got := u.told(3 * time.Second); len(got) == 0 || got[len(got)-1] != "c: covered after a gap" {
			t.Errorf("told %q", got)
		}
		later(c, "x", "c3")
		u.wants(time.Second, "c: scheduled c3")
		d := f.Join("d", 1, Config{})
		d.T = t
		later(d, "x", "d1")
		u.wants(3*time.Second, "d: covered after a gap", "d: scheduled d1")
		late := subscribeFleet(d, EventFilter{Topics: []string{"x"}})
		late.wants(time.Second, "a: covered", "b: covered", "c: covered")
		// The node of a reader dies: the others end its feeds when their leases are over.
		d.Crash()
		a.Adopt(d)
		if got := u.told(3 * time.Second); len(got) == 0 || len(got) > 2 || got[len(got)-1] != "d: left" {
			t.Errorf("told %q", got)
		}
		rig.Pass(2 * cluster.EventLease)
		if n := b.Cluster().EventFeeds(); n != 1 {
			t.Errorf("node b has %d feeds", n)
		}
	})
}

// A subscription begins also while a node is dead or does not answer, within about a second.
func TestFleetEventsWithoutAllNodes(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		a, b, c := f.Nodes[0], f.Nodes[1], f.Nodes[2]
		a.T, b.T = t, t
		later(c, "x", "c1")
		c.Crash()
		f.Lose(func(from, to string, _ []byte) bool { return from == b.Name || to == b.Name })
		began := time.Now()
		u := subscribeFleet(a, EventFilter{})
		if took := time.Since(began); took > cluster.GatherWithin {
			t.Errorf("it begins after %v", took)
		}
		u.wants(3*time.Second, "b: missing, no answer", "c: missing, no heartbeat")
		f.Lose(nil)
		u.wants(3*time.Second, "b: covered after a gap")
		gone, leave := context.WithCancelCause(t.Context())
		leave(errors.New("gone"))
		f.Lose(func(from, to string, _ []byte) bool { return from == b.Name || to == b.Name })
		_, err := a.Admin().FleetSubscribe(gone, EventFilter{})
		if err == nil || err.Error() != "gone" || a.Stats().Subscriptions != 1 {
			t.Errorf("FleetSubscribe = %v, and %d are open", err, a.Stats().Subscriptions)
		}
		_, err = a.Admin().FleetSubscribe(t.Context(), EventFilter{Kinds: []EventKind{"odd"}})
		rig.Want(t, "FleetSubscribe", err, ErrInvalid)
		f.Lose(nil)
	})
}

// A node whose version does not know the call is missing.
func TestFleetEventsOfAnOlderVersion(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		a.T = t
		delete(b.Cluster().Fleet.Methods, cluster.EventsMethod.Name)
		u := subscribeFleet(a, EventFilter{})
		later(a, "x", "a1")
		u.wants(5*time.Second, "a: scheduled a1", "b: missing, its version cannot tell its events")
	})
}

// What a reader is too slow for is lost at the node where it happens, and counted. A feed whose
// reader does not read keeps its lease and its bounds.
func TestFleetEventsOfASlowReader(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		const number = 12_000
		a, b := f.Nodes[0], f.Nodes[1]
		a.T, b.T = t, t
		u := subscribeFleet(a, EventFilter{Kinds: []EventKind{EventScheduled}})
		for range number / 1000 {
			requests := make([]Request, 1000)
			for i := range requests {
				requests[i] = Request{Topic: "x", Delay: time.Hour}
			}
			_, err := b.ScheduleBatch(t.Context(), requests)
			rig.Want(t, "ScheduleBatch", err, nil)
			rig.Pass(time.Second)
		}
		rig.Pass(10 * cluster.EventLease)
		feeds1(f, b, 1)
		told, lost, changes := 0, 0, 0
		for told+lost < number {
			n, err := next(u, 5*time.Second)
			rig.Want(t, "Next", err, nil)
			told, lost = told+len(n.Events), lost+int(n.Lost)
			if n.Change != "" {
				changes++
			}
		}
		if told < 2000 || told > 5000 || changes != 1 || b.Stats().EventsLost != int64(lost) {
			t.Errorf("told %d, lost %d, %d changes; node b has counted %d", told, lost, changes, b.Stats().EventsLost)
		}
		later(b, "x", "last")
		u.wants(2*time.Second, "b: scheduled last")
	})
}

func feeds1(f *rig.Fleet, n *rig.Node, want int) {
	f.T.Helper()
	if got := n.Cluster().EventFeeds(); got != want {
		f.T.Errorf("node %s has %d feeds, want %d", n.Name, got, want)
	}
}

// A node has a bounded number of feeds for others. A reader beyond learns that the node is missing,
// and hears of it when there is room.
func TestTooManyFleetSubscriptions(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		const bound = 128
		a, b := f.Nodes[0], f.Nodes[1]
		a.T, b.T = t, t
		open := make([]*fleetReader, bound)
		for i := range open {
			open[i] = subscribeFleet(a, EventFilter{Topics: []string{"x"}})
		}
		beyond := subscribeFleet(a, EventFilter{})
		beyond.wants(3*time.Second, "b: missing, too many readers of its events, or calls between nodes")
		open[0].Close()
		beyond.wants(3*time.Second, "b: covered after a gap")
		feeds1(f, b, bound)
	})
}

// The end of a scheduler ends its subscriptions and its feeds.
func TestFleetSubscriptionsEndWithTheScheduler(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		a.T, b.T = t, t
		u, v := subscribeFleet(a, EventFilter{}), subscribeFleet(b, EventFilter{})
		v.wants(time.Second, "a: covered")
		a.Stop()
		if n, err := u.Next(t.Context()); err == nil && n.Change == NodeCovered {
			_, err = u.Next(t.Context())
			rig.Want(t, "Next", err, ErrClosed)
		} else {
			rig.Want(t, "Next", err, ErrClosed)
		}
		got := v.told(3 * time.Second)
		if len(got) == 0 || !strings.HasPrefix(got[0], "a: missing, ") {
			t.Errorf("told %q", got)
		}
		feeds1(f, a, 0)
	})
}

// A node without others hears of its own events alone.
func TestFleetEventsOfOneNode(t *testing.T) {
	rig.Bubble(t, Config{Node: "n1"}, func(t *testing.T, r *rig.Rig) {
		u, err := r.Admin().FleetSubscribe(t.Context(), EventFilter{})
		rig.Want(t, "FleetSubscribe", err, nil)
		defer u.Close()
		r.Must(Request{ID: "a", Topic: "x", Delay: time.Hour})
		(&fleetReader{u, t}).wants(time.Second, "n1: scheduled a")
	})
}
