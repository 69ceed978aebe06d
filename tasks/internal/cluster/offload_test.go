package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A node without a receiver that helps another one gives its tasks back, and takes no more than one
// at a time until it has a receiver.
func TestHelperWithoutReceiver(t *testing.T) {
	t.Parallel()
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		const tasks = 30_000
		a, b := f.Nodes[0], f.Nodes[1]
		var c deliveries
		var here atomic.Bool
		var refused atomic.Int64
		rig.Want(t, "Handle", a.Handle("x", c.by("a", time.Second, nil)), nil)
		rig.Want(t, "Handle", b.Handle("x", func(ctx context.Context, d *Delivery) error {
			if !here.Load() {
				refused.Add(1)
				return ErrNoReceiver
			}
			return c.by("b", time.Second, nil)(ctx, d)
		}), nil)
		herd(a, "x", tasks)
		rig.Pass(5 * time.Second)
		first := refused.Load()
		if first == 0 || first > 600 || c.counts("b") != 0 {
			t.Errorf("%d deliveries were refused", first)
		}
		rig.Pass(5 * time.Second)
		if n := refused.Load() - first; n == 0 || n > 8 {
			t.Errorf("%d deliveries were refused in 5 s", n)
		}
		here.Store(true)
		rig.Pass(5 * time.Second)
		if c.counts("b") == 0 {
			t.Error("the node does not help with a receiver")
		}
		for a.Stats().Total.Delivered < tasks {
			rig.Pass(time.Second)
		}
		if len(c.of) != tasks || c.counts("a")+c.counts("b") != tasks {
			t.Errorf("%d tasks were delivered %d times", len(c.of), c.counts("a")+c.counts("b"))
		}
		if n := a.Stats().Total; n.Failed != 0 || n.LeaseExpired != 0 {
			t.Errorf("%+v", n)
		}
	}, Config{SweepBacklog: 100}, Config{SweepHelper: []string{"backlog"}})
}

// herd schedules tasks that are due now.
func herd(n *rig.Node, topic string, count int) {
	n.T.Helper()
	for from := 0; from < count; from += MaxBatch {
		reqs := make([]Request, min(MaxBatch, count-from))
		for i := range reqs {
			reqs[i] = Request{ID: fmt.Sprint(topic, "-", from+i), Topic: topic}
		}
		results, err := n.ScheduleBatch(n.T.Context(), reqs)
		if err != nil {
			n.T.Fatal(err)
		}
		for _, r := range results {
			if r.Err != nil {
				n.T.Fatal(r.Err)
			}
		}
	}
}

// deliveries counts those that each node makes, and of each task.
type deliveries struct {
	mu   sync.Mutex
	made map[string]int // by node
	of   map[string]int // by task
}

// by is a handler that takes its time.
func (c *deliveries) by(node string, took time.Duration, end func(d *Delivery) error) HandlerFunc {
	return func(ctx context.Context, d *Delivery) error {
		c.mu.Lock()
		if c.made == nil {
			c.made, c.of = make(map[string]int), make(map[string]int)
		}
		c.made[node]++
		c.of[d.ID]++
		c.mu.Unlock()
		select {
		case <-time.After(took):
		case <-ctx.Done():
			return ctx.Err()
		}
		if end == nil {
			return nil
		}
		return end(d)
	}
}

func (c *deliveries) counts(node string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.made[node]
}

