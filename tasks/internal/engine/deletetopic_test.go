package engine_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A topic with tasks is deleted by force only. Then its tasks are dead, but for those
// that are being delivered, and what can be done with the dead can be done with them.
func TestDeleteTopicWithTasks(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		ctx := t.Context()
		set, err := r.SetTopic(ctx, "x", tasks.TopicSettings{Lease: time.Hour}, -1)
		rig.Want(t, "SetTopic", err, nil)
		for _, id := range []string{"open", "retried", "ready"} {
			r.Must(tasks.Request{ID: id, Topic: "x"})
			rig.Pass(time.Millisecond)
		}
		r.Must(tasks.Request{ID: "pending", Topic: "x", Delay: time.Hour, Group: "g"})
		r.Must(tasks.Request{ID: "other", Topic: "y", Delay: time.Hour})
		ds := r.Pull("x", "open", "retried", "ready")
		open, minute, now := ds[0], time.Minute, time.Duration(0)
		r.SettleOne(tasks.Verdict{Verb: tasks.Release, Reason: "not now", Delay: &minute}, ds[1])
		r.SettleOne(tasks.Verdict{Verb: tasks.Release, Reason: "not I", Delay: &now}, ds[2])

		rig.Want(t, "DeleteTopic", r.Admin().DeleteTopic(ctx, "x", -1), tasks.ErrInUse)
		_, err = r.Admin().KillTopic(ctx, "x", set.Revision+1)
		rig.Want(t, "KillTopic of another revision", err, tasks.ErrRevision)
		if x, err := r.Topic("x"); err != nil || x.Revision != set.Revision || x.Counts.Dead != 0 {
			t.Errorf("refused, it has become %+v, %v", x, err)
		}
		killed, err := r.Admin().KillTopic(ctx, "x", set.Revision)
		if err != nil || killed != (tasks.Killed{Killed: 3, Delivering: 1}) {
			t.Errorf("KillTopic = %+v, %v", killed, err)
		}
		if x, err := r.Topic("x"); err != nil || x.Revision != 0 || x.Settings.Lease != 30*time.Second || x.Counts.Dead != 3 || x.Counts.Died != 3 {
			t.Errorf("afterwards %+v, %v", x, err)
		}
		r.Ack(open)
		rig.Want(t, "DeleteTopic without settings or tasks", r.Admin().DeleteTopic(ctx, "x", -1), tasks.ErrNoTopic)
		dead, err := r.Admin().DeadTasks(ctx, "x", 10, "")
		rig.Want(t, "DeadTasks", err, nil)
		attempts := ""
		for _, d := range dead.Tasks {
			if d.Reason != tasks.TopicDeleted || d.LastError != "the topic was deleted" {
				t.Errorf("dead is %+v", d)
			}
			attempts += fmt.Sprint(d.ID, d.Attempt, " ")
		}
		if len(dead.Tasks) != 3 {
			t.Errorf("dead are %s", attempts)
		}
		_, err = r.Admin().Requeue(ctx, "x", tasks.Requeue{})
		rig.Want(t, "Requeue", err, nil)
		rig.Pass(time.Second)
		ds, err = r.Reserve(ctx, "x", 10, 0, 0)
		if err != nil || len(ds) != 3 {
			t.Errorf("requeued are %+v, %v", ds, err)
		}
		for _, d := range ds {
			r.Ack(d)
		}
		if other := r.MustGet("other"); other.State != tasks.Pending {
			t.Errorf("a task of another topic: %+v", other)
		}
		r.CheckConsistency()
	})
}

// A topic that no caller has set up, and that has tasks, can be deleted by force too. What
// comes meanwhile is delivered by the defaults; nothing is lost or done twice.
func TestKillTopicUnderLoad(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		accepted := 0
		var handled atomic.Int64
		r.MustHandle("x", func(context.Context, *tasks.Delivery) error { handled.Add(1); return nil })
		for round := range 20 {
			for i := range 50 {
				r.Must(tasks.Request{ID: fmt.Sprintf("t%d-%d", round, i), Topic: "x", Delay: time.Duration(i) * 100 * time.Millisecond})
				accepted++
			}
			rig.Pass(2 * time.Second)
			_, err := r.Admin().KillTopic(t.Context(), "x", -1)
			rig.Want(t, "KillTopic", err, nil)
		}
		rig.Pass(time.Minute)
		c := r.Counts("x")
		if int(c.Dead+handled.Load()) != accepted || c.Pending+c.Ready+c.Delivering != 0 {
			t.Errorf("of %d tasks %d are dead and %d were handled: %+v", accepted, c.Dead, handled.Load(), c)
		}
		r.CheckConsistency()
	})
}

// What was killed during an outage is dead when the ledger is back: nothing of it is
// delivered any more.
func TestKillTopicInAnOutage(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", tasks.TopicSettings{Lease: time.Hour})
		r.Must(tasks.Request{ID: "a", Topic: "x", Delay: time.Minute})
		r.Faulty.Down()
		_, err := r.Admin().KillTopic(t.Context(), "x", -1)
		rig.Want(t, "KillTopic", err, tasks.ErrUnknown)
		rig.Pass(2 * time.Minute)
		if ds, err := r.Reserve(t.Context(), "x", 1, 0, 0); err == nil && len(ds) > 0 {
			t.Errorf("delivered: %+v", ds)
		}
		r.Faulty.Heal()
		rig.Pass(time.Minute)
		if c := r.Counts("x"); c.Dead != 1 {
			t.Errorf("afterwards %+v", c)
		}
		_, err = r.Admin().KillTopic(t.Context(), "x", -1)
		rig.Want(t, "KillTopic again", err, nil)
		r.CheckConsistency()
	})
}

// Deaths that the ledger could not take in time come to pass when it answers again.
func TestKilledLaterThanTheAnswer(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", tasks.TopicSettings{})
		r.Must(tasks.Request{ID: "t", Topic: "x", Delay: time.Hour})
		_, release := r.Faulty.Hold(ledgertest.Apply)
		// The goroutine keeps the committer busy.
		go func() { _, _ = r.Schedule(t.Context(), tasks.Request{Topic: "y"}) }()
		rig.Pass(time.Millisecond)
		_, err := r.Admin().KillTopic(t.Context(), "x", -1)
		rig.Want(t, "KillTopic", err, tasks.ErrUnknown)
		release()
		rig.Pass(time.Second)
		r.InLedger("t", recovery.Dead)
		r.CheckConsistency()
	})
}
