package engine_test

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
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

func TestDeadTasks(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.Bury("x", "e", "d", "c", "b", "a")
		r.Bury("y", "z")
		for range 2 {
			var got []string
			for cursor, pages := "", 0; pages < rig.MostPages; pages++ {
				page, err := r.Admin().DeadTasks(t.Context(), "x", 2, cursor)
				rig.Want(t, "DeadTasks", err, nil)
				got = append(got, rig.IDsOf(page.Tasks)...)
				if cursor = page.Cursor; cursor == "" {
					break
				}
			}
			if !slices.Equal(got, []string{"e", "d", "c", "b", "a"}) {
				t.Errorf("the dead of x: %v", got)
			}
			task := r.MustGet("c")
			if task.State != Dead || task.LastError != "no use" || task.Reason != Buried || task.Attempt != 1 || task.Died.IsZero() || task.Died.Before(task.Due) {
				t.Errorf("a dead task: %+v", task)
			}
			if c := r.Counts("x"); c.Dead != 5 {
				t.Errorf("counts %+v", c)
			}
			page, err := r.List(t.Context(), Query{Topic: "y", State: Dead})
			if err != nil || len(page.Tasks) != 1 || page.Tasks[0].ID != "z" {
				t.Errorf("List of the dead: %+v, %v", page, err)
			}
			r.Restart()
			rig.Pass(time.Second)
		}
	})
}

// A dead task keeps its id, and refuses what is only for live ones.
func TestDeadTaskKeepsItsID(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.Bury("x", "t")
		for range 2 {
			_, err := r.Schedule(t.Context(), Request{ID: "t", Topic: "x"})
			rig.Want(t, "Schedule", err, ErrDead)
			_, err = r.Replace(t.Context(), Request{ID: "t", Topic: "x"})
			rig.Want(t, "Replace", err, ErrDead)
			_, err = r.Fire(t.Context(), "t")
			rig.Want(t, "Fire", err, ErrDead)
			r.Crash()
			rig.Pass(time.Second)
		}
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "t"), nil)
		rig.Want(t, "Cancel again", r.Cancel(t.Context(), "t"), nil)
		r.Must(Request{ID: "t", Topic: "x"})
		r.CheckConsistency()
	})
}

func TestRequeue(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.Bury("x", "a", "b", "c")
		r.Bury("y", "z")
		n, err := rig.Requeued(r.Admin().Requeue(t.Context(), "x", Requeue{IDs: []string{"b", "z", "unknown", "b"}}))
		if err != nil || n != 1 {
			t.Fatalf("Requeue = %d, %v", n, err)
		}
		d := r.Pull("x", "b")[0]
		if d.Attempt != 1 || d.Revision != 2 || !d.Due.Equal(record.FromMillis(r.Clock.Now().UnixMilli())) {
			t.Errorf("again: %+v", d.Task)
		}
		r.Ack(d)
		n, err = rig.Requeued(r.Admin().Requeue(t.Context(), "x", Requeue{}))
		if err != nil || n != 2 {
			t.Errorf("Requeue of all = %d, %v", n, err)
		}
		ds, err := r.Reserve(t.Context(), "x", 10, 0, 0)
		if err != nil || len(ds) != 2 || ds[0].ID == "b" || ds[1].ID == "b" {
			t.Errorf("requeued %v, %v", ds, err)
		}
		r.InLedger("z", recovery.Dead)
		if c := r.Counts("x"); c.Dead != 0 || c.Delivering != 2 {
			t.Errorf("counts %+v", c)
		}
		r.CheckConsistency()
	})
}

// Why they are dead is known after a restart, and forgotten when they come back.
func TestReasons(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		once := TopicSettings{Retry: Retry{MaxAttempts: 1}, Lease: time.Minute}
		r.MustSetTopic("x", once)
		rig.Want(t, "Handle", r.Handle("h", func(_ context.Context, d *Delivery) error {
			if d.ID == "killed" {
				return Kill(errors.New("hopeless"))
			}
			return errors.New("no luck")
		}), nil)
		r.MustSetTopic("h", once)
		r.Bury("x", "buried")
		r.SettleOne(Verdict{Verb: Release}, r.One("released", "x"))
		r.One("expired", "x")
		r.Must(Request{ID: "killed", Topic: "h"})
		r.Must(Request{ID: "failed", Topic: "h"})
		rig.Pass(2 * time.Minute)
		for range 2 {
			for id, reason := range map[string]Reason{
				"buried": Buried, "killed": Buried, "released": Exhausted, "expired": Exhausted, "failed": Exhausted,
			} {
				if task := r.MustGet(id); task.State != Dead || task.Reason != reason || task.Attempt != 1 || task.LastError == "" {
					t.Errorf("%s: %+v", id, task)
				}
			}
			r.Crash()
			rig.Pass(time.Second)
		}
		_, err := r.Admin().Requeue(t.Context(), "x", Requeue{Delay: time.Hour})
		rig.Want(t, "Requeue", err, nil)
		if task := r.MustGet("buried"); task.State != Pending || task.Reason != "" || !task.Died.IsZero() {
			t.Errorf("back comes %+v", task)
		}
		r.CheckConsistency()
	})
}

