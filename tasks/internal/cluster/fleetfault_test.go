package cluster_test

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// Messages may be lost, as long as some arrive before the deadline.
func TestLostMessages(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		sent := 0
		f.Lose(func(_, _ string, _ []byte) bool { sent++; return sent%3 == 0 })
		f.Each(func(what string, owner, asked *rig.Node, task Task) {
			asked.MustGet(task.ID)
			moved, err := asked.Reschedule(t.Context(), task.ID, Move{Delay: rig.Ptr(2 * time.Hour)})
			if rig.Want(t, "Reschedule of "+what, err, nil); moved.Revision != 2 {
				t.Errorf("%s was moved %d times", what, moved.Revision-1)
			}
			rig.Want(t, "Cancel of "+what, asked.Cancel(t.Context(), task.ID), nil)
		})
	})
}

// A node that no other hears any more is no reason to say that its tasks do not exist. Once
// another node has adopted them, they are found there.
func TestOwnerDies(t *testing.T) {
	for _, id := range []string{"", "order-1"} {
		rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
			a, b, d := f.Nodes[0], f.Nodes[1], f.Nodes[2]
			task := a.Must(Request{ID: id, Topic: "t", Delay: time.Hour})
			a.Crash()
			_, err := b.Get(t.Context(), task.ID)
			rig.Want(t, "Get", err, ErrUnavailable)
			rig.Want(t, "Cancel", b.Cancel(t.Context(), task.ID), ErrUnavailable)
			_, err = b.Schedule(t.Context(), Request{ID: task.ID, Topic: "t", Delay: time.Hour})
			rig.Want(t, "Schedule", err, ErrUnavailable)
			_, err = b.Replace(t.Context(), Request{ID: task.ID, Topic: "t", Delay: time.Hour})
			rig.Want(t, "Replace", err, ErrUnavailable)
			results, err := b.ScheduleBatch(t.Context(), []Request{{ID: task.ID, Topic: "t", Delay: time.Hour}, {ID: "other", Topic: "t"}})
			rig.Want(t, "ScheduleBatch", errors.Join(err, results[1].Err), nil)
			rig.Want(t, "of the batch", results[0].Err, ErrUnavailable)

			time.AfterFunc(time.Second, func() { d.Member.AdoptFrom(a.Member.Member) })
			if got := b.MustGet(task.ID); got.Node != "c" {
				t.Errorf("adopted by %s", got.Node)
			}
			again := b.Must(Request{ID: task.ID, Topic: "t", Delay: time.Hour})
			if !again.Repeated {
				t.Errorf("created twice: %+v", again)
			}
			rig.Want(t, "Cancel", b.Cancel(t.Context(), task.ID), nil)
		})
	}
}

// What a node has executed before it died, and not answered, has an open outcome.
func TestOwnerDiesBeforeItsAnswer(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		a, b, d := f.Nodes[0], f.Nodes[1], f.Nodes[2]
		f.Lose(func(from, _ string, _ []byte) bool { return from == "a" })
		_, err := b.Schedule(t.Context(), Request{ID: a.ShardID(0).NewID(), Topic: "t", Delay: time.Hour})
		rig.Want(t, "Schedule", err, ErrUnknown)
		task := a.Must(Request{Topic: "t", Delay: time.Hour})
		rig.Want(t, "Cancel", b.Cancel(t.Context(), task.ID), ErrUnknown)
		if _, err := a.Get(t.Context(), task.ID); !errors.Is(err, ErrNotFound) {
			t.Errorf("after the cancel: %v", err)
		}
		_, err = b.Get(t.Context(), task.ID)
		rig.Want(t, "Get", err, ErrUnavailable)
		f.Lose(nil)
		rig.Want(t, "Cancel again", b.Cancel(t.Context(), task.ID), nil)
		a.Crash()
		d.Member.AdoptFrom(a.Member.Member)
		rig.Pass(time.Second)
		// The node that was told remembers it, and tells the others.
		rig.Want(t, "Cancel again", b.Cancel(t.Context(), task.ID), nil)
		rig.Want(t, "Cancel again", d.Cancel(t.Context(), task.ID), nil)
	})
}

// While shards go from node to node, no node ever says that a task which exists does not.
func TestNoFalseNotFound(t *testing.T) {
	t.Parallel()
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		var ids []string
		for i, m := range f.Nodes {
			for k := range 20 {
				ids = append(ids, m.Must(Request{Topic: "t", Delay: time.Hour}).ID)
				ids = append(ids, m.Must(Request{ID: fmt.Sprintf("x-%d-%d", i, k), Topic: "t", Delay: time.Hour}).ID)
			}
		}
		var over atomic.Bool
		var looks, found atomic.Int64
		done := make(chan struct{})
		for _, m := range f.Nodes {
			go func() {
				defer func() { done <- struct{}{} }()
				for !over.Load() {
					id := ids[rand.IntN(len(ids))]
					_, err := m.Get(context.Background(), id)
					looks.Add(1)
					switch {
					case err == nil:
						found.Add(1)
					case !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrReplaying) && !errors.Is(err, ErrClosed):
						t.Errorf("Get(%s) at %s: %v", id, m.Name, err)
					}
					time.Sleep(time.Millisecond)
				}
			}()
		}
		for range 10 {
			// Each adopts what the next one holds, who is told that it has lost it.
			from, to := rand.IntN(3), rand.IntN(3)
			if from != to {
				f.Nodes[to].Member.AdoptFrom(f.Nodes[from].Member.Member)
			}
			rig.Pass(300 * time.Millisecond)
		}
		over.Store(true)
		for range f.Nodes {
			<-done
		}
		if found.Load() < looks.Load()/2 {
			t.Errorf("%d of %d looks have found their task", found.Load(), looks.Load())
		}
	})
}

