package tasks_test

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
)

// A coalescing is a fleet whose nodes coalesce the misfired tasks of topic x.
type coalescing struct {
	*fleet
	cfg Config

	mu     sync.Mutex
	newest map[string]string   // by group, of those that were created
	got    map[string][]string // delivered ids, by group
}

// coalescingBubble runs a test on so many nodes, with a shard each.
func coalescingBubble(t *testing.T, nodes int, set TopicSettings, test func(t *testing.T, c *coalescing)) {
	t.Helper()
	set.Misfire = MisfireCoalesce
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		c := &coalescing{
			fleet: f, cfg: Config{Topics: map[string]TopicSettings{"x": set}},
			newest: make(map[string]string), got: make(map[string][]string),
		}
		for i := range nodes {
			f.start(string(rune('a'+i)), 1, c.cfg)
		}
		pass(3 * time.Second)
		test(t, c)
		for _, n := range f.nodes {
			if !n.dead {
				n.check()
				if st := n.Stats(); st.Rescued != 0 {
					t.Errorf("the sweep of %s rescued %d tasks", n.name, st.Rescued)
				}
			}
		}
	})
}

// task creates a task at a node. The tasks of a group have to be created in the order of their
// deadlines.
func (c *coalescing) task(n *node, group string, delay time.Duration) string {
	c.t.Helper()
	id := n.create(Request{ID: n.idAt(0), Topic: "x", Group: group, Delay: delay})
	c.newest[group] = id
	return id
}

// spread creates so many tasks in each of so many groups, on the nodes in turn. They are due within
// two seconds.
func (c *coalescing) spread(nodes []*node, groups, each int) {
	c.t.Helper()
	for i := range each {
		for g := range groups {
			c.task(nodes[(g+i)%len(nodes)], fmt.Sprint("g", g), time.Second+time.Duration(i)*10*time.Millisecond)
		}
	}
}

// handle has a node deliver.
func (c *coalescing) handle(n *node) {
	c.t.Helper()
	want(c.t, "Handle", n.Handle("x", func(_ context.Context, d *Delivery) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.got[d.Group] = append(c.got[d.Group], d.ID)
		return nil
	}), nil)
}

// crash ends all nodes as kill -9 would.
func (c *coalescing) crash() {
	for _, n := range c.nodes {
		if !n.dead {
			n.crash()
		}
	}
}

// restart starts nodes again, which deliver.
func (c *coalescing) restart(nodes ...*node) {
	c.t.Helper()
	for _, n := range nodes {
		n.restart()
		c.handle(n)
	}
}

// deliveries returns how many deliveries there were. It fails the test if the newest task of a
// group was not delivered.
func (c *coalescing) deliveries() (n int) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range slices.Sorted(maps.Keys(c.newest)) {
		n += len(c.got[g])
		if !slices.Contains(c.got[g], c.newest[g]) {
			c.t.Errorf("of group %s %q were delivered; want %s among them", g, c.got[g], c.newest[g])
		}
	}
	return n
}

// wantDeliveries fails the test unless there were so many deliveries, the newest of each group
// among them.
func (c *coalescing) wantDeliveries(n int) {
	c.t.Helper()
	if got := c.deliveries(); got != n {
		c.t.Errorf("%d deliveries of %d groups; want %d: %q", got, len(c.newest), n, c.got)
	}
}

