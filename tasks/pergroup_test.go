package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// A floor counts the deliveries of each group that are under way, and the most that there were.
type floor struct {
	mu        sync.Mutex
	now, most map[string]int
	done      []string
}

func newFloor() *floor { return &floor{now: map[string]int{}, most: map[string]int{}} }

func (f *floor) enter(d *tasks.Delivery) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now[d.Group]++
	f.most[d.Group] = max(f.most[d.Group], f.now[d.Group])
}

func (f *floor) leave(d *tasks.Delivery) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now[d.Group]--
	f.done = append(f.done, d.ID)
}

// took is a handler that takes so long.
func (f *floor) took(d time.Duration) tasks.HandlerFunc {
	return func(_ context.Context, t *tasks.Delivery) error {
		f.enter(t)
		time.Sleep(d)
		f.leave(t)
		return nil
	}
}

// grouped schedules n tasks of a group, of which the first is due in delay, and each other 1 ms
// after the one before.
func (r *rig) grouped(topic, group string, n int, delay time.Duration) {
	r.t.Helper()
	for i := range n {
		r.must(tasks.Request{ID: fmt.Sprintf("%s%s-%03d", group, topic, i), Topic: topic, Group: group, Delay: delay + time.Duration(i)*time.Millisecond})
	}
}

// At most so many of a group are delivered at once; others do not wait for them, and all are
// delivered as soon as the bound lets them. By workers, in batches, and recording each attempt.
func TestPerGroupPushed(t *testing.T) {
	for _, limit := range []int{1, 3} {
		for _, crashes := range []bool{false, true} {
			t.Run(fmt.Sprint(limit, crashes), func(t *testing.T) {
				bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
					f := newFloor()
					want(t, "Handle", r.Handle("x", f.took(time.Second)), nil)
					r.topic("x", tasks.TopicSettings{ConcurrencyPerGroup: limit, CountCrashes: crashes})
					r.grouped("x", "a", 30, time.Minute)
					r.grouped("x", "b", 30, time.Minute)
					r.grouped("x", "", 30, time.Minute)
					pass(time.Minute + 1500*time.Millisecond)
					if c := r.counts("x"); c.Delivered != int64(30+2*limit) || c.Delivering != int64(2*limit) || c.Blocked != int64(60-4*limit) || c.Ready != c.Blocked {
						t.Errorf("after the first second: %d delivered, %d are delivering, %d of %d ready are blocked", c.Delivered, c.Delivering, c.Blocked, c.Ready)
					}
					r.checkConsistency()
					pass(time.Duration(30/limit) * time.Second)
					if c := r.counts("x"); c.Delivered != 90 || f.most["a"] != limit || f.most["b"] != limit || f.most[""] != 30 {
						t.Errorf("%d delivered; at once: %v", c.Delivered, f.most)
					}
					last := ""
					for _, id := range f.done {
						if limit == 1 && strings.HasPrefix(id, "a") {
							if id < last {
								t.Fatalf("%s comes after %s", id, last)
							}
							last = id
						}
					}
					if r.Engine().Dispatch.Backlog != 0 {
						t.Errorf("the backlog counts %d", r.Engine().Dispatch.Backlog)
					}
					r.checkConsistency()
				})
			})
		}
	}
}