// A cancel and an acknowledgement of the same task at two nodes: one of them wins.
func TestCancelAgainstAck(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		for i := range 30 {
			id := fmt.Sprint("x-", i)
			owner := f.Nodes[i%3]
			owner.Must(Request{ID: id, Topic: "t"})
			rig.Pass(time.Millisecond)
			ds, err := owner.Reserve(t.Context(), "t", 1, 0, time.Second)
			if rig.Want(t, "Reserve", err, nil); len(ds) != 1 {
				t.Fatal("nothing was reserved")
			}
			if i%2 == 1 {
				// the lease is over, but the attempt was not handed out again
				rig.Pass(3 * time.Second)
			}
			cancelled := make(chan error, 1)
			go func() { cancelled <- f.Nodes[(i+1)%3].Cancel(t.Context(), id) }()
			a, err := f.Nodes[(i+2)%3].Settle(t.Context(), Verdict{Verb: Ack}, []string{ds[0].Receipt()})
			rig.Want(t, "Settle", err, nil)
			cancel := <-cancelled
			if settled := a[0].Err == nil; settled == (cancel == nil) {
				t.Fatalf("%s: cancelled %v, acknowledged %v", id, cancel, a[0].Err)
			}
			_, err = f.Nodes[i%3].Get(t.Context(), id)
			rig.Want(t, "Get", err, ErrNotFound)
		}
	})
}

// Receipts of version 1 name a shard of the node that has made them, so that the owner
// has to be found by the id.
func TestReceiptOfVersion1AtAnotherNode(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		for _, id := range []string{"", "x"} {
			a, b := f.Nodes[0], f.Nodes[1]
			a.Must(Request{ID: id, Topic: "t"})
			rig.Pass(time.Millisecond)
			ds, err := a.Reserve(t.Context(), "t", 1, 0, 0)
			rig.Want(t, "Reserve", err, nil)
			raw := []byte{1}
			raw = binary.LittleEndian.AppendUint16(raw, rig.Begun(ds[0]).Shard)
			raw = binary.LittleEndian.AppendUint32(raw, rig.Begun(ds[0]).Lease.Attempt)
			raw = binary.LittleEndian.AppendUint32(raw, uint32(ds[0].Revision))
			raw = binary.LittleEndian.AppendUint64(raw, uint64(ds[0].Created.UnixMilli()))
			raw = binary.LittleEndian.AppendUint64(raw, rig.Begun(ds[0]).Lease.Nonce)
			raw = append(raw, ds[0].ID...)
			receipt := base64.RawURLEncoding.EncodeToString(b.Engine().Signer.MAC(raw, raw))
			answers, err := b.Settle(t.Context(), Verdict{Verb: Ack}, []string{receipt})
			rig.Want(t, "Settle", errors.Join(err, answers[0].Err), nil)
			_, err = b.Get(t.Context(), ds[0].ID)
			rig.Want(t, "Get", err, ErrNotFound)
		}
	})
}

// An attempt that was not handed out again counts, whichever node holds its task now, be it the
// process that has handed it out, after others have held it.
func TestReceiptAfterItsShardHasMoved(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		var receipts []string
		for i := range 4 {
			a.Must(Request{ID: fmt.Sprint("x-", i), Topic: "t"})
		}
		rig.Pass(time.Millisecond)
		ds, err := a.Reserve(t.Context(), "t", 4, 0, time.Minute)
		rig.Want(t, "Reserve", err, nil)
		for i := range ds {
			receipts = append(receipts, ds[i].Receipt())
		}
		settle := func(m *rig.Node, receipt string, kind error) {
			t.Helper()
			answers, err := m.Settle(t.Context(), Verdict{Verb: Ack}, []string{receipt})
			rig.Want(t, "Settle", err, nil)
			rig.Want(t, "Settle", answers[0].Err, kind)
		}
		b.Member.AdoptFrom(a.Member.Member)
		rig.Pass(time.Second)
		settle(f.Nodes[2], receipts[0], nil)
		a.Member.AdoptFrom(b.Member.Member)
		rig.Pass(time.Second)
		settle(f.Nodes[2], receipts[1], nil)
		settle(a, receipts[2], nil)
		settle(b, receipts[2], nil)
		ds, err = a.Reserve(t.Context(), "t", 4, 0, 0)
		if rig.Want(t, "Reserve", err, nil); len(ds) != 1 {
			t.Fatalf("reserved %d", len(ds))
		}
		settle(b, receipts[3], ErrStale)
		settle(b, ds[0].Receipt(), nil)
	})
}