// skipped returns how many tasks the living nodes have skipped.
func (c *coalescing) skipped() (n int64) {
	for _, node := range c.nodes {
		if !node.dead {
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
			pass(time.Minute)
			c.restart(c.nodes...)
		},
		"OneAfterTheOther": func(c *coalescing) {
			c.crash()
			pass(time.Minute)
			for _, n := range c.nodes {
				c.restart(n)
				pass(4 * time.Second)
			}
		},
		"OneRestarts": func(c *coalescing) {
			c.handle(c.nodes[1])
			c.handle(c.nodes[2])
			c.nodes[0].crash()
			pass(time.Minute)
			c.restart(c.nodes[0])
		},
		"OneDoesNotComeBack": func(c *coalescing) {
			c.crash()
			pass(time.Minute)
			c.restart(c.nodes[:2]...)
			pass(10 * time.Second)
			c.nodes[1].adopt(c.nodes[2])
		},
		"OneComesBackLater": func(c *coalescing) {
			c.crash()
			pass(time.Minute)
			c.restart(c.nodes[:2]...)
			pass(10 * time.Second)
			c.nodes[1].adopt(c.nodes[2])
			pass(10 * time.Second)
			c.restart(c.nodes[2])
			pass(10 * time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			coalescingBubble(t, 3, TopicSettings{}, func(t *testing.T, c *coalescing) {
				if name == "OneRestarts" {
					c.spread(c.nodes[:1], groups, each)
				} else {
					c.spread(c.nodes, groups, each)
				}
				outage(c)
				pass(20 * time.Second)
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
		a, b, x, y := c.nodes[0], c.nodes[1], c.nodes[2], c.nodes[3]
		for i := range 6 {
			c.task(c.nodes[2+i%2], "g", time.Second+time.Duration(i)*time.Millisecond)
		}
		c.handle(a)
		c.handle(b)
		x.crash()
		y.crash()
		pass(10 * time.Second)
		a.adopt(x)
		pass(2 * time.Second)
		b.adopt(y)
		pass(5 * time.Second)
		c.wantDeliveries(1)
	})
}

// A node remembers what it has let go, for what is adopted later.
func TestCoalesceAdoptedAfterwards(t *testing.T) {
	coalescingBubble(t, 4, TopicSettings{}, func(t *testing.T, c *coalescing) {
		a, b, x, y := c.nodes[0], c.nodes[1], c.nodes[2], c.nodes[3]
		c.task(x, "g", time.Second)
		c.task(y, "g", 2*time.Second)
		c.handle(a)
		c.handle(b)
		x.crash()
		y.crash()
		pass(10 * time.Second)
		a.adopt(y)
		pass(40 * time.Second)
		c.wantDeliveries(1) // no other node had adopted the rest
		b.adopt(x)
		pass(5 * time.Second)
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
				older := c.task(c.nodes[0], "g", time.Second)
				newest := c.task(c.nodes[1], "g", 2*time.Second)
				c.crash()
				pass(time.Minute)
				for _, n := range c.nodes {
					n.restart()
				}
				pass(3 * time.Second)
				c.nodes[2].keeps.Store(true) // its owner asks for it
				want(t, "hand-over", c.nodes[of].handTo(c.nodes[2]), nil)
				pass(5 * time.Second)
				if one := c.nodes[2].get([]string{older, newest}[of]); one.State != Ready {
					t.Errorf("what was handed over is %v", one.State)
				}
				for _, n := range c.nodes {
					c.handle(n)
				}
				pass(5 * time.Second)
				c.wantDeliveries(2)
			})
		})
	}
}

// A paused topic decides nothing, however long that takes.
func TestCoalescePaused(t *testing.T) {
	t.Parallel()
	coalescingBubble(t, 2, TopicSettings{}, func(t *testing.T, c *coalescing) {
		a, b := c.nodes[0], c.nodes[1]
		older := c.task(a, "g", time.Second)
		newest := c.task(b, "g", 2*time.Second)
		c.crash()
		pass(time.Minute)
		a.restart()
		b.restart()
		pass(5 * time.Second)
		want(t, "PauseTopic", a.PauseTopic(t.Context(), "x", true), nil)
		pass(time.Hour)
		if one := a.get(older); one.State != Pending {
			t.Fatalf("the older one is %v", one.State)
		}
		want(t, "PauseTopic", a.PauseTopic(t.Context(), "x", false), nil)
		pass(time.Minute)
		b.ack(b.pullOwn("x", newest)[0])
		pass(5 * time.Second)
		if n := c.skipped(); n != 1 {
			t.Errorf("%d were skipped; want 1", n)
		}
	})
}

// A node without others asks none, and remembers nothing.
func TestCoalesceAlone(t *testing.T) {
	coalescingBubble(t, 1, TopicSettings{}, func(t *testing.T, c *coalescing) {
		c.spread(c.nodes, 3, 2)
		c.crash()
		pass(time.Minute)
		sent := c.sent.Load()
		c.restart(c.nodes...)
		pass(100 * time.Millisecond)
		c.wantDeliveries(3)
		e := c.nodes[0].Engine()
		Mutex(e).Lock()
		defer Mutex(e).Unlock()
		known, _ := e.Misfires.Board.Remembered(coalesce.Group{Topic: "x", Name: "g0"})
		if n := c.sent.Load() - sent; n != 0 || known != nil {
			t.Errorf("%d messages were sent; remembered: %+v", n, known)
		}
	})
}

