package cluster_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/relay"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// Whatever is lost on the way, each task reaches one receiver, once: what has reached
// no receiver is ready again when its lease is over.
func TestReserveAcrossLosses(t *testing.T) {
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		const tasks = 600
		f.Lose(func(_, _ string, _ []byte) bool { return rand.IntN(3) == 0 })
		ctx, cancel := context.WithCancel(t.Context())
		owner := make(map[string]*rig.Node)
		for _, n := range f.Nodes {
			owner[n.Name] = n
		}
		var mu sync.Mutex // guards seen
		seen := make(map[string]int)
		for _, n := range f.Nodes {
			for range 3 {
				go func() {
					for ctx.Err() == nil {
						ds, err := n.Reserve(ctx, "x", 5, 5*time.Second, 20*time.Second)
						if err != nil {
							t.Error(err)
							return
						}
						for _, d := range ds {
							owner[d.Node].SettleOne(Ack, d)
							mu.Lock()
							seen[d.ID]++
							mu.Unlock()
						}
					}
				}()
			}
		}
		for i := range tasks {
			f.Nodes[rand.IntN(2)].Must(Request{ID: fmt.Sprint("t", i), Topic: "x"})
			time.Sleep(rand.N(20 * time.Millisecond))
		}
		rig.Pass(5 * time.Minute)
		cancel()
		synctest.Wait()
		for i := range tasks {
			if n := seen[fmt.Sprint("t", i)]; n != 1 {
				t.Errorf("t%d was received %d times", i, n)
			}
		}
	}, Config{}, Config{}, Config{})
}

// An answer that comes when no caller waits for it any more: its tasks go to those who wait
// now, or back.
func TestLateAnswersAreNotLost(t *testing.T) {
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		late := func() {
			t.Helper()
			got, err := b.Cluster().HandleReserve(t.Context(), "a", cluster.DemandMessage{Run: a.Cluster().Peers.Run, Topic: "x", Want: 1})
			if err != nil || len(got.Deliveries) != 1 {
				t.Fatalf("asked for a task: %+v, %v", got, err)
			}
			a.Cluster().LateReply("b", cluster.ReserveMethod.Name, cluster.Reply[cluster.ReserveReply]{Answer: &got}.Encode(), time.Now())
			synctest.Wait()
		}
		b.Must(Request{ID: "t1", Topic: "x"})
		synctest.Wait()
		late()
		if d := b.Pull("x", "t1")[0]; d.Attempt != 1 {
			t.Errorf("the attempt counts: it is the %d.", d.Attempt)
		} else {
			b.Admin().Return([]Delivery{d})
		}
		b.Pull("x", "t1")
		b.Must(Request{ID: "t2", Topic: "x"})
		synctest.Wait()
		f.Lose(func(_, to string, _ []byte) bool { return to == "b" }) // so that it cannot ask
		waits := a.StartReserve(t.Context(), "x", 1, time.Minute, 0)
		synctest.Wait()
		f.Lose(nil)
		late()
		a.Want(<-waits, "t2")
		// One that says what no caller waited for.
		b.Must(Request{ID: "t3", Topic: "x"})
		synctest.Wait()
		got, _ := b.Cluster().HandleReserve(t.Context(), "a", cluster.DemandMessage{Run: a.Cluster().Peers.Run, Topic: "x", Want: 1})
		b.Cluster().LateReply("a", cluster.OfferMethod.Name, cluster.Reply[cluster.OfferReply]{Answer: &cluster.OfferReply{Unused: []string{got.Deliveries[0].Receipt}}}.Encode(), time.Now())
		b.Pull("x", "t3")
	}, Config{}, Config{})
}

