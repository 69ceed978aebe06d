package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
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
func grouped(r *rig.Rig, topic, group string, n int, delay time.Duration) {
	r.T.Helper()
	for i := range n {
		r.Must(tasks.Request{ID: fmt.Sprintf("%s%s-%03d", group, topic, i), Topic: topic, Group: group, Delay: delay + time.Duration(i)*time.Millisecond})
	}
}

// At most so many of a group are delivered at once; others do not wait for them, and all are
// delivered as soon as the bound lets them. By workers, in batches, and recording each attempt.
func TestPerGroupPushed(t *testing.T) {
	for _, limit := range []int{1, 3} {
		for _, crashes := range []bool{false, true} {
			t.Run(fmt.Sprint(limit, crashes), func(t *testing.T) {
				rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
					f := newFloor()
					rig.Want(t, "Handle", r.Handle("x", f.took(time.Second)), nil)
					r.MustSetTopic("x", tasks.TopicSettings{ConcurrencyPerGroup: limit, CountCrashes: crashes})
					grouped(r, "x", "a", 30, time.Minute)
					grouped(r, "x", "b", 30, time.Minute)
					grouped(r, "x", "", 30, time.Minute)
					rig.Pass(time.Minute + 1500*time.Millisecond)
					if c := r.Counts("x"); c.Delivered != int64(30+2*limit) || c.Delivering != int64(2*limit) || c.Blocked != int64(60-4*limit) || c.Ready != c.Blocked {
						t.Errorf("after the first second: %d delivered, %d are delivering, %d of %d ready are blocked", c.Delivered, c.Delivering, c.Blocked, c.Ready)
					}
					r.CheckConsistency()
					rig.Pass(time.Duration(30/limit) * time.Second)
					if c := r.Counts("x"); c.Delivered != 90 || f.most["a"] != limit || f.most["b"] != limit || f.most[""] != 30 {
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
					r.CheckConsistency()
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
			rig.Bubble(t, tasks.Config{MaxDeliveries: 4}, func(t *testing.T, r *rig.Rig) {
				c := &rig.Courier{KindName: "courier", Batches: batches}
				block := make(chan struct{})
				c.Fail = func(d *tasks.Delivery, _ string) error {
					if d.Group == "slow" {
						<-block
					}
					return nil
				}
				rig.Want(t, "Deliver", r.Deliver("x", map[bool]tasks.Deliverer{false: &rig.Round{Courier: c, To: "rome"}, true: &rig.Ride{Round: rig.Round{Courier: c, To: "rome"}}}[batches]), nil)
				r.MustSetTopic("x", tasks.TopicSettings{ConcurrencyPerGroup: 1, Concurrency: 4})
				grouped(r, "x", "slow", 1000, time.Minute)
				rig.Pass(50 * time.Second)
				for i := range 100 {
					r.Must(tasks.Request{ID: fmt.Sprint("other", i), Topic: "x", Group: fmt.Sprint("g", i), Delay: 20 * time.Second})
				}
				rig.Pass(30 * time.Second)
				if got := r.Counts("x"); got.Delivered != 100 || got.Blocked != 999 {
					t.Errorf("%d delivered, %d blocked", got.Delivered, got.Blocked)
				}
				r.CheckConsistency()
				close(block)
				rig.Pass(time.Minute)
				if got := r.Counts("x"); got.Delivered != 1100 || got.Blocked != 0 || got.Ready != 0 {
					t.Errorf("in the end %d are delivered, %d ready, %d blocked", got.Delivered, got.Ready, got.Blocked)
				}
				r.CheckConsistency()
			})
		})
	}
}

// A place is free when the delivery ends, however it ends.
func TestPerGroupPlaces(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		ctx := t.Context()
		r.MustSetTopic("x", tasks.TopicSettings{ConcurrencyPerGroup: 1, Lease: 10 * time.Second, Retry: tasks.Retry{MinBackoff: time.Hour, MaxBackoff: time.Hour}})
		grouped(r, "x", "g", 12, 0)
		rig.Pass(time.Second)
		next := 0
		taken := func(what string) tasks.Delivery {
			t.Helper()
			ds, err := r.Reserve(ctx, "x", tasks.MaxReserve, 0, 0)
			if rig.Want(t, "Reserve", err, nil); len(ds) != 1 || ds[0].ID != fmt.Sprintf("gx-%03d", next) {
				t.Fatalf("%s: %d tasks are reserved, want gx-%03d", what, len(ds), next)
			}
			next++
			r.Pull("x") // no other
			r.CheckConsistency()
			return ds[0]
		}
		r.Ack(taken("at first"))
		r.SettleOne(tasks.Verdict{Verb: tasks.Release}, taken("after an acknowledgement"))
		r.SettleOne(tasks.Verdict{Verb: tasks.Bury}, taken("after a failure"))
		d := taken("after a burial")
		r.SettleOne(tasks.Verdict{Verb: tasks.Return}, d)
		next--
		taken("after a return")
		rig.Pass(12 * time.Second) // its lease
		d = taken("after a lease")
		r.SettleOne(tasks.Verdict{Verb: tasks.Extend, Lease: time.Minute}, d)
		rig.Pass(30 * time.Second)
		r.Pull("x")
		r.Ack(d)
		// Waiting tasks of the group come and go.
		rig.Want(t, "Cancel", r.Cancel(ctx, fmt.Sprintf("gx-%03d", next)), nil)
		next++
		_, err := r.Reschedule(ctx, fmt.Sprintf("gx-%03d", next), tasks.Move{Delay: rig.Ptr(time.Hour)})
		rig.Want(t, "Reschedule", err, nil)
		next++
		_, err = r.Hold(ctx, fmt.Sprintf("gx-%03d", next))
		rig.Want(t, "Hold", err, nil)
		next++
		open := taken("after others have left")
		_, err = r.Fire(ctx, fmt.Sprintf("gx-%03d", next-1))
		rig.Want(t, "Fire of the one that is delivered", err, tasks.ErrDelivering)
		_, err = r.Replace(ctx, tasks.Request{ID: fmt.Sprintf("gx-%03d", next), Topic: "x", Group: "other"})
		rig.Want(t, "Replace", err, nil)
		r.Pull("x", fmt.Sprintf("gx-%03d", next)) // it is of another group now
		next++
		// A parked delivery counts after a restart.
		r.Restart()
		rig.Pass(time.Second)
		if got := r.Counts("x"); got.Blocked == 0 || got.Delivering != 2 {
			t.Errorf("after a restart %d are blocked, %d delivering", got.Blocked, got.Delivering)
		}
		r.Pull("x")
		r.CheckConsistency()
		r.Ack(open)
		taken("after a restart")
		r.Crash() // which forgets deliveries
		rig.Pass(time.Second)
		next--
		taken("after a crash")
	})
}