// An idle node, or one with SweepHelper, delivers about as much of a backlog as the node
// that has it; each task once.
func TestOffload(t *testing.T) {
	t.Parallel()
	for _, helper := range [][]string{nil, {"backlog"}} {
		t.Run(fmt.Sprint("helper=", helper), func(t *testing.T) {
			rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
				const tasks = 5000
				a, b := f.Nodes[0], f.Nodes[1]
				var c deliveries
				for _, n := range f.Nodes {
					if err := n.Handle("x", c.by(n.Name, 100*time.Millisecond, nil)); err != nil {
						t.Fatal(err)
					}
				}
				herd(a, "x", tasks)
				began := time.Now()
				for a.Stats().Total.Delivered < tasks {
					rig.Pass(100 * time.Millisecond)
				}
				t.Log("it took", time.Since(began), "by a:", c.counts("a"), "by b:", c.counts("b"))
				if made := c.counts("b"); made < tasks*4/10 {
					t.Errorf("the other node has made %d of %d deliveries", made, tasks)
				}
				if len(c.of) != tasks || c.counts("a")+c.counts("b") != tasks {
					t.Errorf("%d tasks were delivered %d times", len(c.of), c.counts("a")+c.counts("b"))
				}
				rig.Pass(time.Minute)
				if st := b.Stats(); st.Total.Delivered != 0 || b.Cluster().Peers.Offloads.Len() != 0 || st.Concurrency != 64 {
					t.Errorf("afterwards: %+v, %d offloads", st.Total, b.Cluster().Peers.Offloads.Len())
				}
			}, Config{SweepBacklog: 100}, Config{SweepHelper: helper})
		})
	}
}

// An offload goes on while the workers of the node with the backlog are busy, also if a sweep finds
// no task ready for them.
func TestOffloadOutlastsASweep(t *testing.T) {
	t.Parallel()
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		a := f.Nodes[0]
		var c deliveries
		for _, n := range f.Nodes {
			if err := n.Handle("x", c.by(n.Name, 100*time.Millisecond, nil)); err != nil {
				t.Fatal(err)
			}
		}
		herd(a, "x", 1500) // the nodes take all of them
		rig.Pass(50 * time.Millisecond)
		first := c.counts("b")
		if st := a.Stats(); st.Total.Ready != 0 || first == 0 {
			t.Fatalf("%d tasks are ready, and the other node has taken %d", st.Total.Ready, first)
		}
		a.Engine().SweepOnce(false)
		rig.Pass(0)
		rig.Pass(30 * time.Millisecond)
		for i := range 4000 { // with no announcement before they are delivered
			if _, err := a.Schedule(t.Context(), Request{ID: fmt.Sprint("later-", i), Topic: "x"}); err != nil {
				t.Fatal(err)
			}
		}
		rig.Pass(400 * time.Millisecond)
		if made := c.counts("b") - first; made < 1000 {
			t.Errorf("the other node has made %d of 4000 deliveries", made)
		}
	}, Config{SweepBacklog: 100, SweepEvery: 30 * time.Second}, Config{})
}