// The lease of what was long on its way here ends no later than at its shard, and what is
// over there is given to no receiver: this node may have stood still meanwhile.
func TestLeasesAreCountedFromTheirBeginning(t *testing.T) {
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		const lease = 30 * time.Second
		f.Lose(func(_, to string, _ []byte) bool { return to == "b" }) // so that it cannot ask
		waits := a.StartReserve(t.Context(), "x", 1, time.Minute, lease)
		synctest.Wait()
		f.Lose(nil)
		ask := cluster.DemandMessage{Run: a.Cluster().Peers.Run, Topic: "x", Want: 1, Lease: lease}
		for i, age := range []time.Duration{lease, 20 * time.Second} {
			b.Must(Request{ID: fmt.Sprint("t", i), Topic: "x"})
			synctest.Wait()
			got, err := b.Cluster().HandleReserve(t.Context(), "a", ask)
			if err != nil || len(got.Deliveries) != 1 {
				t.Fatalf("asked for a task: %+v, %v", got, err)
			}
			a.Cluster().LateReply("b", cluster.ReserveMethod.Name, cluster.Reply[cluster.ReserveReply]{Answer: &got}.Encode(), time.Now().Add(-age))
			synctest.Wait()
			if i == 0 && len(waits) > 0 {
				t.Fatalf("it was given away when its lease was over: %+v", <-waits)
			}
			if i == 0 {
				b.Pull("x", "t0") // which was given back
			}
		}
		if ds := <-waits; len(ds) != 1 || ds[0].ID != "t1" || time.Until(ds[0].LeaseUntil) != 10*time.Second {
			t.Errorf("got %+v", ds)
		}

		// An offer has been on its way for as long as is missing of its time to live.
		waits = a.StartReserve(t.Context(), "x", 1, time.Minute, lease)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), cluster.AskWithin/4)
		defer cancel()
		b.Must(Request{ID: "t2", Topic: "y"})
		d := b.Pull("y", "t2")[0]
		o := cluster.Offer{Run: a.Cluster().Peers.Run, Topic: "x", Lease: lease, Deliveries: []engine.WireDelivery{{Task: d.Task, Receipt: d.Receipt(), Lease: lease}}}
		if answer, err := a.Cluster().HandleOffer(ctx, "b", o); err != nil || len(answer.Unused) != 0 {
			t.Fatalf("offered a task: %+v, %v", answer, err)
		}
		if ds := <-waits; len(ds) != 1 || time.Until(ds[0].LeaseUntil) != lease-cluster.AskWithin*3/4 {
			t.Errorf("got %+v", ds)
		}
	}, Config{}, Config{})
}

// A receiver that has gone takes nothing with it.
func TestAReceiverThatHasGone(t *testing.T) {
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		ctx, leave := context.WithCancel(t.Context())
		gone := a.StartReserve(ctx, "x", 1, time.Minute, 0)
		rig.Pass(time.Second)
		leave()
		a.Want(<-gone)
		b.Must(Request{ID: "t1", Topic: "x"})
		synctest.Wait()
		d := b.Pull("x", "t1")[0]
		if d.Attempt != 1 {
			t.Errorf("the attempt counts: it is the %d.", d.Attempt)
		}
		// One that has gone when it was served: as in package httpapi.
		b.Admin().Return([]Delivery{d})
		ds := a.Pull("x", "t1")
		a.Admin().Return(ds)
		synctest.Wait()
		b.Pull("x", "t1")
	}, Config{}, Config{})
}

// What is given back after its shard has changed hands is ready again at the new holder,
// and does not wait for its lease to end.
func TestReturnAfterAHandOver(t *testing.T) {
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		b.Must(Request{ID: "t1", Topic: "x"})
		synctest.Wait()
		own := b.Pull("x", "t1")
		b.Must(Request{ID: "t2", Topic: "x"})
		synctest.Wait()
		fetched := a.Pull("x", "t2")
		rig.Want(t, "Drain", b.Drain(t.Context()), nil)
		a.Admin().Return(fetched)
		b.Admin().Return(own)
		rig.Pass(time.Second)
		a.Pull("x", "t1", "t2")
	}, Config{}, Config{})
}

// So is what no receiver there waited for, when the node that has offered it holds it no more.
func TestOfferComesBackAfterAHandOver(t *testing.T) {
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		g := b.Cluster().NewRemoteWaiter("a", "x", 0)
		offers := make([][]*engine.Delivery, 3)
		packed := make([][]engine.WireDelivery, 3)
		for i := range offers {
			b.Must(Request{ID: fmt.Sprint("t", i), Topic: "x"})
			rig.Pass(10 * time.Millisecond)
			offers[i] = b.Cluster().Serve(t.Context(), g, 1)
			packed[i] = engine.EncodeDeliveries(offers[i], b.Engine().Elapsed())
		}
		rig.Want(t, "Drain", b.Drain(t.Context()), nil)
		b.Cluster().Offered(g, offers[0], packed[0], cluster.OfferReply{}, relay.ErrUnheard)
		b.Cluster().Offered(g, offers[1], packed[1], cluster.OfferReply{Unused: []string{packed[1][0].Receipt}}, nil)
		b.Cluster().LateReply("a", cluster.OfferMethod.Name, cluster.Reply[cluster.OfferReply]{Answer: &cluster.OfferReply{Unused: []string{packed[2][0].Receipt}}}.Encode(), time.Now())
		rig.Pass(time.Second)
		a.Pull("x", "t0", "t1", "t2")
	}, Config{}, Config{})
}

