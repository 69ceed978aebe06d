package cluster_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A receiver gets what is ready at other nodes, with all that belongs to it, and its
// receipt counts there.
func TestReserveFromOtherNodes(t *testing.T) {
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		b.Must(Request{ID: "t1", Topic: "x", Payload: []byte(`{"n": 1}`), Headers: map[string]string{"h": "v"}, Group: "g"})
		synctest.Wait()
		ds, err := a.Reserve(t.Context(), "x", 10, 0, 7*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		a.Want(ds, "t1")
		d := ds[0]
		if d.Node != "b" || string(d.Payload) != `{"n": 1}` || d.Headers["h"] != "v" || d.Group != "g" || d.Attempt != 1 || d.State != Delivering {
			t.Errorf("the delivery is %+v", d)
		}
		if rest := time.Until(d.LeaseUntil); rest <= 6*time.Second || rest > 7*time.Second {
			t.Errorf("its lease ends in %v", rest)
		}
		b.SettleOne(Ack, d)
		a.Pull("x")
		if st := b.Stats(); st.Total.Delivered != 1 {
			t.Errorf("the owner has counted %+v", st.Total)
		}
	}, Config{}, Config{})
}

// What becomes ready at another node reaches a receiver that waits at once.
func TestReserveWaitsForOtherNodes(t *testing.T) {
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		a, b, c := f.Nodes[0], f.Nodes[1], f.Nodes[2]
		for i, owner := range []*rig.Node{b, c, a} {
			got := a.StartReserve(t.Context(), "x", 1, time.Minute, 0)
			rig.Pass(30 * time.Second)
			began := time.Now()
			id := fmt.Sprint("t", i)
			owner.Must(Request{ID: id, Topic: "x"})
			ds := <-got
			if took := time.Since(began); took > 0 { // the bus of the test takes no time
				t.Errorf("it took %v", took)
			}
			a.Want(ds, id)
			owner.SettleOne(Ack, ds[0])
		}
	}, Config{}, Config{}, Config{})
}

// However many receivers wait, and for however long, hardly anything is sent.
func TestWaitingSendsNearlyNothing(t *testing.T) {
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		const topics, receivers, minutes = 5, 40, 10
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for _, n := range f.Nodes {
			for i := range topics {
				for range receivers {
					go func() {
						for ctx.Err() == nil {
							if _, err := n.Reserve(ctx, fmt.Sprint("x", i), 1, 20*time.Second, 0); err != nil {
								t.Error(err)
							}
						}
					}()
				}
			}
		}
		rig.Pass(time.Minute)
		before := f.Sent.Load()
		rig.Pass(minutes * time.Minute)
		pairs := len(f.Nodes) * (len(f.Nodes) - 1)
		periods := int(minutes * time.Minute / cluster.RenewEvery)
		if sent := int(f.Sent.Load() - before); sent > 2*pairs*periods {
			t.Errorf("%d messages were sent in %d periods between %d pairs of nodes", sent, periods, pairs)
		}
		cancel()
		synctest.Wait()
	}, Config{}, Config{}, Config{})
}

// Receivers are served in the order in which they came, wherever they wait, and those of
// a node share one place in the queue of another.
func TestReserveIsFairBetweenNodes(t *testing.T) {
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		first := b.StartReserve(t.Context(), "x", 1, time.Minute, 0)
		synctest.Wait()
		second := a.StartReserve(t.Context(), "x", 1, time.Minute, 0)
		synctest.Wait()
		third := b.StartReserve(t.Context(), "x", 1, time.Minute, 0)
		synctest.Wait()
		for i, next := range []<-chan []Delivery{first, second, third} {
			id := fmt.Sprint("t", i)
			b.Must(Request{ID: id, Topic: "x"})
			synctest.Wait()
			select {
			case ds := <-next:
				b.Want(ds, id)
			default:
				t.Fatalf("receiver %d has not got %s", i, id)
			}
		}
	}, Config{}, Config{})
}