// A version that does not know a method says so; fields that it does not know do not matter.
func TestMixedVersions(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		_, err := cluster.Call(t.Context(), a.Cluster(), "b", cluster.Method[cluster.IDQuery, Task]{Name: "of-tomorrow"}, cluster.IDQuery{ID: "x"})
		rig.Want(t, "an unknown verb", err, ErrUnavailable)
		rig.Want(t, "an unknown verb", err, cluster.ErrNotUnderstood)
		b.Must(Request{ID: "x", Topic: "t", Delay: time.Hour})
		type tomorrow struct {
			ID    string
			Shoes int
		}
		type answer struct {
			ID      string
			Unknown *int
		}
		got, err := cluster.Call(t.Context(), a.Cluster(), "b", cluster.Method[tomorrow, answer]{Name: "get"}, tomorrow{"x", 44})
		if rig.Want(t, "an unknown field", err, nil); got.ID != "x" || got.Unknown != nil {
			t.Errorf("%+v", got)
		}
	})
}

// An outcome that a version does not understand does not count as settled.
func TestVerdictOfTomorrow(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		b.Must(Request{Topic: "t"})
		rig.Pass(time.Millisecond)
		ds, err := b.Reserve(t.Context(), "t", 1, 0, time.Minute)
		rig.Want(t, "Reserve", err, nil)
		told := cluster.OutcomesQuery{Outcomes: []cluster.OffloadOutcome{{Receipt: ds[0].Receipt(), Verb: Return + 1}, {Receipt: ds[0].Receipt(), Verb: Ack}}}
		answer, err := cluster.Call(t.Context(), a.Cluster(), "b", cluster.OutcomesMethod, told)
		rig.Want(t, "ask", err, nil)
		rig.Want(t, "a method of tomorrow", answer.Faults[0].Err("b", false), cluster.ErrNotUnderstood)
		if code := answer.Faults[1].Code; code != "" {
			t.Error("the acknowledgement was answered", code)
		}
	})
}

// A deadline is the same at another node, also in a zone whose offset has seconds; and
// none, which a receiver's zone may make look like one, stays none.
func TestDeadlinesTravel(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		zone := time.FixedZone("", -(53*60 + 28))
		due := time.Now().Add(time.Hour).Truncate(time.Second)
		id := func() string { return b.ShardID(0).NewID() }
		check := func(what string, task Task, err error) {
			t.Helper()
			if rig.Want(t, what, err, nil); !b.MustGet(task.ID).Due.Equal(due) {
				t.Errorf("%s: due at %v, not %v", what, b.MustGet(task.ID).Due, due.UTC())
			}
		}
		task, err := a.Schedule(t.Context(), Request{ID: id(), Topic: "t", Due: due.In(zone)})
		check("Schedule", task, err)
		task, err = a.Replace(t.Context(), Request{ID: id(), Topic: "t", Due: due.In(zone)})
		check("Replace", task, err)
		results, err := a.ScheduleBatch(t.Context(), []Request{{ID: id(), Topic: "t", Due: due.In(zone)}})
		check("ScheduleBatch", Task{ID: results[0].ID}, errors.Join(err, results[0].Err))
		task, err = a.Reschedule(t.Context(), task.ID, Move{Due: time.Time{}.In(zone), Payload: []byte("{}")})
		check("Reschedule without a deadline", task, err)
		due = due.Add(time.Minute)
		task, err = a.Reschedule(t.Context(), task.ID, Move{Due: due.In(zone)})
		check("Reschedule", task, err)
		_, err = a.Schedule(t.Context(), Request{ID: id(), Topic: "t", Due: time.Time{}.In(zone), Delay: time.Hour})
		rig.Want(t, "a delay and no deadline", err, nil)
	})
}

// Every error that callers may test for arrives as itself.
func TestErrorsTravel(t *testing.T) {
	for _, c := range cluster.ErrorCodes {
		err := cluster.WireErrorOf(fmt.Errorf("%w: because", c.Err)).Err("b", true)
		if errors.Is(c.Err, cluster.ErrNotUnderstood) {
			rig.Want(t, c.Code, err, ErrUnavailable)
		}
		rig.Want(t, c.Code, err, c.Err)
	}
	invalid := &InvalidError{Fields: []FieldError{{Field: "due_at", Problem: "must be right"}}}
	var got *InvalidError
	if err := cluster.WireErrorOf(fmt.Errorf("no: %w", invalid)).Err("b", true); !errors.As(err, &got) || got.Fields[0] != invalid.Fields[0] {
		t.Errorf("%v", err)
	}
	rig.Want(t, "a code of tomorrow", (&cluster.WireError{Code: "sleepy"}).Err("b", true), ErrUnknown)
	rig.Want(t, "a code of tomorrow", (&cluster.WireError{Code: "sleepy"}).Err("b", false), ErrUnavailable)
}
