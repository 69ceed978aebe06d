package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/lapsehq/lapse/tasks"
)

// supersede replaces a task, at whichever node and in whatever state it is.
func (n *node) supersede(req Request) Task {
	n.t.Helper()
	req.Supersede = true
	task, err := n.Replace(n.t.Context(), req)
	want(n.t, "Replace of "+req.ID, err, nil)
	return task
}

// stale wants a receipt to be refused as stale.
func (n *node) stale(what string, d Delivery) {
	n.t.Helper()
	for _, v := range []Verb{Ack, Release, Extend, Bury, Return} {
		answers, err := n.Settle(n.t.Context(), Verdict{Verb: v}, []string{d.Receipt()})
		want(n.t, what, err, nil)
		want(n.t, fmt.Sprint(what, ": verb ", v, " at ", n.name), answers[0].Err, ErrStale)
	}
}

// Any node supersedes a task of any: one that a receiver of any has reserved, one that is dead, and
// one that is finished and kept. The receipts are stale at all nodes, also when the shard has moved
// since.
func TestSupersedeAtAllNodes(t *testing.T) {
	t.Parallel()
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		ctx := t.Context()
		for _, name := range []string{"a", "b", "c"} {
			f.join(name, 2, Config{Topics: map[string]TopicSettings{"t": {KeepFinished: 10 * time.Hour}}})
		}
		var open, all []Delivery
		f.each(func(what string, owner, asked *node, task Task) {
			put := Request{ID: task.ID, Topic: "t", Delay: time.Hour}
			for k, from := range []func(d Delivery){
				func(Delivery) {},
				func(d Delivery) { asked.settle(Bury, d) },
				func(d Delivery) { asked.settle(Ack, d) },
			} {
				_, err := asked.Fire(ctx, task.ID)
				want(t, what+": Fire", err, nil)
				receiver := f.nodes[(slices.Index(f.nodes, asked)+k)%len(f.nodes)]
				ds := <-receiver.reserve(ctx, "t", 1, time.Second, 0)
				receiver.want(ds, task.ID)
				d := ds[0]
				before := asked.get(task.ID)
				_, err = asked.Replace(ctx, put)
				if k == 0 {
					want(t, what+": Replace", err, ErrDelivering)
				}
				from(d)
				state := asked.get(task.ID).State
				other := WithVersion(ctx, Version{Revision: before.Revision + 1, Created: before.Created})
				over := put
				over.Supersede = true
				_, err = asked.Replace(other, over)
				want(t, what+": Replace of another version", err, ErrRevision)
				got, err := asked.Replace(WithVersion(ctx, Version{Revision: before.Revision, Created: before.Created}), over)
				want(t, what+": Replace", err, nil)
				if got.Revision != before.Revision+1 || got.State != Pending || got.Node != owner.name || got.Repeated != (state != Finished) {
					t.Errorf("%s: superseded: %+v", what, got)
				}
				if k == 0 {
					open = append(open, d)
				}
				if k != 2 { // an acknowledgement is repeated
					all = append(all, d)
				}
				asked.supersede(put) // once more, whichever version it has
			}
		})
		for _, n := range f.nodes {
			for _, d := range open {
				n.stale("superseded", d)
			}
			n.check()
		}
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		b.keeps.Store(true)
		c.keeps.Store(true)
		want(t, "hand-over", a.handTo(b), nil)
		a.crash()
		pass(time.Minute)
		c.adopt(a)
		pass(2 * time.Hour)
		for _, d := range all {
			for _, n := range []*node{b, c} {
				n.stale("moved", d)
			}
		}
		var ids []string
		for _, d := range all {
			ids = append(ids, d.ID)
		}
		slices.Sort(ids)
		ids = slices.Compact(ids)
		for left := len(ids); left > 0; {
			ds := <-b.reserve(ctx, "t", left, time.Second, 0)
			if len(ds) == 0 {
				t.Fatalf("%d are not delivered", left)
			}
			for _, d := range ds {
				if left--; d.Attempt != 1 || !slices.Contains(ids, d.ID) {
					t.Errorf("delivered: %+v", d.Task)
				}
				c.settle(Ack, d)
			}
		}
		b.check()
		c.check()
	})
}

// A task that another node delivers in a backlog is superseded where it is owned. What that node
// says in the end does not count.
func TestSupersedeOffloaded(t *testing.T) {
	t.Parallel()
	poolBubble(t, func(t *testing.T, f *fleet) {
		a, b := f.nodes[0], f.nodes[1]
		var c deliveries
		for _, n := range f.nodes {
			want(t, "Handle", n.Handle("x", c.by(n.name, 2*time.Second, nil)), nil)
		}
		const count = 3000
		a.herd("x", count)
		pass(time.Second)
		if c.counts("b") == 0 {
			t.Fatal("no delivery of the other node is under way")
		}
		superseded := 0
		for _, n := range f.nodes {
			for i := range count {
				if task, err := a.Get(t.Context(), fmt.Sprint("x-", i)); err == nil && task.State == Delivering && i%2 == 0 {
					n.supersede(Request{ID: task.ID, Topic: "x", Delay: time.Hour})
					superseded++
				}
			}
		}
		if superseded < 20 {
			t.Fatalf("%d are superseded", superseded)
		}
		pass(time.Minute)
		if st := a.Stats().Total; st.Delivered != count-int64(superseded) || st.Pending != int64(superseded) || st.Failed+st.LeaseExpired+st.Delivering != 0 {
			t.Errorf("%d are superseded; %+v", superseded, st)
		}
		pass(time.Hour)
		for _, n := range f.nodes {
			if d := &n.Engine().Dispatch; d.LeasedOut != 0 || d.ReservedInFlight != 0 || len(d.Leases) != 0 {
				t.Errorf("%s: %d are out, %d reserved, %d leases", n.name, d.LeasedOut, d.ReservedInFlight, len(d.Leases))
			}
		}
		if st := a.Stats().Total; st.Delivered != count {
			t.Errorf("%+v", st)
		}
		a.check()
		b.check()
	}, Config{SweepBacklog: 100}, Config{SweepHelper: []string{"backlog"}})
}

