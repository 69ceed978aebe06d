package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// supersedeAt replaces a task, at whichever node and in whatever state it is.
func supersedeAt(n *rig.Node, req Request) Task {
	n.T.Helper()
	req.Supersede = true
	task, err := n.Replace(n.T.Context(), req)
	rig.Want(n.T, "Replace of "+req.ID, err, nil)
	return task
}

// Any node supersedes a task of any: one that a receiver of any has reserved, one that is dead, and
// one that is finished and kept. The receipts are stale at all nodes, also when the shard has moved
// since.
func TestSupersedeAtAllNodes(t *testing.T) {
	t.Parallel()
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		ctx := t.Context()
		for _, name := range []string{"a", "b", "c"} {
			f.Join(name, 2, Config{Topics: map[string]TopicSettings{"t": {KeepFinished: 10 * time.Hour}}})
		}
		var open, all []Delivery
		f.Each(func(what string, owner, asked *rig.Node, task Task) {
			put := Request{ID: task.ID, Topic: "t", Delay: time.Hour}
			for k, from := range []func(d Delivery){
				func(Delivery) {},
				func(d Delivery) { asked.SettleOne(Bury, d) },
				func(d Delivery) { asked.SettleOne(Ack, d) },
			} {
				_, err := asked.Fire(ctx, task.ID)
				rig.Want(t, what+": Fire", err, nil)
				receiver := f.Nodes[(slices.Index(f.Nodes, asked)+k)%len(f.Nodes)]
				ds := <-receiver.StartReserve(ctx, "t", 1, time.Second, 0)
				receiver.Want(ds, task.ID)
				d := ds[0]
				before := asked.MustGet(task.ID)
				_, err = asked.Replace(ctx, put)
				if k == 0 {
					rig.Want(t, what+": Replace", err, ErrDelivering)
				}
				from(d)
				state := asked.MustGet(task.ID).State
				other := WithVersion(ctx, Version{Revision: before.Revision + 1, Created: before.Created})
				over := put
				over.Supersede = true
				_, err = asked.Replace(other, over)
				rig.Want(t, what+": Replace of another version", err, ErrRevision)
				got, err := asked.Replace(WithVersion(ctx, Version{Revision: before.Revision, Created: before.Created}), over)
				rig.Want(t, what+": Replace", err, nil)
				if got.Revision != before.Revision+1 || got.State != Pending || got.Node != owner.Name || got.Repeated != (state != Finished) {
					t.Errorf("%s: superseded: %+v", what, got)
				}
				if k == 0 {
					open = append(open, d)
				}
				if k != 2 { // an acknowledgement is repeated
					all = append(all, d)
				}
				supersedeAt(asked, put) // once more, whichever version it has
			}
		})
		for _, n := range f.Nodes {
			for _, d := range open {
				n.Stale("superseded", d)
			}
			n.Check()
		}
		a, b, c := f.Nodes[0], f.Nodes[1], f.Nodes[2]
		b.Keeps.Store(true)
		c.Keeps.Store(true)
		rig.Want(t, "hand-over", a.HandTo(b), nil)
		a.Crash()
		rig.Pass(time.Minute)
		c.Adopt(a)
		rig.Pass(2 * time.Hour)
		for _, d := range all {
			for _, n := range []*rig.Node{b, c} {
				n.Stale("moved", d)
			}
		}
		var ids []string
		for _, d := range all {
			ids = append(ids, d.ID)
		}
		slices.Sort(ids)
		ids = slices.Compact(ids)
		for left := len(ids); left > 0; {
			ds := <-b.StartReserve(ctx, "t", left, time.Second, 0)
			if len(ds) == 0 {
				t.Fatalf("%d are not delivered", left)
			}
			for _, d := range ds {
				if left--; d.Attempt != 1 || !slices.Contains(ids, d.ID) {
					t.Errorf("delivered: %+v", d.Task)
				}
				c.SettleOne(Ack, d)
			}
		}
		b.Check()
		c.Check()
	})
}

// A task that another node delivers in a backlog is superseded where it is owned. What that node
// says in the end does not count.
func TestSupersedeOffloaded(t *testing.T) {
	t.Parallel()
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		var c deliveries
		for _, n := range f.Nodes {
			rig.Want(t, "Handle", n.Handle("x", c.by(n.Name, 2*time.Second, nil)), nil)
		}
		const count = 3000
		herd(a, "x", count)
		rig.Pass(time.Second)
		if c.counts("b") == 0 {
			t.Fatal("no delivery of the other node is under way")
		}
		superseded := 0
		for _, n := range f.Nodes {
			for i := range count {
				if task, err := a.Get(t.Context(), fmt.Sprint("x-", i)); err == nil && task.State == Delivering && i%2 == 0 {
					supersedeAt(n, Request{ID: task.ID, Topic: "x", Delay: time.Hour})
					superseded++
				}
			}
		}
		if superseded < 20 {
			t.Fatalf("%d are superseded", superseded)
		}
		rig.Pass(time.Minute)
		if st := a.Stats().Total; st.Delivered != count-int64(superseded) || st.Pending != int64(superseded) || st.Failed+st.LeaseExpired+st.Delivering != 0 {
			t.Errorf("%d are superseded; %+v", superseded, st)
		}
		rig.Pass(time.Hour)
		for _, n := range f.Nodes {
			if d := &n.Engine().Dispatch; d.LeasedOut != 0 || d.ReservedInFlight != 0 || len(d.Leases) != 0 {
				t.Errorf("%s: %d are out, %d reserved, %d leases", n.Name, d.LeasedOut, d.ReservedInFlight, len(d.Leases))
			}
		}
		if st := a.Stats().Total; st.Delivered != count {
			t.Errorf("%+v", st)
		}
		a.Check()
		b.Check()
	}, Config{SweepBacklog: 100}, Config{SweepHelper: []string{"backlog"}})
}