// Whatever becomes of an attempt counts at the node that has the task.
func TestOffloadResults(t *testing.T) {
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		stuck := make(chan struct{})
		if err := a.Handle("x", func(ctx context.Context, d *Delivery) error {
			select {
			case <-stuck:
			case <-ctx.Done():
			}
			return errors.New("stuck")
		}); err != nil {
			t.Fatal(err)
		}
		var round atomic.Int64
		if err := b.Handle("x", func(_ context.Context, d *Delivery) error {
			switch {
			case d.Attempt > 1:
				round.Add(1)
				return nil
			case d.ID[len(d.ID)-1] == '1':
				return Kill(errors.New("no use"))
			case d.ID[len(d.ID)-1] == '2':
				return RetryAfter(errors.New("later"), time.Hour)
			case d.ID[len(d.ID)-1] == '3':
				panic("at the wrong moment")
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := a.SetTopic(t.Context(), "x", TopicSettings{Kind: Handler, Concurrency: 1, Lease: time.Hour}, -1); err != nil {
			t.Fatal(err)
		}
		rig.Pass(5 * time.Second)
		herd(a, "x", 100)
		rig.Pass(10 * time.Second)
		st := a.Stats().Total
		if st.Delivered < 60 || st.Dead < 9 || st.Dead > 10 {
			t.Errorf("the owner has counted %+v", st)
		}
		pageDead, err := a.List(t.Context(), Query{Topic: "x", State: Dead})
		if err != nil || len(pageDead.Tasks) == 0 || pageDead.Tasks[0].LastError != "no use" {
			t.Errorf("the dead: %+v, %v", pageDead, err)
		}
		left, err := a.List(t.Context(), Query{State: Pending})
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range left.Tasks {
			if until := time.Until(task.Next); task.LastError == "later" && (until < 59*time.Minute || until > time.Hour) {
				t.Errorf("%s is due in %v", task.ID, until)
			}
		}
		close(stuck)
		synctest.Wait()
	}, Config{SweepBacklog: 10}, Config{SweepHelper: []string{"backlog"}})
}

// A node that has taken over what it was helping with: what its workers have delivered
// counts, and is not delivered again.
func TestOffloadOutlivesTheOwner(t *testing.T) {
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		const tasks = 40
		a, b := f.Nodes[0], f.Nodes[1]
		release := make(chan struct{})
		var c deliveries
		for _, n := range f.Nodes {
			hold := func(d *Delivery) error {
				if n == b {
					<-release
				}
				return nil
			}
			took := time.Hour
			if n == b {
				took = time.Millisecond
			}
			if err := n.Handle("x", c.by(n.Name, took, hold)); err != nil {
				t.Fatal(err)
			}
		}
		herd(a, "x", tasks)
		rig.Pass(3 * time.Second)
		helped := c.counts("b")
		if helped == 0 {
			t.Fatal("nothing was offloaded")
		}
		a.Member.Crash()
		if n := b.Member.AdoptFrom(a.Member.Member); n == 0 {
			t.Fatal("nothing was adopted")
		}
		rig.Pass(time.Second)
		close(release)
		rig.Pass(time.Minute)
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.of) != tasks || b.Stats().Total.Pending+b.Stats().Total.Ready+b.Stats().Total.Delivering != 0 {
			t.Errorf("%d of %d tasks were delivered: %+v", len(c.of), tasks, b.Stats().Total)
		}
		// Each twice at most: by the one that has died, or by b before it took over.
		for id, n := range c.of {
			if n > 2 {
				t.Errorf("%s was delivered %d times", id, n)
			}
		}
	}, Config{SweepBacklog: 5, Topics: map[string]TopicSettings{"x": {Concurrency: 4, Lease: time.Hour}}},
		Config{SweepHelper: []string{"backlog"}, Topics: map[string]TopicSettings{"x": {Concurrency: 4, Lease: time.Hour}}})
}

// What a node has delivered for another one counts, although the shards have moved to a third
// one meanwhile.
func TestOffloadOutlivesADrain(t *testing.T) {
	topic := map[string]TopicSettings{"x": {Concurrency: 4, Lease: time.Hour}}
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		const tasks = 40
		a, b, third := f.Nodes[0], f.Nodes[1], f.Nodes[2]
		release := make(chan struct{})
		var c deliveries
		for _, n := range []*rig.Node{a, b} {
			if err := n.Handle("x", func(ctx context.Context, d *Delivery) error {
				select {
				case <-release:
				case <-ctx.Done():
				}
				return c.by(n.Name, 0, nil)(ctx, d)
			}); err != nil {
				t.Fatal(err)
			}
		}
		herd(a, "x", tasks)
		rig.Pass(10 * time.Second)
		if b.Stats().HelpGiven == 0 {
			t.Fatal("nothing was offloaded", a.Stats().Total)
		}
		rig.Mutex(b.Engine()).Lock()
		b.Engine().Draining = true // so that it takes no shard
		rig.Mutex(b.Engine()).Unlock()
		drained := make(chan error)
		go func() { drained <- a.Drain(t.Context()) }()
		rig.Pass(time.Second)
		close(release)
		if err := <-drained; err != nil {
			t.Fatal(err)
		}
		rig.Pass(time.Minute)
		made := c.counts("a") + c.counts("b")
		if st := third.Stats().Total; made == 0 || st.Delivered != int64(made) || st.Delivering != 0 || st.Ready != int64(tasks-made) {
			t.Errorf("%d were delivered, and the new owner has counted %+v", made, st)
		}
	}, Config{SweepBacklog: 5, Topics: topic}, Config{SweepHelper: []string{"backlog"}, Topics: topic}, Config{Topics: topic})
}

