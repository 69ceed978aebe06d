package tasks_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks"
)

// Fire delivers at once: before the deadline, and in the window, also after a change of
// the payload.
func TestFireIsNotSpread(t *testing.T) {
	spreading(t, time.Hour, func(t *testing.T, r *rig, got *comings) {
		at := func(id string, n int) {
			t.Helper()
			pass(2 * time.Millisecond)
			if all := got.list(); len(all) != n || all[n-1].ID != id {
				t.Fatalf("%d delivered after %s was fired; want %d", len(all), id, n)
			}
		}
		for _, id := range []string{"t1", "t2", "t3", "t4"} {
			r.must(tasks.Request{ID: id, Topic: "x", Delay: time.Minute})
		}
		_, err := r.Fire(t.Context(), "t1")
		want(t, "Fire", err, nil)
		at("t1", 1)
		pass(2 * time.Minute)
		_, err = r.Fire(t.Context(), "t2")
		want(t, "Fire", err, nil)
		at("t2", 2)

		want(t, "PauseTopic", r.PauseTopic(t.Context(), "x", true), nil)
		_, err = r.Fire(t.Context(), "t3")
		want(t, "Fire", err, nil)
		_, err = r.Reschedule(t.Context(), "t3", tasks.Move{Payload: []byte(`1`)})
		want(t, "Reschedule", err, nil)
		pass(time.Second)
		want(t, "PauseTopic", r.PauseTopic(t.Context(), "x", false), nil)
		at("t3", 3)
		want(t, "PauseTopic", r.PauseTopic(t.Context(), "x", true), nil)
		_, err = r.Fire(t.Context(), "t4")
		want(t, "Fire", err, nil)
		task, err := r.Reschedule(t.Context(), "t4", tasks.Move{Delay: ptr(time.Duration(0))})
		want(t, "Reschedule", err, nil)
		pass(time.Millisecond)
		if in := r.get("t4"); !in.Next.Equal(place("t4", task.Due, time.Hour)) {
			t.Errorf("with a new deadline: %+v", in)
		}
		r.must(tasks.Request{ID: "t5", Topic: "x", Delay: time.Minute})
		_, err = r.Fire(t.Context(), "t5")
		want(t, "Fire", err, nil)
		_, err = r.Reschedule(t.Context(), "t5", tasks.Move{Payload: []byte(`1`)})
		want(t, "Reschedule", err, nil)
		if in := r.get("t5"); in.State != tasks.Ready {
			t.Errorf("fired, and with another payload: %+v", in)
		}
		if l := r.counts("x").Lateness; l.Sum < time.Second || l.Sum > 1100*time.Millisecond {
			t.Errorf("lateness %+v; want the second that t3 has waited", l)
		}
		r.checkConsistency()
	})
}

// A new deadline opens a new window; another payload leaves the place; a requeued task
// is a fresh one; a retry is not spread.
func TestMovesInsideTheWindow(t *testing.T) {
	const window = time.Hour
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		r.topic("x", tasks.TopicSettings{Spread: window, Retry: tasks.Retry{MaxAttempts: 2, MinBackoff: time.Second, MaxBackoff: time.Second}})
		got := &comings{r: r}
		r.handle("x", func(ctx context.Context, d *tasks.Delivery) error {
			_ = got.handler(ctx, d)
			return errors.New("no luck")
		})
		const id = "t1"
		stands := func(due time.Time) {
			t.Helper()
			pass(time.Millisecond)
			if task := r.get(id); !task.Due.Equal(due) || !task.Next.Equal(place(id, due, window)) {
				t.Fatalf("%+v; want it due %v", task, due)
			}
		}
		due := r.must(tasks.Request{ID: id, Topic: "x"}).Due
		stands(due)
		_, err := r.Reschedule(t.Context(), id, tasks.Move{Payload: []byte(`1`)})
		want(t, "Reschedule", err, nil)
		stands(due)
		if f := r.inLedger(id, recovery.Pending); f.Next != f.Due {
			t.Errorf("the ledger has next %d, due %d", f.Next, f.Due)
		}
		pass(time.Minute)
		task, err := r.Reschedule(t.Context(), id, tasks.Move{Delay: ptr(time.Duration(0))})
		want(t, "Reschedule", err, nil)
		stands(task.Due)
		pass(time.Minute)
		task, err = r.Replace(t.Context(), tasks.Request{ID: id, Topic: "x"})
		want(t, "Replace", err, nil)
		stands(task.Due)

		for round := range 2 {
			pass(window + time.Second)
			all := got.list()[2*round:]
			if len(all) != 2 || all[1].Attempt != 2 || all[1].at.Sub(all[0].at) > 1100*time.Millisecond {
				t.Fatalf("attempts %+v", all)
			}
			r.inLedger(id, recovery.Dead)
			if round == 0 {
				n, err := requeued(r.Requeue(t.Context(), "x", tasks.Requeue{}))
				if want(t, "Requeue", err, nil); n != 1 {
					t.Fatal("not requeued")
				}
				stands(r.get(id).Due)
			}
		}
		r.checkConsistency()
	})
}