// A group takes no places of others: workers of a topic whose first tasks are all of one slow group
// deliver those behind it. In batches, too.
func TestPerGroupFair(t *testing.T) {
	for _, batches := range []bool{false, true} {
		t.Run(fmt.Sprint(batches), func(t *testing.T) {
			bubble(t, tasks.Config{MaxDeliveries: 4}, func(t *testing.T, r *rig) {
				c := &courier{kind: "courier", batches: batches}
				block := make(chan struct{})
				c.fail = func(d *tasks.Delivery, _ string) error {
					if d.Group == "slow" {
						<-block
					}
					return nil
				}
				want(t, "Deliver", r.Deliver("x", map[bool]tasks.Deliverer{false: &round{c, "rome"}, true: &ride{round{c, "rome"}}}[batches]), nil)
				r.topic("x", tasks.TopicSettings{ConcurrencyPerGroup: 1, Concurrency: 4})
				r.grouped("x", "slow", 1000, time.Minute)
				pass(50 * time.Second)
				for i := range 100 {
					r.must(tasks.Request{ID: fmt.Sprint("other", i), Topic: "x", Group: fmt.Sprint("g", i), Delay: 20 * time.Second})
				}
				pass(30 * time.Second)
				if got := r.counts("x"); got.Delivered != 100 || got.Blocked != 999 {
					t.Errorf("%d delivered, %d blocked", got.Delivered, got.Blocked)
				}
				r.checkConsistency()
				close(block)
				pass(time.Minute)
				if got := r.counts("x"); got.Delivered != 1100 || got.Blocked != 0 || got.Ready != 0 {
					t.Errorf("in the end %d are delivered, %d ready, %d blocked", got.Delivered, got.Ready, got.Blocked)
				}
				r.checkConsistency()
			})
		})
	}
}

// A place is free when the delivery ends, however it ends.
func TestPerGroupPlaces(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		ctx := t.Context()
		r.topic("x", tasks.TopicSettings{ConcurrencyPerGroup: 1, Lease: 10 * time.Second, Retry: tasks.Retry{MinBackoff: time.Hour, MaxBackoff: time.Hour}})
		r.grouped("x", "g", 12, 0)
		pass(time.Second)
		next := 0
		taken := func(what string) tasks.Delivery {
			t.Helper()
			ds, err := r.Reserve(ctx, "x", tasks.MaxReserve, 0, 0)
			if want(t, "Reserve", err, nil); len(ds) != 1 || ds[0].ID != fmt.Sprintf("gx-%03d", next) {
				t.Fatalf("%s: %d tasks are reserved, want gx-%03d", what, len(ds), next)
			}
			next++
			r.pull("x") // no other
			r.checkConsistency()
			return ds[0]
		}
		r.ack(taken("at first"))
		r.settle(tasks.Verdict{Verb: tasks.Release}, taken("after an acknowledgement"))
		r.settle(tasks.Verdict{Verb: tasks.Bury}, taken("after a failure"))
		d := taken("after a burial")
		r.settle(tasks.Verdict{Verb: tasks.Return}, d)
		next--
		taken("after a return")
		pass(12 * time.Second) // its lease
		d = taken("after a lease")
		r.settle(tasks.Verdict{Verb: tasks.Extend, Lease: time.Minute}, d)
		pass(30 * time.Second)
		r.pull("x")
		r.ack(d)
		// Waiting tasks of the group come and go.
		want(t, "Cancel", r.Cancel(ctx, fmt.Sprintf("gx-%03d", next)), nil)
		next++
		_, err := r.Reschedule(ctx, fmt.Sprintf("gx-%03d", next), tasks.Move{Delay: ptr(time.Hour)})
		want(t, "Reschedule", err, nil)
		next++
		_, err = r.Hold(ctx, fmt.Sprintf("gx-%03d", next))
		want(t, "Hold", err, nil)
		next++
		open := taken("after others have left")
		_, err = r.Fire(ctx, fmt.Sprintf("gx-%03d", next-1))
		want(t, "Fire of the one that is delivered", err, tasks.ErrDelivering)
		_, err = r.Replace(ctx, tasks.Request{ID: fmt.Sprintf("gx-%03d", next), Topic: "x", Group: "other"})
		want(t, "Replace", err, nil)
		r.pull("x", fmt.Sprintf("gx-%03d", next)) // it is of another group now
		next++
		// A parked delivery counts after a restart.
		r.restart()
		pass(time.Second)
		if got := r.counts("x"); got.Blocked == 0 || got.Delivering != 2 {
			t.Errorf("after a restart %d are blocked, %d delivering", got.Blocked, got.Delivering)
		}
		r.pull("x")
		r.checkConsistency()
		r.ack(open)
		taken("after a restart")
		r.crash() // which forgets deliveries
		pass(time.Second)
		next--
		taken("after a crash")
	})
}

