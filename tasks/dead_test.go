package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/record"
)

// bury makes tasks die, one each second.
func (r *rig) bury(topic string, ids ...string) {
	r.t.Helper()
	for _, id := range ids {
		d := r.one(id, topic)
		if a := r.settle(Verdict{Verb: Bury, Reason: "no use"}, d); a.Err != nil || !a.Recorded {
			r.t.Fatalf("Bury: %+v", a)
		}
		pass(time.Second)
	}
}

// requeued is how many tasks came back.
func requeued(r Requeued, err error) (int, error) { return r.Requeued, err }

func idsOf(tasks []Task) []string {
	var ids []string
	for _, task := range tasks {
		ids = append(ids, task.ID)
	}
	return ids
}

func TestDeadTasks(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.bury("x", "e", "d", "c", "b", "a")
		r.bury("y", "z")
		for range 2 {
			var got []string
			for cursor, pages := "", 0; pages < mostPages; pages++ {
				page, err := r.DeadTasks(t.Context(), "x", 2, cursor)
				want(t, "DeadTasks", err, nil)
				got = append(got, idsOf(page.Tasks)...)
				if cursor = page.Cursor; cursor == "" {
					break
				}
			}
			if !slices.Equal(got, []string{"e", "d", "c", "b", "a"}) {
				t.Errorf("the dead of x: %v", got)
			}
			task := r.get("c")
			if task.State != Dead || task.LastError != "no use" || task.Reason != Buried || task.Attempt != 1 || task.Died.IsZero() || task.Died.Before(task.Due) {
				t.Errorf("a dead task: %+v", task)
			}
			if c := r.counts("x"); c.Dead != 5 {
				t.Errorf("counts %+v", c)
			}
			page, err := r.List(t.Context(), Query{Topic: "y", State: Dead})
			if err != nil || len(page.Tasks) != 1 || page.Tasks[0].ID != "z" {
				t.Errorf("List of the dead: %+v, %v", page, err)
			}
			r.restart()
			pass(time.Second)
		}
	})
}

// A dead task keeps its id, and refuses what is only for live ones.
func TestDeadTaskKeepsItsID(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.bury("x", "t")
		for range 2 {
			_, err := r.Schedule(t.Context(), Request{ID: "t", Topic: "x"})
			want(t, "Schedule", err, ErrDead)
			_, err = r.Replace(t.Context(), Request{ID: "t", Topic: "x"})
			want(t, "Replace", err, ErrDead)
			_, err = r.Fire(t.Context(), "t")
			want(t, "Fire", err, ErrDead)
			r.crash()
			pass(time.Second)
		}
		want(t, "Cancel", r.Cancel(t.Context(), "t"), nil)
		want(t, "Cancel again", r.Cancel(t.Context(), "t"), nil)
		r.must(Request{ID: "t", Topic: "x"})
		r.checkConsistency()
	})
}

func TestRequeue(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.bury("x", "a", "b", "c")
		r.bury("y", "z")
		n, err := requeued(r.Requeue(t.Context(), "x", Requeue{IDs: []string{"b", "z", "unknown", "b"}}))
		if err != nil || n != 1 {
			t.Fatalf("Requeue = %d, %v", n, err)
		}
		d := r.pull("x", "b")[0]
		if d.Attempt != 1 || d.Revision != 2 || !d.Due.Equal(record.FromMillis(r.clock.now().UnixMilli())) {
			t.Errorf("again: %+v", d.Task)
		}
		r.ack(d)
		n, err = requeued(r.Requeue(t.Context(), "x", Requeue{}))
		if err != nil || n != 2 {
			t.Errorf("Requeue of all = %d, %v", n, err)
		}
		ds, err := r.Reserve(t.Context(), "x", 10, 0, 0)
		if err != nil || len(ds) != 2 || ds[0].ID == "b" || ds[1].ID == "b" {
			t.Errorf("requeued %v, %v", ds, err)
		}
		r.inLedger("z", recovery.Dead)
		if c := r.counts("x"); c.Dead != 0 || c.Delivering != 2 {
			t.Errorf("counts %+v", c)
		}
		r.checkConsistency()
	})
}

// Why they are dead is known after a restart, and forgotten when they come back.
func TestReasons(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		once := TopicSettings{Retry: Retry{MaxAttempts: 1}, Lease: time.Minute}
		r.topic("x", once)
		want(t, "Handle", r.Handle("h", func(_ context.Context, d *Delivery) error {
			if d.ID == "killed" {
				return Kill(errors.New("hopeless"))
			}
			return errors.New("no luck")
		}), nil)
		r.topic("h", once)
		r.bury("x", "buried")
		r.settle(Verdict{Verb: Release}, r.one("released", "x"))
		r.one("expired", "x")
		r.must(Request{ID: "killed", Topic: "h"})
		r.must(Request{ID: "failed", Topic: "h"})
		pass(2 * time.Minute)
		for range 2 {
			for id, reason := range map[string]Reason{
				"buried": Buried, "killed": Buried, "released": Exhausted, "expired": Exhausted, "failed": Exhausted,
			} {
				if task := r.get(id); task.State != Dead || task.Reason != reason || task.Attempt != 1 || task.LastError == "" {
					t.Errorf("%s: %+v", id, task)
				}
			}
			r.crash()
			pass(time.Second)
		}
		_, err := r.Requeue(t.Context(), "x", Requeue{Delay: time.Hour})
		want(t, "Requeue", err, nil)
		if task := r.get("buried"); task.State != Pending || task.Reason != "" || !task.Died.IsZero() {
			t.Errorf("back comes %+v", task)
		}
		r.checkConsistency()
	})
}

