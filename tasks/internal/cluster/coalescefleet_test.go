package cluster_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine/coalesce"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A coalescing is a fleet whose nodes coalesce the misfired tasks of topic x.
type coalescing struct {
	*rig.Fleet
	cfg Config

	mu     sync.Mutex
	newest map[string]string   // by group, of those that were created
	got    map[string][]string // delivered ids, by group
}

// coalescingBubble runs a test on so many nodes, with a shard each.
func coalescingBubble(t *testing.T, nodes int, set TopicSettings, test func(t *testing.T, c *coalescing)) {
	t.Helper()
	set.Misfire = MisfireCoalesce
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		c := &coalescing{
			Fleet: f, cfg: Config{Topics: map[string]TopicSettings{"x": set}},
			newest: make(map[string]string), got: make(map[string][]string),
		}
		for i := range nodes {
			f.Start(string(rune('a'+i)), 1, c.cfg)
		}
		rig.Pass(3 * time.Second)
		test(t, c)
		for _, n := range f.Nodes {
			if !n.Dead {
				n.Check()
				if st := n.Stats(); st.Rescued != 0 {
					t.Errorf("the sweep of %s rescued %d tasks", n.Name, st.Rescued)
				}
			}
		}
	})
}

// task creates a task at a node. The tasks of a group have to be created in the order of their
// deadlines.
func (c *coalescing) task(n *rig.Node, group string, delay time.Duration) string {
	c.T.Helper()
	id := n.Create(Request{ID: n.IDAt(0), Topic: "x", Group: group, Delay: delay})
	c.newest[group] = id
	return id
}

// spread creates so many tasks in each of so many groups, on the nodes in turn. They are due within
// two seconds.
func (c *coalescing) spread(nodes []*rig.Node, groups, each int) {
	c.T.Helper()
	for i := range each {
		for g := range groups {
			c.task(nodes[(g+i)%len(nodes)], fmt.Sprint("g", g), time.Second+time.Duration(i)*10*time.Millisecond)
		}
	}
}

// handle has a node deliver.
func (c *coalescing) handle(n *rig.Node) {
	c.T.Helper()
	rig.Want(c.T, "Handle", n.Handle("x", func(_ context.Context, d *Delivery) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.got[d.Group] = append(c.got[d.Group], d.ID)
		return nil
	}), nil)
}

// crash ends all nodes as kill -9 would.
func (c *coalescing) crash() {
	for _, n := range c.Nodes {
		if !n.Dead {
			n.Crash()
		}
	}
}

// restart starts nodes again, which deliver.
func (c *coalescing) restart(nodes ...*rig.Node) {
	c.T.Helper()
	for _, n := range nodes {
		n.Restart()
		c.handle(n)
	}
}

// deliveries returns how many deliveries there were. It fails the test if the newest task of a
// group was not delivered.
func (c *coalescing) deliveries() (n int) {
	c.T.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range slices.Sorted(maps.Keys(c.newest)) {
		n += len(c.got[g])
		if !slices.Contains(c.got[g], c.newest[g]) {
			c.T.Errorf("of group %s %q were delivered; want %s among them", g, c.got[g], c.newest[g])
		}
	}
	return n
}

// wantDeliveries fails the test unless there were so many deliveries, the newest of each group
// among them.
func (c *coalescing) wantDeliveries(n int) {
	c.T.Helper()
	if got := c.deliveries(); got != n {
		c.T.Errorf("%d deliveries of %d groups; want %d: %q", got, len(c.newest), n, c.got)
	}
}

// skipped returns how many tasks the living nodes have skipped.
func (c *coalescing) skipped() (n int64) {
	for _, node := range c.Nodes {
		if !node.Dead {
			n += node.Stats().Total.Skipped
		}
	}
	return n
}