// A receiver that waits is woken by the end of a delivery of the group, and by tasks of others.
func TestPerGroupWakes(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		r.topic("x", tasks.TopicSettings{ConcurrencyPerGroup: 2})
		r.grouped("x", "g", 5, 0)
		pass(time.Second)
		open := r.pull("x", "gx-000", "gx-001")
		got := make(chan string, 10)
		for range 3 {
			go func() {
				ds, err := r.Reserve(t.Context(), "x", 1, 10*time.Second, 0)
				if err != nil || len(ds) != 1 {
					got <- fmt.Sprint(len(ds), err)
					return
				}
				got <- ds[0].ID
			}()
			pass(time.Millisecond)
		}
		if len(got) != 0 {
			t.Fatalf("a receiver got %s", <-got)
		}
		r.ack(open[0])
		pass(0)
		if id := <-got; id != "gx-002" {
			t.Errorf("the first receiver got %s", id)
		}
		r.must(tasks.Request{ID: "alone", Topic: "x"})
		pass(0)
		if id := <-got; id != "alone" {
			t.Errorf("the second receiver got %s", id)
		}
		pass(11 * time.Second)
		if id := <-got; id != "0 <nil>" {
			t.Errorf("the third receiver got %s", id)
		}
		r.checkConsistency()
	})
}

// The bound is set, raised, lowered and taken away while tasks wait.
func TestPerGroupChanges(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		set := tasks.TopicSettings{Lease: time.Hour}
		r.topic("x", set)
		const groups = 700 // more than are reviewed under one lock
		for g := range groups {
			r.grouped("x", fmt.Sprint("g", g), 3, 0)
		}
		pass(time.Second)
		limit := func(n int) {
			set.ConcurrencyPerGroup = n
			r.topic("x", set)
			pass(0)
			r.checkConsistency()
		}
		take := func(what string, most int, want ...int) {
			t.Helper()
			total := 0
			for range mostPages {
				ds, err := r.Reserve(t.Context(), "x", tasks.MaxReserve, 0, 0)
				if err != nil {
					t.Fatal(err)
				}
				if total += len(ds); len(ds) == 0 {
					break
				}
			}
			if total != want[0] {
				t.Errorf("%s: %d are taken; want %d", what, total, want[0])
			}
			r.checkConsistency()
		}
		limit(1) // the tasks are in the topic's queue
		take("1", 1, groups)
		limit(2)
		take("2", 2, groups)
		limit(1)
		take("1 again", 1, 0)
		limit(0)
		take("no bound", 0, groups)
		if got := r.counts("x"); got.Blocked != 0 || got.Delivering != 3*groups {
			t.Errorf("%d blocked, %d delivering", got.Blocked, got.Delivering)
		}
		limit(3)
		r.grouped("x", "new", 4, 0)
		pass(time.Second)
		take("3", 3, 3)
		for _, bad := range []int{-1, tasks.MaxPerGroup + 1} {
			_, err := r.SetTopic(t.Context(), "x", tasks.TopicSettings{ConcurrencyPerGroup: bad}, -1)
			wantFaults(t, fmt.Sprint(bad), err, "concurrency_per_group")
		}
	})
}

// A bound holds for what other nodes take: by receivers that wait there, and in a backlog. It goes
// with a shard, and its open deliveries, to another node.
func TestPerGroupInAFleet(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		ctx := t.Context()
		a, b := f.join("a", 1, tasks.Config{}), f.join("b", 1, tasks.Config{})
		for _, n := range f.nodes {
			_, err := n.SetTopic(ctx, "x", tasks.TopicSettings{ConcurrencyPerGroup: 1}, -1)
			want(t, "SetTopic", err, nil)
		}
		var ids []string
		for range 4 {
			ids = append(ids, a.create(tasks.Request{ID: a.idAt(0), Topic: "x", Group: "g"}))
			pass(10 * time.Millisecond)
		}
		d := <-b.reserve(ctx, "x", 10, 5*time.Second, 0) // at a, for a receiver of b
		b.want(d, ids[0])
		a.pull("x")
		waits := b.reserve(ctx, "x", 10, 20*time.Second, 0)
		pass(time.Second)
		b.settle(tasks.Ack, d[0])
		b.want(<-waits, ids[1])
		a.check()
		b.keeps.Store(true)
		want(t, "hand-over", a.handTo(b), nil)
		pass(time.Second)
		b.pull("x") // the delivery that is open has come along
		if c, err := b.Topic("x"); err != nil || c.Counts.Blocked != 2 {
			t.Errorf("%d are blocked, %v", c.Counts.Blocked, err)
		}
		pass(35 * time.Second) // its lease, and the backoff
		b.settle(tasks.Ack, b.pull("x", ids[2])[0])
		b.settle(tasks.Ack, b.pull("x", ids[3])[0])
		b.pull("x", ids[1]) // a retry is due later
		b.check()
	})
}