// Lateness, and max_lateness with it, counts from the place.
func TestLatenessFromThePlace(t *testing.T) {
	const window, slow = time.Hour, 5 * time.Second
	for _, counted := range []bool{false, true} {
		o := &starts{}
		bubble(t, tasks.Config{Observer: o}, func(t *testing.T, r *rig) {
			set := tasks.TopicSettings{Spread: window, CountCrashes: counted, Retry: tasks.Retry{MinBackoff: time.Second, MaxBackoff: time.Second}}
			r.topic("x", set)
			due := r.must(tasks.Request{ID: "t1", Topic: "x", MaxLateness: 10 * time.Second}).Due
			r.must(tasks.Request{ID: "late", Topic: "x", Due: due, MaxLateness: time.Second})
			for _, id := range []string{"late", "t1"} {
				if place(id, due, window).Sub(due) < time.Minute {
					t.Fatalf("%s has an early place", id)
				}
			}
			pass(time.Until(place("t1", due, window)) + slow)
			d := r.pull("x", "t1")[0]
			if l := r.counts("x").Lateness; l.Sum < slow || l.Sum > slow+2*time.Millisecond {
				t.Errorf("counts crashes %v: lateness %v", counted, l.Sum)
			}
			if l := o.list(); len(l) != 1 || l[0] < slow || l[0] > slow+2*time.Millisecond {
				t.Errorf("counts crashes %v: the observer was told %v", counted, l)
			}
			r.settle(tasks.Verdict{Verb: tasks.Release}, d)
			pass(2 * time.Second) // its second attempt is 7 s after its place
			d = r.pull("x", "t1")[0]
			r.settle(tasks.Verdict{Verb: tasks.Release}, d)
			pass(10 * time.Second)
			r.pull("x")
			pass(window)
			r.pull("x")
			if c := r.counts("x"); c.Skipped != 2 {
				t.Errorf("%d skipped: both are too late", c.Skipped)
			}
			r.checkConsistency()
		})
	}
}

// starts keeps the lateness of first attempts.
type starts struct{ collection[time.Duration] }

func (s *starts) Observe(e tasks.Event) {
	if e.Kind == tasks.EventStarted && e.Attempt == 1 {
		s.add(e.Lateness)
	}
}

// A task that was handed out and given back has had its place.
func TestReturnedTaskKeepsItsPlace(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		r.topic("x", tasks.TopicSettings{Spread: time.Hour})
		r.must(tasks.Request{ID: "t1", Topic: "x"})
		pass(time.Hour)
		r.Return(r.pull("x", "t1"))
		r.ack(r.pull("x", "t1")[0])
		r.checkConsistency()
	})
}

// An attempt on record is the first one, though the process has ended in it: the next
// is not spread.
func TestCrashedAttemptIsNotSpreadAgain(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		r.topic("x", tasks.TopicSettings{CountCrashes: true})
		r.must(tasks.Request{ID: "t1", Topic: "x"})
		pass(time.Millisecond)
		r.pull("x", "t1")
		r.topic("x", tasks.TopicSettings{CountCrashes: true, Spread: time.Hour})
		r.crash()
		synctest.Wait()
		if d := r.pull("x", "t1")[0]; d.Attempt != 2 {
			t.Errorf("attempt %d", d.Attempt)
		}
	})
}

// What is written of a task in its window stands under its deadline, as before.
func TestRepairInsideTheWindow(t *testing.T) {
	spreading(t, time.Hour, func(t *testing.T, r *rig, _ *comings) {
		due := r.must(tasks.Request{ID: "t1", Topic: "x"}).Due
		pass(time.Second)
		r.forget("t1")
		pass(10 * time.Second)
		if spot, f := r.held("t1"); spot.At != due.UnixMilli() || f.Next != f.Due || r.Stats().AuditRepaired != 1 {
			t.Errorf("written again at %+v, next %d", spot, f.Next)
		}
		r.checkConsistency()
	})
}

// A topic gets a spread while tasks are ready: those are not taken back.
func TestSpreadOfReadyTasks(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		r.must(tasks.Request{ID: "t1", Topic: "x"})
		pass(time.Millisecond)
		r.topic("x", tasks.TopicSettings{Spread: time.Hour})
		pass(time.Second)
		r.ack(r.pull("x", "t1")[0])
	})
}