// A process that takes a node's place knows nothing of its demands; what is offered to it
// comes back.
func TestOffersToAFormerProcess(t *testing.T) {
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		ctx, cancel := context.WithCancel(t.Context())
		gone := a.StartReserve(ctx, "x", 1, time.Minute, 0)
		synctest.Wait()
		a.Crash()
		cancel()
		<-gone
		b.Must(Request{ID: "t1", Topic: "x"})
		rig.Pass(40 * time.Second) // no node has heard the offer: its lease runs out
		b.Pull("x", "t1")
		again := f.Start("a", 2, Config{})
		b.Must(Request{ID: "t2", Topic: "x"})
		synctest.Wait()
		again.Pull("x", "t2")
	}, Config{}, Config{})
}

// A node that has come later is asked as well, and what one tells that has no such
// call is no error.
func TestNodesThatComeLater(t *testing.T) {
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		a := f.Nodes[0]
		delete(f.Nodes[1].Cluster().Fleet.Methods, cluster.ReserveMethod.Name)
		got := a.StartReserve(t.Context(), "x", 1, time.Minute, 0)
		rig.Pass(10 * time.Second)
		c := f.Start("c", 2, Config{})
		rig.Pass(2 * cluster.PeersEvery)
		c.Must(Request{ID: "t1", Topic: "x"})
		a.Want(<-got, "t1")
		f.Nodes[1].Must(Request{ID: "t2", Topic: "x"})
		synctest.Wait()
		a.Pull("x")
		f.Nodes[1].Pull("x", "t2")
	}, Config{}, Config{})
}

// A node that closes while another one hands it tasks returns them: no receiver is left for them,
// and they would wait until their leases are over.
func TestCloseReturnsFetched(t *testing.T) {
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		b.Must(Request{ID: "t", Topic: "x"})
		synctest.Wait()
		f.Lose(func(from, _ string, _ []byte) bool { return from == "b" })
		waits := a.StartReserve(t.Context(), "x", 1, time.Minute, time.Hour)
		synctest.Wait() // the task is on its way, in an answer that is lost
		f.Lose(nil)
		closed := make(chan error)
		go func() { closed <- a.Close(t.Context()) }()
		if err := <-closed; err != nil {
			t.Errorf("Close: %v", err)
		}
		<-waits
		b.Pull("x", "t")
	}, Config{}, Config{})
}

// However the messages about demands and the turns of remote waiters cross, none stays in a queue
// that its node does not know, and no task waits behind one.
func TestRemoteWaitersComeAndGo(t *testing.T) {
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		b := f.Nodes[1]
		f.Lose(func(_, to string, _ []byte) bool { return to == "a" && rand.IntN(2) == 0 })
		var serial atomic.Uint64
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 100 {
					ask := cluster.DemandMessage{Run: 1, Serial: serial.Add(1), Topic: "x", Want: rand.IntN(3)}
					if _, err := b.Cluster().HandleReserve(t.Context(), "a", ask); err != nil && ask.Want > 0 {
						t.Error(err)
					}
					b.Cluster().UpdateRemoteWaiter("a", cluster.DemandMessage{Run: 1, Serial: serial.Add(1), Topic: "x", Want: rand.IntN(2)})
					time.Sleep(rand.N(10 * time.Millisecond))
				}
			})
		}
		for i := range 200 {
			b.Must(Request{ID: fmt.Sprint("t", i), Topic: "x"})
			time.Sleep(rand.N(10 * time.Millisecond))
		}
		all.Wait()
		f.Lose(nil)
		rig.Pass(2 * time.Minute) // all demands and leases are over
		rig.Mutex(b.Engine()).Lock()
		r := &b.Engine().TopicTable.ByName["x"].Reservers
		asleep, woken := r.Queue.Len(), r.Woken
		rig.Mutex(b.Engine()).Unlock()
		if asleep != 0 || woken != 0 {
			t.Errorf("%d remote waiters are left in the queue, %d were woken", asleep, woken)
		}
		if got := b.StartReserve(t.Context(), "x", 300, 0, 0); len(<-got) != 200 {
			t.Error("not all tasks are ready")
		}
	}, Config{}, Config{})
}