// A receiver that waits is woken by the end of a delivery of the group, and by tasks of others.
func TestPerGroupWakes(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", tasks.TopicSettings{ConcurrencyPerGroup: 2})
		grouped(r, "x", "g", 5, 0)
		rig.Pass(time.Second)
		open := r.Pull("x", "gx-000", "gx-001")
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
			rig.Pass(time.Millisecond)
		}
		if len(got) != 0 {
			t.Fatalf("a receiver got %s", <-got)
		}
		r.Ack(open[0])
		rig.Pass(0)
		if id := <-got; id != "gx-002" {
			t.Errorf("the first receiver got %s", id)
		}
		r.Must(tasks.Request{ID: "alone", Topic: "x"})
		rig.Pass(0)
		if id := <-got; id != "alone" {
			t.Errorf("the second receiver got %s", id)
		}
		rig.Pass(11 * time.Second)
		if id := <-got; id != "0 <nil>" {
			t.Errorf("the third receiver got %s", id)
		}
		r.CheckConsistency()
	})
}

// The bound is set, raised, lowered and taken away while tasks wait.
func TestPerGroupChanges(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		set := tasks.TopicSettings{Lease: time.Hour}
		r.MustSetTopic("x", set)
		const groups = 700 // more than are reviewed under one lock
		for g := range groups {
			grouped(r, "x", fmt.Sprint("g", g), 3, 0)
		}
		rig.Pass(time.Second)
		limit := func(n int) {
			set.ConcurrencyPerGroup = n
			r.MustSetTopic("x", set)
			rig.Pass(0)
			r.CheckConsistency()
		}
		take := func(what string, most int, want ...int) {
			t.Helper()
			total := 0
			for range rig.MostPages {
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
			r.CheckConsistency()
		}
		limit(1) // the tasks are in the topic's queue
		take("1", 1, groups)
		limit(2)
		take("2", 2, groups)
		limit(1)
		take("1 again", 1, 0)
		limit(0)
		take("no bound", 0, groups)
		if got := r.Counts("x"); got.Blocked != 0 || got.Delivering != 3*groups {
			t.Errorf("%d blocked, %d delivering", got.Blocked, got.Delivering)
		}
		limit(3)
		grouped(r, "x", "new", 4, 0)
		rig.Pass(time.Second)
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
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		ctx := t.Context()
		a, b := f.Join("a", 1, tasks.Config{}), f.Join("b", 1, tasks.Config{})
		for _, n := range f.Nodes {
			_, err := n.SetTopic(ctx, "x", tasks.TopicSettings{ConcurrencyPerGroup: 1}, -1)
			rig.Want(t, "SetTopic", err, nil)
		}
		var ids []string
		for range 4 {
			ids = append(ids, a.Create(tasks.Request{ID: a.IDAt(0), Topic: "x", Group: "g"}))
			rig.Pass(10 * time.Millisecond)
		}
		d := <-b.StartReserve(ctx, "x", 10, 5*time.Second, 0) // at a, for a receiver of b
		b.Want(d, ids[0])
		a.Pull("x")
		waits := b.StartReserve(ctx, "x", 10, 20*time.Second, 0)
		rig.Pass(time.Second)
		b.SettleOne(tasks.Ack, d[0])
		b.Want(<-waits, ids[1])
		a.Check()
		b.Keeps.Store(true)
		rig.Want(t, "hand-over", a.HandTo(b), nil)
		rig.Pass(time.Second)
		b.Pull("x") // the delivery that is open has come along
		if c, err := b.Topic("x"); err != nil || c.Counts.Blocked != 2 {
			t.Errorf("%d are blocked, %v", c.Counts.Blocked, err)
		}
		rig.Pass(35 * time.Second) // its lease, and the backoff
		b.SettleOne(tasks.Ack, b.Pull("x", ids[2])[0])
		b.SettleOne(tasks.Ack, b.Pull("x", ids[3])[0])
		b.Pull("x", ids[1]) // a retry is due later
		b.Check()
	})
}