// No receiver starves: neither those at the node where the tasks are, nor those elsewhere,
// however many there are of the others and however often they ask.
func TestNoRemoteReceiverStarves(t *testing.T) {
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		const rounds = 300
		a, b := f.Nodes[0], f.Nodes[1]
		ctx, cancel := context.WithCancel(t.Context())
		var near, far atomic.Int64
		loop := func(n *rig.Node, count *atomic.Int64) {
			for ctx.Err() == nil {
				ds, err := n.Reserve(ctx, "x", 1, 20*time.Second, 0)
				if err != nil {
					t.Error(err)
				}
				for _, d := range ds {
					count.Add(1)
					b.SettleOne(Ack, d)
				}
			}
		}
		for range 5 {
			go loop(b, &near)
		}
		go loop(a, &far)
		for range rounds {
			b.Must(Request{Topic: "x"})
			rig.Pass(10 * time.Millisecond)
		}
		if n := far.Load(); n < rounds/8 || n > rounds/4 {
			t.Errorf("the receiver elsewhere has got %d of %d tasks; there are five here", n, rounds)
		}
		near.Store(0)
		far.Store(0)
		for range 20 {
			go loop(a, &far)
		}
		for range rounds {
			b.Must(Request{Topic: "x"})
			rig.Pass(10 * time.Millisecond)
		}
		if n := near.Load(); n < rounds/4 {
			t.Errorf("the receivers here have got %d of %d tasks", n, rounds)
		}
		cancel()
		synctest.Wait()
	}, Config{}, Config{})
}

// A receiver that asks without waiting gets what is ready anywhere, and takes turns
// between the nodes.
func TestReserveWithoutWaiting(t *testing.T) {
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		const tasks = 30
		a := f.Nodes[0]
		for _, n := range f.Nodes[1:] {
			for i := range tasks {
				n.Must(Request{ID: fmt.Sprint(n.Name, i), Topic: "x"})
			}
		}
		synctest.Wait()
		from := make(map[string]int)
		for range tasks {
			ds, err := a.Reserve(t.Context(), "x", 1, 0, 0)
			if err != nil || len(ds) != 1 {
				t.Fatalf("reserved %d, %v", len(ds), err)
			}
			from[ds[0].Node]++
			synctest.Wait() // or the search goes on for the next, with more than one node
		}
		if from["b"] != tasks/2 || from["c"] != tasks/2 {
			t.Errorf("they came from %v", from)
		}
		if st := a.Stats(); st.ReservesTaken != tasks {
			t.Errorf("%d were counted as taken", st.ReservesTaken)
		}
		if given := f.Nodes[1].Stats().ReservesGiven; given != tasks/2 {
			t.Errorf("%d were counted as given", given)
		}
	}, Config{}, Config{}, Config{})
}

// Receivers that ask for leases of different length get what they asked for.
func TestReserveLeasesElsewhere(t *testing.T) {
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		short := a.StartReserve(t.Context(), "x", 1, time.Minute, 5*time.Second)
		synctest.Wait()
		long := a.StartReserve(t.Context(), "x", 1, time.Minute, time.Hour)
		synctest.Wait()
		b.Must(Request{ID: "t1", Topic: "x"})
		b.Must(Request{ID: "t2", Topic: "x"})
		for lease, got := range map[time.Duration]<-chan []Delivery{5 * time.Second: short, time.Hour: long} {
			if ds := <-got; len(ds) != 1 || time.Until(ds[0].LeaseUntil) != lease {
				t.Errorf("with a lease of %v: %+v", lease, ds)
			}
		}
		rig.Pass(7 * time.Second)
		if st := b.Stats(); st.LeasesReturned != 1 {
			t.Errorf("%d leases have run out", st.LeasesReturned)
		}
	}, Config{}, Config{})
}

// The bounds of the node that holds the tasks hold for receivers elsewhere too.
func TestReserveElsewhereHasBounds(t *testing.T) {
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		for i := range 5 {
			b.Must(Request{ID: fmt.Sprint("t", i), Topic: "x"})
		}
		synctest.Wait()
		ds := a.Pull("x", "t0", "t1")
		waits := a.StartReserve(t.Context(), "x", 10, time.Minute, 0)
		sent := f.Sent.Load()
		rig.Pass(20 * time.Second)
		if len(waits) != 0 || f.Sent.Load()-sent > 20 {
			t.Fatalf("while there is no room: %d have been served, with %d messages", len(waits), f.Sent.Load()-sent)
		}
		b.SettleOne(Ack, ds[0])
		a.Want(<-waits, "t2")

		// A topic that is paused keeps its receivers waiting, wherever they are.
		paused := func(yes bool) {
			for _, n := range f.Nodes {
				if _, err := n.SetTopic(t.Context(), "y", TopicSettings{Paused: yes}, -1); err != nil {
					t.Fatal(err)
				}
			}
		}
		b.SettleOne(Ack, ds[1])
		paused(true)
		b.Must(Request{ID: "y1", Topic: "y"})
		waits = a.StartReserve(t.Context(), "y", 10, time.Minute, 0)
		rig.Pass(10 * time.Second)
		if len(waits) != 0 {
			t.Fatal("a paused topic was served")
		}
		paused(false)
		a.Want(<-waits, "y1")
	}, Config{}, Config{MaxInFlight: 2})
}
