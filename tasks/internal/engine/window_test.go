package engine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// Fire delivers at once: before the deadline, and in the window, also after a change of
// the payload.
func TestFireIsNotSpread(t *testing.T) {
	spreading(t, time.Hour, func(t *testing.T, r *rig.Rig, got *comings) {
		at := func(id string, n int) {
			t.Helper()
			rig.Pass(2 * time.Millisecond)
			if all := got.List(); len(all) != n || all[n-1].ID != id {
				t.Fatalf("%d delivered after %s was fired; want %d", len(all), id, n)
			}
		}
		for _, id := range []string{"t1", "t2", "t3", "t4"} {
			r.Must(tasks.Request{ID: id, Topic: "x", Delay: time.Minute})
		}
		_, err := r.Fire(t.Context(), "t1")
		rig.Want(t, "Fire", err, nil)
		at("t1", 1)
		rig.Pass(2 * time.Minute)
		_, err = r.Fire(t.Context(), "t2")
		rig.Want(t, "Fire", err, nil)
		at("t2", 2)

		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "x", true), nil)
		_, err = r.Fire(t.Context(), "t3")
		rig.Want(t, "Fire", err, nil)
		_, err = r.Reschedule(t.Context(), "t3", tasks.Move{Payload: []byte(`1`)})
		rig.Want(t, "Reschedule", err, nil)
		rig.Pass(time.Second)
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "x", false), nil)
		at("t3", 3)
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "x", true), nil)
		_, err = r.Fire(t.Context(), "t4")
		rig.Want(t, "Fire", err, nil)
		task, err := r.Reschedule(t.Context(), "t4", tasks.Move{Delay: rig.Ptr(time.Duration(0))})
		rig.Want(t, "Reschedule", err, nil)
		rig.Pass(time.Millisecond)
		if in := r.MustGet("t4"); !in.Next.Equal(place("t4", task.Due, time.Hour)) {
			t.Errorf("with a new deadline: %+v", in)
		}
		r.Must(tasks.Request{ID: "t5", Topic: "x", Delay: time.Minute})
		_, err = r.Fire(t.Context(), "t5")
		rig.Want(t, "Fire", err, nil)
		_, err = r.Reschedule(t.Context(), "t5", tasks.Move{Payload: []byte(`1`)})
		rig.Want(t, "Reschedule", err, nil)
		if in := r.MustGet("t5"); in.State != tasks.Ready {
			t.Errorf("fired, and with another payload: %+v", in)
		}
		if l := r.Counts("x").Lateness; l.Sum < time.Second || l.Sum > 1100*time.Millisecond {
			t.Errorf("lateness %+v; want the second that t3 has waited", l)
		}
		r.CheckConsistency()
	})
}

// A new deadline opens a new window; another payload leaves the place; a requeued task
// is a fresh one; a retry is not spread.
func TestMovesInsideTheWindow(t *testing.T) {
	const window = time.Hour
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", tasks.TopicSettings{Spread: window, Retry: tasks.Retry{MaxAttempts: 2, MinBackoff: time.Second, MaxBackoff: time.Second}})
		got := &comings{r: r}
		r.MustHandle("x", func(ctx context.Context, d *tasks.Delivery) error {
			_ = got.handler(ctx, d)
			return errors.New("no luck")
		})
		const id = "t1"
		stands := func(due time.Time) {
			t.Helper()
			rig.Pass(time.Millisecond)
			if task := r.MustGet(id); !task.Due.Equal(due) || !task.Next.Equal(place(id, due, window)) {
				t.Fatalf("%+v; want it due %v", task, due)
			}
		}
		due := r.Must(tasks.Request{ID: id, Topic: "x"}).Due
		stands(due)
		_, err := r.Reschedule(t.Context(), id, tasks.Move{Payload: []byte(`1`)})
		rig.Want(t, "Reschedule", err, nil)
		stands(due)
		if f := r.InLedger(id, recovery.Pending); f.Next != f.Due {
			t.Errorf("the ledger has next %d, due %d", f.Next, f.Due)
		}
		rig.Pass(time.Minute)
		task, err := r.Reschedule(t.Context(), id, tasks.Move{Delay: rig.Ptr(time.Duration(0))})
		rig.Want(t, "Reschedule", err, nil)
		stands(task.Due)
		rig.Pass(time.Minute)
		task, err = r.Replace(t.Context(), tasks.Request{ID: id, Topic: "x"})
		rig.Want(t, "Replace", err, nil)
		stands(task.Due)

		for round := range 2 {
			rig.Pass(window + time.Second)
			all := got.List()[2*round:]
			if len(all) != 2 || all[1].Attempt != 2 || all[1].at.Sub(all[0].at) > 1100*time.Millisecond {
				t.Fatalf("attempts %+v", all)
			}
			r.InLedger(id, recovery.Dead)
			if round == 0 {
				n, err := rig.Requeued(r.Admin().Requeue(t.Context(), "x", tasks.Requeue{}))
				if rig.Want(t, "Requeue", err, nil); n != 1 {
					t.Fatal("not requeued")
				}
				stands(r.MustGet(id).Due)
			}
		}
		r.CheckConsistency()
	})
}