// A shard is lost, or handed over, while a task of it is being superseded. The caller is told that
// this is not known, or is answered by the new owner. There is one task afterwards, the old or the
// new one, and the receipt of the former delivery, or what its handler says, counts for the old.
func TestSupersedeWhileTheShardLeaves(t *testing.T) {
	for _, handled := range []bool{false, true} {
		for _, landed := range []bool{false, true} {
			t.Run(fmt.Sprint("handled=", handled, " landed=", landed), func(t *testing.T) {
				rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
					a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
					b.Keeps.Store(true)
					end := make(chan struct{})
					var d Delivery
					id := a.IDAt(0)
					if handled {
						rig.Want(t, "Handle", a.Handle("x", func(context.Context, *Delivery) error { <-end; return nil }), nil)
					}
					a.Create(Request{ID: id, Topic: "x"})
					synctest.Wait()
					if !handled {
						d = a.PullOwn("x", id)[0]
					}
					release := a.Member.Hold("Apply")
					answer := make(chan error, 1)
					go func() {
						ctx := WithVersion(context.Background(), AnyVersion)
						_, err := a.Replace(ctx, Request{ID: id, Topic: "x", Delay: time.Hour, Supersede: true})
						answer <- err
					}()
					synctest.Wait()
					if handled {
						close(end) // while it is being replaced
						synctest.Wait()
					}
					if landed {
						done := make(chan error, 1)
						go func() { done <- a.HandTo(b) }()
						rig.Pass(50 * time.Millisecond)
						release()
						rig.Want(t, "hand-over", <-done, nil)
						rig.Want(t, "Replace", <-answer, nil)
					} else {
						b.Adopt(a)
						release()
						rig.Want(t, "Replace", <-answer, ErrUnknown)
					}
					rig.Pass(time.Second)
					a.WantEmpty()
					task, err := b.Get(t.Context(), id)
					switch {
					case landed && !handled:
						b.Stale("superseded", d)
						fallthrough
					case landed:
						if rig.Want(t, "Get", err, nil); task.Revision != 2 || task.State != Pending || task.Attempt != 0 {
							t.Errorf("superseded: %+v", task)
						}
					case handled:
						rig.Want(t, "Get of what the handler has acknowledged", err, ErrNotFound)
					default:
						if rig.Want(t, "Get", err, nil); task.Revision != 1 {
							t.Errorf("not superseded: %+v", task)
						}
						rig.Want(t, "Ack", b.Ack(d).Err, nil)
					}
					b.Check()
				})
			})
		}
	}
}

// A node that takes no new tasks, since it is full or is being drained, replaces those of others.
func TestReplaceAtANodeThatTakesNone(t *testing.T) {
	for name, refuse := range map[string]func(a *rig.Node) error{
		"full": func(a *rig.Node) error {
			a.Create(Request{ID: a.IDAt(0), Topic: "y", Delay: time.Hour})
			_, err := a.Schedule(a.T.Context(), Request{ID: a.IDAt(0), Topic: "y", Delay: time.Hour})
			return err
		},
		"drained": func(a *rig.Node) error {
			rig.Mutex(a.Engine()).Lock()
			defer rig.Mutex(a.Engine()).Unlock()
			a.Engine().Draining = true
			return ErrOverloaded
		},
	} {
		t.Run(name, func(t *testing.T) {
			rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
				ctx := t.Context()
				a, b := f.Join("a", 1, Config{MaxPending: 1}), f.Join("b", 1, Config{})
				var ids []string
				for i := range 6 {
					ids = append(ids, b.Create(Request{ID: fmt.Sprint("order-", i), Topic: "x"}))
				}
				rig.Pass(time.Second)
				if held := a.Stats().Total; held.Ready+held.Pending != 0 {
					t.Fatalf("a has %+v", held)
				}
				rig.Want(t, "a creation", refuse(a), ErrOverloaded)
				got, err := a.Replace(ctx, Request{ID: ids[0], Topic: "x", Delay: time.Hour})
				if rig.Want(t, "Replace", err, nil); !got.Repeated || got.Node != "b" {
					t.Errorf("replaced: %+v", got)
				}
				_, err = a.Replace(ctx, Request{ID: "unknown", Topic: "x", Delay: time.Hour})
				if !errors.Is(err, ErrOverloaded) && !errors.Is(err, ErrDraining) {
					t.Errorf("Replace of none = %v", err)
				}
				var batch []Request
				for _, id := range append(ids[1:], "unknown") {
					batch = append(batch, Request{ID: id, Topic: "x", Delay: time.Hour})
				}
				results, err := a.ReplaceBatch(ctx, batch)
				rig.Want(t, "ReplaceBatch", err, nil)
				for i, r := range results[:len(ids)-1] {
					if rig.Want(t, "a result", r.Err, nil); !r.Repeated || r.ID != ids[i+1] {
						t.Errorf("a result: %+v", r)
					}
				}
				if err := results[len(ids)-1].Err; !errors.Is(err, ErrOverloaded) && !errors.Is(err, ErrDraining) {
					t.Errorf("ReplaceBatch of none = %v", err)
				}
				for _, id := range ids {
					if got := b.MustGet(id); got.Revision != 2 {
						t.Errorf("%s: %+v", id, got)
					}
				}
				b.Check()
			})
		})
	}
}