// They come back when they are told to, with all their attempts before them, also after
// a restart in between.
func TestRequeueWithDeadline(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.topic("x", TopicSettings{Retry: Retry{MaxAttempts: 1}})
		r.bury("x", "a", "b", "c", "d")
		r.bury("y", "z")
		due := r.clock.now().Add(3 * time.Hour).Add(time.Microsecond)
		q, err := r.Requeue(t.Context(), "x", Requeue{IDs: []string{"a", "z", "nobody", "z", "a"}, Delay: 2 * time.Hour})
		if err != nil || q.Requeued != 1 || !slices.Equal(q.Unknown, []string{"z", "nobody"}) {
			t.Fatalf("requeued %+v, %v", q, err)
		}
		q, err = r.Requeue(t.Context(), "x", Requeue{IDs: []string{"b"}, Due: due})
		if err != nil || q.Requeued != 1 || q.Unknown != nil {
			t.Fatalf("requeued %+v, %v", q, err)
		}
		if task := r.get("b"); task.State != Pending || !task.Due.Equal(due.Truncate(time.Millisecond).Add(time.Millisecond)) || task.Revision != 2 {
			t.Errorf("back comes %+v", task)
		}
		past := record.FromMillis(r.clock.now().Add(-time.Hour).UnixMilli())
		_, err = r.Requeue(t.Context(), "x", Requeue{Due: past})
		want(t, "Requeue", err, nil)
		ds, err := r.Reserve(t.Context(), "x", MaxReserve, 0, 0)
		if err != nil || len(ds) != 2 {
			t.Fatalf("reserved %d, %v", len(ds), err)
		}
		for _, d := range ds {
			if !d.Due.Equal(past) || d.Attempt != 1 {
				t.Errorf("back comes %+v", d.Task)
			}
			r.ack(d)
		}
		pass(time.Hour)
		r.crash()
		pass(59 * time.Minute)
		r.pull("x")
		pass(time.Minute)
		d := r.pull("x", "a")[0]
		r.settle(Verdict{Verb: Release}, d)
		if task := r.get("a"); task.State != Dead || task.Reason != Exhausted {
			t.Errorf("after its only attempt: %+v", task)
		}
		pass(time.Hour)
		r.pull("x")
		pass(time.Second)
		r.ack(r.pull("x", "b")[0])
		r.checkConsistency()
	})
}

// Nothing may be dead any more where ids were chosen and none is left: that is not all.
func TestRequeueOfNone(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.bury("x", "a")
		q, err := r.Requeue(t.Context(), "x", Requeue{IDs: []string{}})
		if err != nil || q.Requeued != 0 {
			t.Errorf("requeued %+v, %v", q, err)
		}
		r.inLedger("a", recovery.Dead)
	})
}

// All of them, many more than go at once.
func TestManyDead(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		const n = 1300
		for i := range n {
			r.must(Request{ID: fmt.Sprint("t", i), Topic: "x"})
		}
		for left := n; left > 0; {
			ds, err := r.Reserve(t.Context(), "x", MaxReserve, 0, 0)
			want(t, "Reserve", err, nil)
			var receipts []string
			for _, d := range ds {
				receipts = append(receipts, d.Receipt())
			}
			_, err = r.Settle(t.Context(), Verdict{Verb: Bury}, receipts)
			want(t, "Settle", err, nil)
			left -= len(ds)
		}
		got, err := requeued(r.Requeue(t.Context(), "x", Requeue{}))
		if err != nil || got != n {
			t.Errorf("Requeue of all = %d, %v", got, err)
		}
		got, err = r.DeleteDead(t.Context(), "x", nil)
		if err != nil || got != 0 {
			t.Errorf("DeleteDead of none = %d, %v", got, err)
		}
		r.checkConsistency()
	})
}

// What is listed while a dead task is being deleted or requeued.
func TestListBesideRedrive(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.bury("x", "deleted", "requeued")
		_, release := r.faulty.Hold(ledgertest.Apply)
		go func() { _, _ = r.DeleteDead(t.Context(), "x", []string{"deleted"}) }()
		go func() { _, _ = r.Requeue(t.Context(), "x", Requeue{IDs: []string{"requeued"}}) }()
		pass(time.Millisecond)
		page, err := r.List(t.Context(), Query{})
		want(t, "List", err, nil)
		if slices.Contains(idsOf(page.Tasks), "deleted") {
			t.Errorf("a dead task is listed as %v", page.Tasks)
		}
		r.Stats()
		release()
		pass(time.Second)
		r.pull("x", "requeued")
		r.checkConsistency()
	})
}

// The ledger cannot be read: nothing has happened.
func TestDeadDuringOutage(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.bury("x", "t")
		r.faulty.Inject(ledgertest.Fault{Op: ledgertest.GetDead, Times: -1})
		_, err := r.Requeue(t.Context(), "x", Requeue{IDs: []string{"t"}})
		want(t, "Requeue", err, ErrUnavailable)
		want(t, "Cancel", r.Cancel(t.Context(), "t"), ErrUnavailable)
		_, err = r.Get(t.Context(), "t")
		want(t, "Get", err, ErrUnavailable)
		r.faulty.Inject(ledgertest.Fault{Op: ledgertest.ListDead, Times: -1})
		_, err = r.DeadTasks(t.Context(), "x", 0, "")
		want(t, "DeadTasks", err, ErrUnavailable)
		_, err = r.DeleteDead(t.Context(), "x", nil)
		want(t, "DeleteDead", err, ErrUnavailable)
		r.faulty.Heal()
		r.inLedger("t", recovery.Dead)
		want(t, "Cancel", r.Cancel(t.Context(), "t"), nil)
		r.checkConsistency()
	})
}
