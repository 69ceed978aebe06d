package cluster_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

func TestEveryVerbAtEveryNode(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		ctx := t.Context()
		f.Each(func(what string, owner, asked *rig.Node, task Task) {
			got, err := asked.Get(ctx, task.ID)
			rig.Want(t, "Get of "+what, err, nil)
			if got.Node != owner.Name || string(got.Payload) != `{"n":1}` || !got.Due.Equal(task.Due) || got.State != Pending {
				t.Errorf("Get of %s = %+v; want %+v", what, got, task)
			}
			got, err = asked.Reschedule(ctx, task.ID, Move{Delay: rig.Ptr(2 * time.Hour), Payload: []byte("2")})
			rig.Want(t, "Reschedule of "+what, err, nil)
			if got.Revision != 2 || string(got.Payload) != "2" {
				t.Errorf("Reschedule of %s = %+v", what, got)
			}
			_, err = asked.Reschedule(ctx, task.ID, Move{Delay: rig.Ptr(-time.Hour)})
			rig.Want(t, "a wrong Reschedule of "+what, err, ErrInvalid)
			got, err = asked.Replace(ctx, Request{ID: task.ID, Topic: "t", Delay: 3 * time.Hour, Payload: []byte("3")})
			rig.Want(t, "Replace of "+what, err, nil)
			if got.Revision != 3 || !got.Repeated {
				t.Errorf("Replace of %s = %+v", what, got)
			}
			got, err = asked.Schedule(ctx, Request{ID: task.ID, Topic: "t", Delay: 3 * time.Hour, Payload: []byte("3")})
			rig.Want(t, "Schedule again of "+what, err, nil)
			if !got.Repeated {
				t.Errorf("Schedule again of %s = %+v", what, got)
			}
			_, err = asked.Schedule(ctx, Request{ID: task.ID, Topic: "t", Delay: 4 * time.Hour})
			rig.Want(t, "Schedule of "+what+" with other content", err, ErrExists)
			_, err = asked.Fire(ctx, task.ID)
			rig.Want(t, "Fire of "+what, err, nil)
			rig.Pass(10 * time.Millisecond)
			ds, err := owner.Reserve(ctx, "t", 10, 0, 0)
			rig.Want(t, "Reserve of "+what, err, nil)
			if len(ds) != 1 || ds[0].ID != task.ID {
				t.Fatalf("reserved %v of %s", ds, what)
			}
			rig.Want(t, "Cancel of "+what, asked.Cancel(ctx, task.ID), ErrDelivering)
			for range 2 {
				a, err := asked.Settle(ctx, Verdict{Verb: Ack}, []string{ds[0].Receipt()})
				rig.Want(t, "Settle of "+what, err, nil)
				if a[0].Err != nil || !a[0].Recorded || a[0].ID != task.ID {
					t.Errorf("Settle of %s = %+v", what, a[0])
				}
			}
			_, err = asked.Get(ctx, task.ID)
			rig.Want(t, "Get of "+what+" when it is finished", err, ErrNotFound)
			rig.Want(t, "Cancel of "+what+" when it is finished", asked.Cancel(ctx, task.ID), ErrNotFound)
		})
	})
}

func TestCancelAtEveryNode(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		f.Each(func(what string, owner, asked *rig.Node, task Task) {
			rig.Want(t, "Cancel of "+what, asked.Cancel(t.Context(), task.ID), nil)
			for _, m := range f.Nodes {
				rig.Want(t, "Cancel again of "+what, m.Cancel(t.Context(), task.ID), nil)
				_, err := m.Get(t.Context(), task.ID)
				rig.Want(t, "Get of "+what, err, ErrNotFound)
			}
			for _, m := range []*rig.Node{owner, asked} {
				_, err := m.Reschedule(t.Context(), task.ID, Move{Delay: rig.Ptr(time.Hour)})
				rig.Want(t, "Reschedule of "+what, err, ErrNotFound)
			}
		})
	})
}

func TestDeadTaskAtEveryNode(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		f.Each(func(what string, owner, asked *rig.Node, task Task) {
			_, err := asked.Fire(t.Context(), task.ID)
			rig.Want(t, "Fire", err, nil)
			rig.Pass(10 * time.Millisecond)
			ds, err := owner.Reserve(t.Context(), "t", 1, 0, 0)
			rig.Want(t, "Reserve", err, nil)
			a, err := asked.Settle(t.Context(), Verdict{Verb: Bury, Reason: "no"}, []string{ds[0].Receipt()})
			rig.Want(t, "Settle", errors.Join(err, a[0].Err), nil)
			if got := asked.MustGet(task.ID); got.State != Dead || got.LastError != "no" {
				t.Errorf("Get of %s = %+v", what, got)
			}
			_, err = asked.Schedule(t.Context(), Request{ID: task.ID, Topic: "t"})
			rig.Want(t, "Schedule of "+what, err, ErrDead)
			rig.Want(t, "Cancel of "+what, asked.Cancel(t.Context(), task.ID), nil)
			_, err = asked.Get(t.Context(), task.ID)
			rig.Want(t, "Get of "+what, err, ErrNotFound)
		})
	})
}