// During a backlog other nodes take no more of a group than may be under way.
func TestPerGroupOffloaded(t *testing.T) {
	poolBubble(t, func(t *testing.T, f *fleet) {
		ctx := t.Context()
		a, b := f.nodes[0], f.nodes[1]
		busy := newFloor()
		for _, n := range f.nodes {
			want(t, "Handle", n.Handle("x", busy.took(100*time.Millisecond)), nil)
			_, err := n.SetTopic(ctx, "x", tasks.TopicSettings{ConcurrencyPerGroup: 2}, -1)
			want(t, "SetTopic", err, nil)
		}
		// The groups have more places than the first node, whose concurrency rises to 1,024. Of
		// fewer it may take all, and leave none to the other.
		reqs := make([]tasks.Request, 8000)
		for i := range reqs {
			reqs[i] = tasks.Request{ID: fmt.Sprint("t", i), Topic: "x", Group: fmt.Sprint("g", i%2000)}
		}
		_, err := a.ScheduleBatch(ctx, reqs)
		want(t, "ScheduleBatch", err, nil)
		for a.Stats().Total.Delivered < int64(len(reqs)) {
			pass(100 * time.Millisecond)
		}
		for g, most := range busy.most {
			if most > 2 {
				t.Errorf("%d deliveries of %s at once", most, g)
			}
		}
		if b.Cluster().Peers.Counts.OffloadedIn.Load() == 0 {
			t.Error("nothing was offloaded")
		}
		a.check()
	}, tasks.Config{SweepBacklog: 100}, tasks.Config{})
}

// What a handler fails comes back, in its turn.
func TestPerGroupRetries(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		f := newFloor()
		want(t, "Handle", r.Handle("x", func(_ context.Context, d *tasks.Delivery) error {
			f.enter(d)
			defer f.leave(d)
			time.Sleep(100 * time.Millisecond)
			if d.Attempt < 3 {
				return errors.New("not yet")
			}
			return nil
		}), nil)
		r.topic("x", tasks.TopicSettings{ConcurrencyPerGroup: 1, Retry: tasks.Retry{MinBackoff: time.Second, MaxBackoff: 2 * time.Second}})
		for g := range 5 {
			r.grouped("x", fmt.Sprint("g", g), 20, time.Minute)
		}
		pass(5 * time.Minute)
		if c := r.counts("x"); c.Delivered != 100 || c.Failed != 200 {
			t.Errorf("%d delivered, %d attempts failed", c.Delivered, c.Failed)
		}
		for g, most := range f.most {
			if most != 1 {
				t.Errorf("%d deliveries of %s at once", most, g)
			}
		}
		r.checkConsistency()
	})
}

// A task that is given back comes before its successors of the same group, those of the same
// millisecond too.
func TestPerGroupReturnKeepsPlace(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		r.topic("x", tasks.TopicSettings{ConcurrencyPerGroup: 1})
		for _, id := range []string{"a", "b", "c"} {
			r.must(tasks.Request{ID: id, Topic: "x", Group: "g", Delay: time.Second})
		}
		pass(2 * time.Second)
		r.settle(tasks.Verdict{Verb: tasks.Return}, r.pull("x", "a")[0])
		r.Return(r.pull("x", "a"))
		for _, id := range []string{"a", "b", "c"} {
			r.ack(r.pull("x", id)[0])
		}
		r.checkConsistency()
	})
}