// Lateness, and max_lateness with it, counts from the place.
func TestLatenessFromThePlace(t *testing.T) {
	t.Parallel()
	const window, slow = time.Hour, 5 * time.Second
	for _, counted := range []bool{false, true} {
		o := &starts{}
		rig.Bubble(t, tasks.Config{Observer: o}, func(t *testing.T, r *rig.Rig) {
			set := tasks.TopicSettings{Spread: window, CountCrashes: counted, Retry: tasks.Retry{MinBackoff: time.Second, MaxBackoff: time.Second}}
			r.MustSetTopic("x", set)
			due := r.Must(tasks.Request{ID: "t1", Topic: "x", MaxLateness: 10 * time.Second}).Due
			r.Must(tasks.Request{ID: "late", Topic: "x", Due: due, MaxLateness: time.Second})
			for _, id := range []string{"late", "t1"} {
				if place(id, due, window).Sub(due) < time.Minute {
					t.Fatalf("%s has an early place", id)
				}
			}
			rig.Pass(time.Until(place("t1", due, window)) + slow)
			d := r.Pull("x", "t1")[0]
			if l := r.Counts("x").Lateness; l.Sum < slow || l.Sum > slow+2*time.Millisecond {
				t.Errorf("counts crashes %v: lateness %v", counted, l.Sum)
			}
			if l := o.List(); len(l) != 1 || l[0] < slow || l[0] > slow+2*time.Millisecond {
				t.Errorf("counts crashes %v: the observer was told %v", counted, l)
			}
			r.SettleOne(tasks.Verdict{Verb: tasks.Release}, d)
			rig.Pass(2 * time.Second) // its second attempt is 7 s after its place
			d = r.Pull("x", "t1")[0]
			r.SettleOne(tasks.Verdict{Verb: tasks.Release}, d)
			rig.Pass(10 * time.Second)
			r.Pull("x")
			rig.Pass(window)
			r.Pull("x")
			if c := r.Counts("x"); c.Skipped != 2 {
				t.Errorf("%d skipped: both are too late", c.Skipped)
			}
			r.CheckConsistency()
		})
	}
}

// starts keeps the lateness of first attempts.
type starts struct{ rig.Collection[time.Duration] }

func (s *starts) Observe(e tasks.Event) {
	if e.Kind == tasks.EventStarted && e.Attempt == 1 {
		s.Add(e.Lateness)
	}
}

// A task that was handed out and given back has had its place.
func TestReturnedTaskKeepsItsPlace(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", tasks.TopicSettings{Spread: time.Hour})
		r.Must(tasks.Request{ID: "t1", Topic: "x"})
		rig.Pass(time.Hour)
		r.Admin().Return(r.Pull("x", "t1"))
		r.Ack(r.Pull("x", "t1")[0])
		r.CheckConsistency()
	})
}

// An attempt on record is the first one, though the process has ended in it: the next
// is not spread.
func TestCrashedAttemptIsNotSpreadAgain(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", tasks.TopicSettings{CountCrashes: true})
		r.Must(tasks.Request{ID: "t1", Topic: "x"})
		rig.Pass(time.Millisecond)
		r.Pull("x", "t1")
		r.MustSetTopic("x", tasks.TopicSettings{CountCrashes: true, Spread: time.Hour})
		r.Crash()
		synctest.Wait()
		if d := r.Pull("x", "t1")[0]; d.Attempt != 2 {
			t.Errorf("attempt %d", d.Attempt)
		}
	})
}

// What is written of a task in its window stands under its deadline, as before.
func TestRepairInsideTheWindow(t *testing.T) {
	spreading(t, time.Hour, func(t *testing.T, r *rig.Rig, _ *comings) {
		due := r.Must(tasks.Request{ID: "t1", Topic: "x"}).Due
		rig.Pass(time.Second)
		forget(r, "t1")
		rig.Pass(10 * time.Second)
		if spot, f := r.Held("t1"); spot.At != due.UnixMilli() || f.Next != f.Due || r.Stats().AuditRepaired != 1 {
			t.Errorf("written again at %+v, next %d", spot, f.Next)
		}
		r.CheckConsistency()
	})
}

// A topic gets a spread while tasks are ready: those are not taken back.
func TestSpreadOfReadyTasks(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.Must(tasks.Request{ID: "t1", Topic: "x"})
		rig.Pass(time.Millisecond)
		r.MustSetTopic("x", tasks.TopicSettings{Spread: time.Hour})
		rig.Pass(time.Second)
		r.Ack(r.Pull("x", "t1")[0])
	})
}