// Of two nodes that are asked for the same id at the same time, exactly one creates it.
func TestSameIDAtTwoNodes(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		for round := range 50 {
			same := round%2 == 0
			id := fmt.Sprint("order-", round)
			tasks, errs := make([]Task, 3), make([]error, 3)
			var group sync.WaitGroup
			for i, m := range f.Nodes {
				group.Go(func() {
					r := Request{ID: id, Topic: "t", Delay: time.Hour}
					if !same {
						r.Payload = fmt.Append(nil, i)
					}
					tasks[i], errs[i] = m.Schedule(t.Context(), r)
				})
			}
			group.Wait()
			created := 0
			for i := range tasks {
				switch {
				case errs[i] == nil && !tasks[i].Repeated:
					created++
				case errs[i] == nil && same, !same && errors.Is(errs[i], ErrExists):
				default:
					t.Errorf("Schedule(%s) at node %d = %+v, %v", id, i, tasks[i], errs[i])
				}
			}
			if created != 1 {
				t.Fatalf("%s was created %d times", id, created)
			}
			held := 0
			for _, m := range f.Nodes {
				if m.Cluster().Knows(id) {
					held++
				}
				m.MustGet(id)
			}
			if held != 1 {
				t.Fatalf("%s is held by %d nodes", id, held)
			}
		}
	})
}

// A batch is created where its ids belong, and each gets its own answer.
func TestBatchAmongNodes(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		for i := range 20 {
			a.Must(Request{ID: fmt.Sprint("x-", i), Topic: "t", Delay: time.Hour})
		}
		made := f.Nodes[2].ShardID(1).NewID()
		var requests []Request
		for i := range 30 {
			requests = append(requests, Request{ID: fmt.Sprint("x-", i), Topic: "t", Delay: time.Hour})
		}
		requests = append(requests,
			Request{Topic: "t", Delay: time.Hour},
			Request{ID: made, Topic: "t", Delay: time.Hour},
			Request{ID: "x-1", Topic: "t"},
			Request{ID: "bad id", Topic: "t"})
		requests[5].Payload = []byte("other")
		results, err := b.ScheduleBatch(t.Context(), requests)
		rig.Want(t, "ScheduleBatch", err, nil)
		for i, r := range results {
			switch i {
			case 5:
				rig.Want(t, "another content", r.Err, ErrExists)
			case 32, 33:
				rig.Want(t, "a faulty request", r.Err, ErrInvalid)
			default:
				rig.Want(t, fmt.Sprint("request ", i), r.Err, nil)
				for _, m := range f.Nodes {
					m.MustGet(r.ID)
				}
			}
		}
		if got := b.MustGet("x-3"); got.Node != "a" {
			t.Errorf("a task of node a is kept by %s", got.Node)
		}
		if got := b.MustGet("x-25"); got.Node != "b" {
			t.Errorf("a task that was new at node b is kept by %s", got.Node)
		}
		if got := a.MustGet(made); got.Node != "c" {
			t.Errorf("a task whose id tells a shard of node c is kept by %s", got.Node)
		}
	})
}

// The id that a 503 names leads a repeat at another node to the right shard.
func TestMadeIDStaysInItsShard(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		for i, m := range f.Nodes {
			for n := range rig.FleetShards {
				id := m.ShardID(n).NewID()
				first := f.Nodes[(i+1)%3].Must(Request{ID: id, Topic: "t", Delay: time.Hour})
				again := f.Nodes[(i+2)%3].Must(Request{ID: id, Topic: "t", Delay: time.Hour})
				if first.Node != m.Name || again.Node != m.Name || !again.Repeated {
					t.Errorf("%s of %s: %+v, then %+v", id, m.Name, first, again)
				}
				entryOf, err := m.Member.Lookup(t.Context(), []string{id})
				if rig.Want(t, "Look", err, nil); entryOf[0].ShardID != 0 {
					t.Errorf("%s is registered, and contains its shard", id)
				}
			}
		}
		made := f.Nodes[0].Must(Request{Topic: "t", Delay: time.Hour})
		shardID, ok := recovery.ShardIDOf(made.ID)
		if !ok || shardID.Node() != f.Nodes[0].Engine().NodeNumber {
			t.Errorf("the id %s, made at node a, tells home %v, %v", made.ID, shardID, ok)
		}
	})
}