// Of the tasks of a group, on whichever nodes, the newest is delivered, in the usual outages.
func TestCoalesceOverAllNodes(t *testing.T) {
	const groups, each = 10, 9
	for name, outage := range map[string]func(c *coalescing){
		"AllRestart": func(c *coalescing) {
			c.crash()
			rig.Pass(time.Minute)
			c.restart(c.Nodes...)
		},
		"OneAfterTheOther": func(c *coalescing) {
			c.crash()
			rig.Pass(time.Minute)
			for _, n := range c.Nodes {
				c.restart(n)
				rig.Pass(4 * time.Second)
			}
		},
		"OneRestarts": func(c *coalescing) {
			c.handle(c.Nodes[1])
			c.handle(c.Nodes[2])
			c.Nodes[0].Crash()
			rig.Pass(time.Minute)
			c.restart(c.Nodes[0])
		},
		"OneDoesNotComeBack": func(c *coalescing) {
			c.crash()
			rig.Pass(time.Minute)
			c.restart(c.Nodes[:2]...)
			rig.Pass(10 * time.Second)
			c.Nodes[1].Adopt(c.Nodes[2])
		},
		"OneComesBackLater": func(c *coalescing) {
			c.crash()
			rig.Pass(time.Minute)
			c.restart(c.Nodes[:2]...)
			rig.Pass(10 * time.Second)
			c.Nodes[1].Adopt(c.Nodes[2])
			rig.Pass(10 * time.Second)
			c.restart(c.Nodes[2])
			rig.Pass(10 * time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			coalescingBubble(t, 3, TopicSettings{}, func(t *testing.T, c *coalescing) {
				if name == "OneRestarts" {
					c.spread(c.Nodes[:1], groups, each)
				} else {
					c.spread(c.Nodes, groups, each)
				}
				outage(c)
				rig.Pass(20 * time.Second)
				c.wantDeliveries(groups)
				if n := c.skipped(); n != groups*(each-1) {
					t.Errorf("%d were skipped; want %d", n, groups*(each-1))
				}
			})
		})
	}
}

// Two nodes die, and two others adopt a shard each, one later than the other.
func TestCoalesceAdoptedByTwo(t *testing.T) {
	coalescingBubble(t, 4, TopicSettings{}, func(t *testing.T, c *coalescing) {
		a, b, x, y := c.Nodes[0], c.Nodes[1], c.Nodes[2], c.Nodes[3]
		for i := range 6 {
			c.task(c.Nodes[2+i%2], "g", time.Second+time.Duration(i)*time.Millisecond)
		}
		c.handle(a)
		c.handle(b)
		x.Crash()
		y.Crash()
		rig.Pass(10 * time.Second)
		a.Adopt(x)
		rig.Pass(2 * time.Second)
		b.Adopt(y)
		rig.Pass(5 * time.Second)
		c.wantDeliveries(1)
	})
}

// A node remembers what it has let go, for what is adopted later.
func TestCoalesceAdoptedAfterwards(t *testing.T) {
	coalescingBubble(t, 4, TopicSettings{}, func(t *testing.T, c *coalescing) {
		a, b, x, y := c.Nodes[0], c.Nodes[1], c.Nodes[2], c.Nodes[3]
		c.task(x, "g", time.Second)
		c.task(y, "g", 2*time.Second)
		c.handle(a)
		c.handle(b)
		x.Crash()
		y.Crash()
		rig.Pass(10 * time.Second)
		a.Adopt(y)
		rig.Pass(40 * time.Second)
		c.wantDeliveries(1) // no other node had adopted the rest
		b.Adopt(x)
		rig.Pass(5 * time.Second)
		c.wantDeliveries(1)
		if n := c.skipped(); n != 1 {
			t.Errorf("%d were skipped; want 1", n)
		}
	})
}