// During a backlog other nodes take no more of a group than may be under way.
func TestPerGroupOffloaded(t *testing.T) {
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		ctx := t.Context()
		a, b := f.Nodes[0], f.Nodes[1]
		busy := newFloor()
		for _, n := range f.Nodes {
			rig.Want(t, "Handle", n.Handle("x", busy.took(100*time.Millisecond)), nil)
			_, err := n.SetTopic(ctx, "x", tasks.TopicSettings{ConcurrencyPerGroup: 2}, -1)
			rig.Want(t, "SetTopic", err, nil)
		}
		// The groups have more places than the first node, whose concurrency rises to 1,024. Of
		// fewer it may take all, and leave none to the other.
		reqs := make([]tasks.Request, 8000)
		for i := range reqs {
			reqs[i] = tasks.Request{ID: fmt.Sprint("t", i), Topic: "x", Group: fmt.Sprint("g", i%2000)}
		}
		_, err := a.ScheduleBatch(ctx, reqs)
		rig.Want(t, "ScheduleBatch", err, nil)
		for a.Stats().Total.Delivered < int64(len(reqs)) {
			rig.Pass(100 * time.Millisecond)
		}
		for g, most := range busy.most {
			if most > 2 {
				t.Errorf("%d deliveries of %s at once", most, g)
			}
		}
		if b.Cluster().Peers.Counts.OffloadedIn.Load() == 0 {
			t.Error("nothing was offloaded")
		}
		a.Check()
	}, tasks.Config{SweepBacklog: 100}, tasks.Config{})
}

// What a handler fails comes back, in its turn.
func TestPerGroupRetries(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		f := newFloor()
		rig.Want(t, "Handle", r.Handle("x", func(_ context.Context, d *tasks.Delivery) error {
			f.enter(d)
			defer f.leave(d)
			time.Sleep(100 * time.Millisecond)
			if d.Attempt < 3 {
				return errors.New("not yet")
			}
			return nil
		}), nil)
		r.MustSetTopic("x", tasks.TopicSettings{ConcurrencyPerGroup: 1, Retry: tasks.Retry{MinBackoff: time.Second, MaxBackoff: 2 * time.Second}})
		for g := range 5 {
			grouped(r, "x", fmt.Sprint("g", g), 20, time.Minute)
		}
		rig.Pass(5 * time.Minute)
		if c := r.Counts("x"); c.Delivered != 100 || c.Failed != 200 {
			t.Errorf("%d delivered, %d attempts failed", c.Delivered, c.Failed)
		}
		for g, most := range f.most {
			if most != 1 {
				t.Errorf("%d deliveries of %s at once", most, g)
			}
		}
		r.CheckConsistency()
	})
}

// A task that is given back comes before its successors of the same group, those of the same
// millisecond too.
func TestPerGroupReturnKeepsPlace(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", tasks.TopicSettings{ConcurrencyPerGroup: 1})
		for _, id := range []string{"a", "b", "c"} {
			r.Must(tasks.Request{ID: id, Topic: "x", Group: "g", Delay: time.Second})
		}
		rig.Pass(2 * time.Second)
		r.SettleOne(tasks.Verdict{Verb: tasks.Return}, r.Pull("x", "a")[0])
		r.Admin().Return(r.Pull("x", "a"))
		for _, id := range []string{"a", "b", "c"} {
			r.Ack(r.Pull("x", id)[0])
		}
		r.CheckConsistency()
	})
}