// While the newest task of a group waits at another node, an older one is held back. What becomes
// of the newest decides about it.
func TestCoalesceWaitsForTheNewest(t *testing.T) {
	ack := func(c *coalescing, n *node, _ string) {
		for _, d := range n.pull("x", c.newest["g"]) {
			n.ack(d)
		}
	}
	for name, test := range map[string]struct {
		happens   func(c *coalescing, n *node, newest string)
		delivered bool // the older one
	}{
		"Acknowledged": {ack, false},
		"Cancelled": {func(c *coalescing, n *node, id string) {
			want(c.t, "Cancel", n.Cancel(c.t.Context(), id), nil)
		}, true},
		"Moved": {func(c *coalescing, n *node, id string) {
			_, err := n.Reschedule(c.t.Context(), id, Move{Delay: ptr(time.Hour)})
			want(c.t, "Reschedule", err, nil)
		}, true},
		"Held": {func(c *coalescing, n *node, id string) {
			_, err := n.Hold(c.t.Context(), id)
			want(c.t, "Hold", err, nil)
		}, true},
		"InAnotherGroup": {func(c *coalescing, n *node, id string) {
			_, err := n.Replace(c.t.Context(), Request{ID: id, Topic: "x", Group: "h", Delay: time.Hour})
			want(c.t, "Replace", err, nil)
		}, true},
		"GroupCancelled": {func(c *coalescing, n *node, id string) {
			want(c.t, "Cancel", n.Cancel(c.t.Context(), id), nil)
			c.task(n, "g", time.Hour)
		}, true},
		"Dead": {func(_ *coalescing, n *node, id string) {
			n.settle(Bury, n.pull("x", id)[0])
		}, true},
		"Retried": {func(c *coalescing, n *node, id string) {
			n.settle(Release, n.pull("x", id)[0])
			pass(5 * time.Second)
			ack(c, n, id)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			coalescingBubble(t, 2, TopicSettings{Retry: Retry{MaxAttempts: 3}}, func(t *testing.T, c *coalescing) {
				a, b := c.nodes[0], c.nodes[1]
				older := c.task(a, "g", time.Second)
				newest := c.task(b, "g", 2*time.Second)
				c.crash()
				pass(time.Minute)
				a.restart()
				b.restart()
				pass(5 * time.Second)
				if one := a.get(older); one.State != Pending {
					t.Fatalf("the older one is %v", one.State)
				}
				test.happens(c, b, newest)
				pass(5 * time.Second)
				if !test.delivered {
					a.pull("x")
					if n := c.skipped(); n != 1 {
						t.Errorf("%d were skipped; want 1", n)
					}
					return
				}
				a.ack(a.pullOwn("x", older)[0])
				if n := c.skipped(); n != 0 {
					t.Errorf("%d were skipped; want 0", n)
				}
			})
		})
	}
}

// A node is held up by others only for so long.
func TestCoalesceBounds(t *testing.T) {
	both := func(_ *coalescing, a, b *node) { b.restart(); a.restart() }
	alone := func(_ *coalescing, a, _ *node) { a.restart() }
	for name, test := range map[string]struct {
		lateness time.Duration // of the older task, which is 60 s late at the start
		start    func(c *coalescing, a, b *node)
		wait     time.Duration // of the older task
	}{
		"NoAnswer": {0, func(c *coalescing, a, b *node) {
			both(c, a, b)
			c.lose(func(_, to string, _ []byte) bool { return to == "b" })
		}, 30 * time.Second},
		"Dead":                    {0, alone, 30 * time.Second},
		"NewestWaits":             {0, both, 10*time.Minute + 30*time.Second},
		"NewestWaitsUntilTooLate": {2 * time.Minute, both, 55 * time.Second},
		"DeadUntilTooLate":        {80 * time.Second, alone, 15 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			coalescingBubble(t, 2, TopicSettings{Lease: 30 * time.Second}, func(t *testing.T, c *coalescing) {
				a, b := c.nodes[0], c.nodes[1]
				older := a.create(Request{ID: a.idAt(0), Topic: "x", Group: "g", Delay: time.Second, MaxLateness: test.lateness})
				c.task(b, "g", 2*time.Second)
				c.crash()
				pass(61 * time.Second)
				test.start(c, a, b)
				if test.wait > 0 {
					pass(test.wait - 3*time.Second)
					if one := a.get(older); one.State != Pending {
						t.Fatalf("the older one is %v", one.State)
					}
				}
				pass(6 * time.Second)
				if one := a.get(older); one.State != Ready {
					t.Fatalf("the older one is %v", one.State)
				}
			})
		})
	}
}