// A shard is lost, or handed over, while a task of it is being superseded. The caller is told that
// this is not known, or is answered by the new owner. There is one task afterwards, the old or the
// new one, and the receipt of the former delivery, or what its handler says, counts for the old.
func TestSupersedeWhileTheShardLeaves(t *testing.T) {
	for _, handled := range []bool{false, true} {
		for _, landed := range []bool{false, true} {
			t.Run(fmt.Sprint("handled=", handled, " landed=", landed), func(t *testing.T) {
				fleetBubble(t, 0, func(t *testing.T, f *fleet) {
					a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
					b.keeps.Store(true)
					end := make(chan struct{})
					var d Delivery
					id := a.idAt(0)
					if handled {
						want(t, "Handle", a.Handle("x", func(context.Context, *Delivery) error { <-end; return nil }), nil)
					}
					a.create(Request{ID: id, Topic: "x"})
					synctest.Wait()
					if !handled {
						d = a.pullOwn("x", id)[0]
					}
					release := a.member.hold("Apply")
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
						go func() { done <- a.handTo(b) }()
						pass(50 * time.Millisecond)
						release()
						want(t, "hand-over", <-done, nil)
						want(t, "Replace", <-answer, nil)
					} else {
						b.adopt(a)
						release()
						want(t, "Replace", <-answer, ErrUnknown)
					}
					pass(time.Second)
					a.wantEmpty()
					task, err := b.Get(t.Context(), id)
					switch {
					case landed && !handled:
						b.stale("superseded", d)
						fallthrough
					case landed:
						if want(t, "Get", err, nil); task.Revision != 2 || task.State != Pending || task.Attempt != 0 {
							t.Errorf("superseded: %+v", task)
						}
					case handled:
						want(t, "Get of what the handler has acknowledged", err, ErrNotFound)
					default:
						if want(t, "Get", err, nil); task.Revision != 1 {
							t.Errorf("not superseded: %+v", task)
						}
						want(t, "Ack", b.ack(d).Err, nil)
					}
					b.check()
				})
			})
		}
	}
}

// A node that takes no new tasks, since it is full or is being drained, replaces those of others.
func TestReplaceAtANodeThatTakesNone(t *testing.T) {
	for name, refuse := range map[string]func(a *node) error{
		"full": func(a *node) error {
			a.create(Request{ID: a.idAt(0), Topic: "y", Delay: time.Hour})
			_, err := a.Schedule(a.t.Context(), Request{ID: a.idAt(0), Topic: "y", Delay: time.Hour})
			return err
		},
		"drained": func(a *node) error {
			Mutex(a.Engine()).Lock()
			defer Mutex(a.Engine()).Unlock()
			a.Engine().Draining = true
			return ErrOverloaded
		},
	} {
		t.Run(name, func(t *testing.T) {
			fleetBubble(t, 0, func(t *testing.T, f *fleet) {
				ctx := t.Context()
				a, b := f.join("a", 1, Config{MaxPending: 1}), f.join("b", 1, Config{})
				var ids []string
				for i := range 6 {
					ids = append(ids, b.create(Request{ID: fmt.Sprint("order-", i), Topic: "x"}))
				}
				pass(time.Second)
				if held := a.Stats().Total; held.Ready+held.Pending != 0 {
					t.Fatalf("a has %+v", held)
				}
				want(t, "a creation", refuse(a), ErrOverloaded)
				got, err := a.Replace(ctx, Request{ID: ids[0], Topic: "x", Delay: time.Hour})
				if want(t, "Replace", err, nil); !got.Repeated || got.Node != "b" {
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
				want(t, "ReplaceBatch", err, nil)
				for i, r := range results[:len(ids)-1] {
					if want(t, "a result", r.Err, nil); !r.Repeated || r.ID != ids[i+1] {
						t.Errorf("a result: %+v", r)
					}
				}
				if err := results[len(ids)-1].Err; !errors.Is(err, ErrOverloaded) && !errors.Is(err, ErrDraining) {
					t.Errorf("ReplaceBatch of none = %v", err)
				}
				for _, id := range ids {
					if got := b.get(id); got.Revision != 2 {
						t.Errorf("%s: %+v", id, got)
					}
				}
				b.check()
			})
		})
	}
}