// They come back when they are told to, with all their attempts before them, also after
// a restart in between.
func TestRequeueWithDeadline(t *testing.T) {
	t.Parallel()
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Retry: Retry{MaxAttempts: 1}})
		r.Bury("x", "a", "b", "c", "d")
		r.Bury("y", "z")
		due := r.Clock.Now().Add(3 * time.Hour).Add(time.Microsecond)
		q, err := r.Admin().Requeue(t.Context(), "x", Requeue{IDs: []string{"a", "z", "nobody", "z", "a"}, Delay: 2 * time.Hour})
		if err != nil || q.Requeued != 1 || !slices.Equal(q.Unknown, []string{"z", "nobody"}) {
			t.Fatalf("requeued %+v, %v", q, err)
		}
		q, err = r.Admin().Requeue(t.Context(), "x", Requeue{IDs: []string{"b"}, Due: due})
		if err != nil || q.Requeued != 1 || q.Unknown != nil {
			t.Fatalf("requeued %+v, %v", q, err)
		}
		if task := r.MustGet("b"); task.State != Pending || !task.Due.Equal(due.Truncate(time.Millisecond).Add(time.Millisecond)) || task.Revision != 2 {
			t.Errorf("back comes %+v", task)
		}
		past := record.FromMillis(r.Clock.Now().Add(-time.Hour).UnixMilli())
		_, err = r.Admin().Requeue(t.Context(), "x", Requeue{Due: past})
		rig.Want(t, "Requeue", err, nil)
		ds, err := r.Reserve(t.Context(), "x", MaxReserve, 0, 0)
		if err != nil || len(ds) != 2 {
			t.Fatalf("reserved %d, %v", len(ds), err)
		}
		for _, d := range ds {
			if !d.Due.Equal(past) || d.Attempt != 1 {
				t.Errorf("back comes %+v", d.Task)
			}
			r.Ack(d)
		}
		rig.Pass(time.Hour)
		r.Crash()
		rig.Pass(59 * time.Minute)
		r.Pull("x")
		rig.Pass(time.Minute)
		d := r.Pull("x", "a")[0]
		r.SettleOne(Verdict{Verb: Release}, d)
		if task := r.MustGet("a"); task.State != Dead || task.Reason != Exhausted {
			t.Errorf("after its only attempt: %+v", task)
		}
		rig.Pass(time.Hour)
		r.Pull("x")
		rig.Pass(time.Second)
		r.Ack(r.Pull("x", "b")[0])
		r.CheckConsistency()
	})
}

// Nothing may be dead any more where ids were chosen and none is left: that is not all.
func TestRequeueOfNone(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.Bury("x", "a")
		q, err := r.Admin().Requeue(t.Context(), "x", Requeue{IDs: []string{}})
		if err != nil || q.Requeued != 0 {
			t.Errorf("requeued %+v, %v", q, err)
		}
		r.InLedger("a", recovery.Dead)
	})
}

// All of them, many more than go at once.
func TestManyDead(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		const n = 1300
		for i := range n {
			r.Must(Request{ID: fmt.Sprint("t", i), Topic: "x"})
		}
		for left := n; left > 0; {
			ds, err := r.Reserve(t.Context(), "x", MaxReserve, 0, 0)
			rig.Want(t, "Reserve", err, nil)
			var receipts []string
			for _, d := range ds {
				receipts = append(receipts, d.Receipt())
			}
			_, err = r.Settle(t.Context(), Verdict{Verb: Bury}, receipts)
			rig.Want(t, "Settle", err, nil)
			left -= len(ds)
		}
		got, err := rig.Requeued(r.Admin().Requeue(t.Context(), "x", Requeue{}))
		if err != nil || got != n {
			t.Errorf("Requeue of all = %d, %v", got, err)
		}
		got, err = r.Admin().DeleteDead(t.Context(), "x", nil)
		if err != nil || got != 0 {
			t.Errorf("DeleteDead of none = %d, %v", got, err)
		}
		r.CheckConsistency()
	})
}

// What is listed while a dead task is being deleted or requeued.
func TestListBesideRedrive(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.Bury("x", "deleted", "requeued")
		_, release := r.Faulty.Hold(ledgertest.Apply)
		go func() { _, _ = r.Admin().DeleteDead(t.Context(), "x", []string{"deleted"}) }()
		go func() { _, _ = r.Admin().Requeue(t.Context(), "x", Requeue{IDs: []string{"requeued"}}) }()
		rig.Pass(time.Millisecond)
		page, err := r.List(t.Context(), Query{})
		rig.Want(t, "List", err, nil)
		if slices.Contains(rig.IDsOf(page.Tasks), "deleted") {
			t.Errorf("a dead task is listed as %v", page.Tasks)
		}
		r.Stats()
		release()
		rig.Pass(time.Second)
		r.Pull("x", "requeued")
		r.CheckConsistency()
	})
}

// The ledger cannot be read: nothing has happened.
func TestDeadDuringOutage(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.Bury("x", "t")
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.GetDead, Times: -1})
		_, err := r.Admin().Requeue(t.Context(), "x", Requeue{IDs: []string{"t"}})
		rig.Want(t, "Requeue", err, ErrUnavailable)
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "t"), ErrUnavailable)
		_, err = r.Get(t.Context(), "t")
		rig.Want(t, "Get", err, ErrUnavailable)
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.ListDead, Times: -1})
		_, err = r.Admin().DeadTasks(t.Context(), "x", 0, "")
		rig.Want(t, "DeadTasks", err, ErrUnavailable)
		_, err = r.Admin().DeleteDead(t.Context(), "x", nil)
		rig.Want(t, "DeleteDead", err, ErrUnavailable)
		r.Faulty.Heal()
		r.InLedger("t", recovery.Dead)
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "t"), nil)
		r.CheckConsistency()
	})
}