// Shards that are handed over in order, while their tasks are held back or waited for, have no
// misfired tasks at their next node. Nothing is skipped for them.
func TestCoalesceHandedOver(t *testing.T) {
	for name, of := range map[string]int{"Older": 0, "Newest": 1} {
		t.Run(name, func(t *testing.T) {
			coalescingBubble(t, 3, TopicSettings{}, func(t *testing.T, c *coalescing) {
				older := c.task(c.Nodes[0], "g", time.Second)
				newest := c.task(c.Nodes[1], "g", 2*time.Second)
				c.crash()
				rig.Pass(time.Minute)
				for _, n := range c.Nodes {
					n.Restart()
				}
				rig.Pass(3 * time.Second)
				c.Nodes[2].Keeps.Store(true) // its owner asks for it
				rig.Want(t, "hand-over", c.Nodes[of].HandTo(c.Nodes[2]), nil)
				rig.Pass(5 * time.Second)
				if one := c.Nodes[2].MustGet([]string{older, newest}[of]); one.State != Ready {
					t.Errorf("what was handed over is %v", one.State)
				}
				for _, n := range c.Nodes {
					c.handle(n)
				}
				rig.Pass(5 * time.Second)
				c.wantDeliveries(2)
			})
		})
	}
}

// A paused topic decides nothing, however long that takes.
func TestCoalescePaused(t *testing.T) {
	t.Parallel()
	coalescingBubble(t, 2, TopicSettings{}, func(t *testing.T, c *coalescing) {
		a, b := c.Nodes[0], c.Nodes[1]
		older := c.task(a, "g", time.Second)
		newest := c.task(b, "g", 2*time.Second)
		c.crash()
		rig.Pass(time.Minute)
		a.Restart()
		b.Restart()
		rig.Pass(5 * time.Second)
		rig.Want(t, "PauseTopic", a.Admin().PauseTopic(t.Context(), "x", true), nil)
		rig.Pass(time.Hour)
		if one := a.MustGet(older); one.State != Pending {
			t.Fatalf("the older one is %v", one.State)
		}
		rig.Want(t, "PauseTopic", a.Admin().PauseTopic(t.Context(), "x", false), nil)
		rig.Pass(time.Minute)
		b.Ack(b.PullOwn("x", newest)[0])
		rig.Pass(5 * time.Second)
		if n := c.skipped(); n != 1 {
			t.Errorf("%d were skipped; want 1", n)
		}
	})
}

// A node without others asks none, and remembers nothing.
func TestCoalesceAlone(t *testing.T) {
	coalescingBubble(t, 1, TopicSettings{}, func(t *testing.T, c *coalescing) {
		c.spread(c.Nodes, 3, 2)
		c.crash()
		rig.Pass(time.Minute)
		sent := c.Sent.Load()
		c.restart(c.Nodes...)
		rig.Pass(100 * time.Millisecond)
		c.wantDeliveries(3)
		e := c.Nodes[0].Engine()
		rig.Mutex(e).Lock()
		defer rig.Mutex(e).Unlock()
		known, _ := e.Misfires.Board.Remembered(coalesce.Group{Topic: "x", Name: "g0"})
		if n := c.Sent.Load() - sent; n != 0 || known != nil {
			t.Errorf("%d messages were sent; remembered: %+v", n, known)
		}
	})
}