// A node that dies keeps no offloaded task for longer than the lease, and one that is closed gives
// back what it has not begun with. The attempts of the latter do not count.
func TestOffloadNodesThatLeave(t *testing.T) {
	for _, crash := range []bool{false, true} {
		rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
			a, b := f.Nodes[0], f.Nodes[1]
			var c deliveries
			if err := a.Handle("x", c.by("a", time.Second, nil)); err != nil {
				t.Fatal(err)
			}
			if err := b.Handle("x", func(ctx context.Context, _ *Delivery) error {
				<-ctx.Done()
				return ctx.Err()
			}); err != nil {
				t.Fatal(err)
			}
			herd(a, "x", 100)
			rig.Pass(1500 * time.Millisecond)
			if b.Stats().HelpGiven == 0 || a.Stats().HelpTaken == 0 {
				t.Fatal("nothing was offloaded")
			}
			if crash {
				b.Crash()
			} else if err := b.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
			rig.Pass(3 * time.Minute)
			if st := a.Stats().Total; st.Delivered != 100 {
				t.Errorf("crash %v: in the end: %+v", crash, st)
			}
		}, Config{SweepBacklog: 10, Topics: map[string]TopicSettings{"x": {Concurrency: 4}}},
			Config{SweepHelper: []string{"backlog"}, Grace: time.Second, Topics: map[string]TopicSettings{"x": {Concurrency: 4}}})
	}
}

// A node takes no offload if it has enough to do, cannot deliver the topic in the same way, or
// has paused it. A node that takes some keeps to its own bounds.
func TestOffloadConditions(t *testing.T) {
	t.Parallel()
	ways := map[string]struct {
		cfg    Config
		handle bool
		helps  bool
	}{
		"idle":              {Config{}, true, true},
		"without a handler": {Config{SweepHelper: []string{"backlog"}}, false, false},
		"paused":            {Config{SweepHelper: []string{"backlog"}, Topics: map[string]TopicSettings{"x": {Paused: true}}}, true, false},
		"bounded":           {Config{SweepHelper: []string{"backlog"}, MaxDeliveries: 3}, true, true},
		"limited":           {Config{SweepHelper: []string{"backlog"}, Topics: map[string]TopicSettings{"x": {Rate: Rate{PerSecond: 1, Burst: 1}}}}, true, true},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
				a, b := f.Nodes[0], f.Nodes[1]
				var c deliveries
				var now atomic.Int64
				var most rig.Peak
				if err := a.Handle("x", c.by("a", time.Second, nil)); err != nil {
					t.Fatal(err)
				}
				if way.handle {
					if err := b.Handle("x", func(ctx context.Context, d *Delivery) error {
						most.See(now.Add(1))
						defer now.Add(-1)
						return c.by("b", time.Second, nil)(ctx, d)
					}); err != nil {
						t.Fatal(err)
					}
				}
				herd(a, "x", 200)
				began := time.Now()
				for a.Stats().Total.Delivered < 200 && time.Since(began) < time.Hour {
					rig.Pass(100 * time.Millisecond)
				}
				took := time.Since(began)
				if made := c.counts("b"); (made > 0) != way.helps {
					t.Errorf("it has made %d deliveries", made)
				}
				if bound := int64(way.cfg.MaxDeliveries); bound > 0 && most.Load() > bound {
					t.Errorf("it has made %d at once", most.Load())
				}
				if name == "limited" && c.counts("b") > int(took/time.Second)+1 {
					t.Errorf("it has made %d in %v", c.counts("b"), took)
				}
				if a.Stats().Total.Delivered != 200 {
					t.Errorf("the owner has counted %+v", a.Stats().Total)
				}
				rig.Pass(2 * time.Minute)
				if b.Cluster().Peers.Offloads.Len() != 0 || b.Cluster().Forward.Queues() != 0 {
					t.Error("the offload has not ended")
				}
			}, Config{SweepBacklog: 10, Topics: map[string]TopicSettings{"x": {Concurrency: 4}}}, way.cfg)
		})
	}
}