// While the newest task of a group waits at another node, an older one is held back. What becomes
// of the newest decides about it.
func TestCoalesceWaitsForTheNewest(t *testing.T) {
	ack := func(c *coalescing, n *rig.Node, _ string) {
		for _, d := range n.Pull("x", c.newest["g"]) {
			n.Ack(d)
		}
	}
	for name, test := range map[string]struct {
		happens   func(c *coalescing, n *rig.Node, newest string)
		delivered bool // the older one
	}{
		"Acknowledged": {ack, false},
		"Cancelled": {func(c *coalescing, n *rig.Node, id string) {
			rig.Want(c.T, "Cancel", n.Cancel(c.T.Context(), id), nil)
		}, true},
		"Moved": {func(c *coalescing, n *rig.Node, id string) {
			_, err := n.Reschedule(c.T.Context(), id, Move{Delay: rig.Ptr(time.Hour)})
			rig.Want(c.T, "Reschedule", err, nil)
		}, true},
		"Held": {func(c *coalescing, n *rig.Node, id string) {
			_, err := n.Hold(c.T.Context(), id)
			rig.Want(c.T, "Hold", err, nil)
		}, true},
		"InAnotherGroup": {func(c *coalescing, n *rig.Node, id string) {
			_, err := n.Replace(c.T.Context(), Request{ID: id, Topic: "x", Group: "h", Delay: time.Hour})
			rig.Want(c.T, "Replace", err, nil)
		}, true},
		"GroupCancelled": {func(c *coalescing, n *rig.Node, id string) {
			rig.Want(c.T, "Cancel", n.Cancel(c.T.Context(), id), nil)
			c.task(n, "g", time.Hour)
		}, true},
		"Dead": {func(_ *coalescing, n *rig.Node, id string) {
			n.SettleOne(Bury, n.Pull("x", id)[0])
		}, true},
		"Retried": {func(c *coalescing, n *rig.Node, id string) {
			n.SettleOne(Release, n.Pull("x", id)[0])
			rig.Pass(5 * time.Second)
			ack(c, n, id)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			coalescingBubble(t, 2, TopicSettings{Retry: Retry{MaxAttempts: 3}}, func(t *testing.T, c *coalescing) {
				a, b := c.Nodes[0], c.Nodes[1]
				older := c.task(a, "g", time.Second)
				newest := c.task(b, "g", 2*time.Second)
				c.crash()
				rig.Pass(time.Minute)
				a.Restart()
				b.Restart()
				rig.Pass(5 * time.Second)
				if one := a.MustGet(older); one.State != Pending {
					t.Fatalf("the older one is %v", one.State)
				}
				test.happens(c, b, newest)
				rig.Pass(5 * time.Second)
				if !test.delivered {
					a.Pull("x")
					if n := c.skipped(); n != 1 {
						t.Errorf("%d were skipped; want 1", n)
					}
					return
				}
				a.Ack(a.PullOwn("x", older)[0])
				if n := c.skipped(); n != 0 {
					t.Errorf("%d were skipped; want 0", n)
				}
			})
		})
	}
}

// A node is held up by others only for so long.
func TestCoalesceBounds(t *testing.T) {
	both := func(_ *coalescing, a, b *rig.Node) { b.Restart(); a.Restart() }
	alone := func(_ *coalescing, a, _ *rig.Node) { a.Restart() }
	for name, test := range map[string]struct {
		lateness time.Duration // of the older task, which is 60 s late at the start
		start    func(c *coalescing, a, b *rig.Node)
		wait     time.Duration // of the older task
	}{
		"NoAnswer": {0, func(c *coalescing, a, b *rig.Node) {
			both(c, a, b)
			c.Lose(func(_, to string, _ []byte) bool { return to == "b" })
		}, 30 * time.Second},
		"Dead":                    {0, alone, 30 * time.Second},
		"NewestWaits":             {0, both, 10*time.Minute + 30*time.Second},
		"NewestWaitsUntilTooLate": {2 * time.Minute, both, 55 * time.Second},
		"DeadUntilTooLate":        {80 * time.Second, alone, 15 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			coalescingBubble(t, 2, TopicSettings{Lease: 30 * time.Second}, func(t *testing.T, c *coalescing) {
				a, b := c.Nodes[0], c.Nodes[1]
				older := a.Create(Request{ID: a.IDAt(0), Topic: "x", Group: "g", Delay: time.Second, MaxLateness: test.lateness})
				c.task(b, "g", 2*time.Second)
				c.crash()
				rig.Pass(61 * time.Second)
				test.start(c, a, b)
				if test.wait > 0 {
					rig.Pass(test.wait - 3*time.Second)
					if one := a.MustGet(older); one.State != Pending {
						t.Fatalf("the older one is %v", one.State)
					}
				}
				rig.Pass(6 * time.Second)
				if one := a.MustGet(older); one.State != Ready {
					t.Fatalf("the older one is %v", one.State)
				}
			})
		})
	}
}