// At half past eight in the evening a helper takes its share within a second, with no backlog; a
// node that is no helper takes nothing, and neither does the helper in any other minute.
func TestHelperByTheClock(t *testing.T) {
	t.Parallel()
	evening := time.Date(2000, 1, 1, 20, 29, 0, 0, time.UTC).Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
	clock := func() time.Time { return time.Now().Add(evening) } // fake time begins at midnight
	helps := Config{Clock: clock, SweepHelper: []string{"30 20 * * *", "0 21 * * *"}}
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		a := f.Nodes[0]
		var c deliveries
		for _, n := range f.Nodes {
			if err := n.Handle("x", c.by(n.Name, 100*time.Millisecond, nil)); err != nil {
				t.Fatal(err)
			}
		}
		wave := func(name string, at time.Time, count int) {
			t.Helper()
			for i := range count {
				a.Must(Request{ID: fmt.Sprint(name, i), Topic: "x", Due: at})
			}
		}
		half := clock().Truncate(time.Minute).Add(time.Minute)
		wave("peak", half, 3000)
		wave("later", half.Add(2*time.Minute), 1000)
		rig.Pass(half.Sub(clock()) - time.Millisecond)
		if c.counts("b") != 0 {
			t.Fatalf("the helper has taken %d before its time", c.counts("b"))
		}
		rig.Pass(time.Second)
		own, others := c.counts("a"), c.counts("b")
		if own == 0 || others < own || c.counts("c") != 0 {
			t.Errorf("a second later: %d deliveries by the owner, %d by the helper, %d by the third node", own, others, c.counts("c"))
		}
		rig.Pass(time.Minute)
		if n := c.counts("a") + c.counts("b"); n != 3000 || len(c.of) != 3000 {
			t.Errorf("%d deliveries of %d tasks", n, len(c.of))
		}
		others = c.counts("b")
		rig.Pass(2 * time.Minute)
		if c.counts("b") != others || len(c.of) != 4000 {
			t.Errorf("the helper has taken %d after its time; %d tasks are delivered", c.counts("b")-others, len(c.of))
		}
		if f.Nodes[1].Cluster().Peers.Offloads.Len() != 0 || a.Stats().Backlogs != 0 {
			t.Error("an offload has not ended, or there was a backlog")
		}
	}, Config{Clock: clock}, helps, Config{Clock: clock})
}

// The times of the full sweep hold for every node, and for all that it holds.
func TestFullSweepAtEveryNode(t *testing.T) {
	at := Config{SweepAt: []string{"* * * * *"}}
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		a.Must(Request{ID: "t1", Topic: "x", Delay: time.Hour})
		b.Must(Request{ID: "t2", Topic: "x", Delay: time.Hour})
		rig.Pass(2 * time.Minute)
		for _, n := range f.Nodes {
			if st := n.Stats(); st.FullSweeps == 0 || st.AuditChecked == 0 {
				t.Errorf("node %s: %d full sweeps have compared %d tasks", n.Name, st.FullSweeps, st.AuditChecked)
			}
		}
		a.Member.Crash()
		b.Member.AdoptFrom(a.Member.Member)
		rig.Pass(time.Second)
		before := b.Stats()
		rig.Pass(90 * time.Second)
		st := b.Stats()
		if fulls := st.FullSweeps - before.FullSweeps; fulls == 0 || st.AuditChecked-before.AuditChecked < 2*fulls {
			t.Errorf("with what it has adopted: %d full sweeps have compared %d tasks", fulls, st.AuditChecked-before.AuditChecked)
		}
	}, at, at)
}
