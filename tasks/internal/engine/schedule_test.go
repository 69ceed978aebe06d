package engine_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// The same request again is recognised, whenever it comes; any other content is not
// the same.
func TestScheduleAgain(t *testing.T) {
	base := tasks.Request{ID: "t", Topic: "x", Delay: time.Hour, Payload: []byte("p"), Headers: map[string]string{"a": "1", "b": "2"}, Group: "g", MaxLateness: 24 * time.Hour}
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		first := r.Must(base)
		same := func(what string) {
			t.Helper()
			again := r.Must(base)
			if !again.Repeated || !again.Due.Equal(first.Due) || again.Revision != 1 {
				t.Errorf("%s: %+v", what, again)
			}
		}
		same("at once")
		rig.Pass(10 * time.Minute)
		same("later: a delay counts as it was given")
		r.Crash()
		same("after a crash")
		rig.Pass(time.Hour)
		same("once it is ready")
		d := r.Pull("x", "t")[0]
		same("while it is delivered")
		r.SettleOne(tasks.Verdict{Verb: tasks.Release, Delay: rig.Ptr(time.Hour)}, d)
		same("between two attempts")
		for what, change := range map[string]func(r *tasks.Request){
			"topic":        func(r *tasks.Request) { r.Topic = "y" },
			"delay":        func(r *tasks.Request) { r.Delay++ },
			"due":          func(r *tasks.Request) { r.Delay, r.Due = 0, first.Due },
			"payload":      func(r *tasks.Request) { r.Payload = []byte("q") },
			"headers":      func(r *tasks.Request) { r.Headers = map[string]string{"a": "12", "b": ""} },
			"group":        func(r *tasks.Request) { r.Group = "" },
			"max_lateness": func(r *tasks.Request) { r.MaxLateness = 0 },
		} {
			other := base
			change(&other)
			_, err := r.Schedule(t.Context(), other)
			rig.Want(t, "another "+what, err, tasks.ErrExists)
		}
		r.Ack(pullAfter(r, time.Hour, "x", "t"))
		if again := r.Must(base); again.Repeated {
			t.Error("a finished task is repeated")
		}
	})
}

func pullAfter(r *rig.Rig, d time.Duration, topic, id string) tasks.Delivery {
	r.T.Helper()
	rig.Pass(d)
	return r.Pull(topic, id)[0]
}

// A creation whose caller was told that the outcome is unknown is undone, unless the
// same request has been made again by then.
func TestScheduleWithoutAnAnswer(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprint(again), func(t *testing.T) {
			rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
				_, release := r.Faulty.Hold(ledgertest.Apply)
				_, err := r.Schedule(t.Context(), tasks.Request{ID: "t", Topic: "x", Delay: time.Hour})
				rig.Want(t, "Schedule", err, tasks.ErrUnknown)
				answer := make(chan error, 1)
				if again {
					go func() {
						_, err := r.Schedule(t.Context(), tasks.Request{ID: "t", Topic: "x", Delay: time.Hour})
						answer <- err
					}()
					synctest.Wait()
				}
				release()
				rig.Pass(0)
				if !again {
					wantEnd(r, recovery.Nowhere, 0)
					return
				}
				rig.Want(t, "Schedule again", <-answer, nil)
				wantEnd(r, recovery.Pending, tasks.Pending)
			})
		})
	}
}

// A caller that goes away behaves like one that has waited too long.
func TestScheduleGivenUp(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		_, release := r.Faulty.Hold(ledgertest.Apply)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := r.Schedule(ctx, tasks.Request{ID: "t", Topic: "x"})
		rig.Want(t, "Schedule", err, tasks.ErrUnknown)
		rig.Want(t, "Schedule", err, context.DeadlineExceeded)
		_, err = r.Schedule(ctx, tasks.Request{ID: "t2", Topic: "x"})
		rig.Want(t, "Schedule", err, tasks.ErrUnavailable)
		release()
		rig.Pass(time.Second)
		if pendings, _ := r.Dump(); len(pendings) != 0 {
			t.Errorf("left: %v", pendings)
		}
		r.CheckConsistency()
	})
}

// In a batch, each request has its own answer, during an outage too.
func TestBatchDuringOutage(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.Must(tasks.Request{ID: "there", Topic: "x", Delay: time.Hour})
		_, release := r.Faulty.Hold(ledgertest.Apply)
		results, err := r.ScheduleBatch(t.Context(), []tasks.Request{
			{ID: "there", Topic: "x", Delay: time.Hour}, {ID: "there2", Topic: ""}, {ID: "new", Topic: "x"}, {Topic: "x"},
		})
		rig.Want(t, "ScheduleBatch", err, nil)
		for i, kind := range []error{nil, tasks.ErrInvalid, tasks.ErrUnknown, tasks.ErrUnknown} {
			rig.Want(t, results[i].ID, results[i].Err, kind)
		}
		release()
		rig.Pass(time.Second)
		if pendings, _ := r.Dump(); len(pendings) != 1 {
			t.Errorf("%d in the ledger", len(pendings))
		}
		r.CheckConsistency()
	})
}

// A batch is answered as a whole although it takes several writes.
func TestLargeBatch(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		requests := make([]tasks.Request, tasks.MaxBatch)
		for i := range requests {
			requests[i] = tasks.Request{Topic: "x", Delay: time.Hour}
		}
		results, err := r.ScheduleBatch(t.Context(), requests)
		rig.Want(t, "ScheduleBatch", err, nil)
		ids := make(map[string]bool)
		for _, res := range results {
			rig.Want(t, res.ID, res.Err, nil)
			ids[res.ID] = true
		}
		if pendings, _ := r.Dump(); len(pendings) != tasks.MaxBatch || len(ids) != tasks.MaxBatch {
			t.Errorf("%d in the ledger, %d ids", len(pendings), len(ids))
		}
		r.CheckConsistency()
	})
}

// A ledger that says beforehand that it is full takes no new tasks, and still records
// what becomes of the others.
func TestLedgerIsFull(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		d := r.One("t", "x")
		r.Must(tasks.Request{ID: "moved", Topic: "x", Delay: time.Hour})
		r.Faulty.SetCondition(recovery.ErrFull)
		rig.Pass(time.Second) // the ledger is asked once a second
		_, err := r.Schedule(t.Context(), tasks.Request{Topic: "x"})
		rig.Want(t, "Schedule", err, tasks.ErrUnavailable)
		rig.Want(t, "Schedule", err, recovery.ErrFull)
		r.Ack(d)
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "moved"), nil)
		if rd := r.Readiness(); rd.LedgerOK || rd.Condition == "" {
			t.Errorf("readiness %+v", rd)
		}
		r.Faulty.SetCondition(nil)
		rig.Pass(time.Second)
		r.Must(tasks.Request{Topic: "x"})
	})
}

// What is put in the place of a task that has failed has all of its attempts, and the first
// one is that of its own receipt, not of an earlier one.
func TestReplaceCountsAttemptsAnew(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		before := r.One("t", "x")
		rig.Want(t, "release", r.SettleOne(tasks.Verdict{Verb: tasks.Release, Delay: rig.Ptr(time.Hour)}, before).Err, nil)
		if _, err := r.Replace(t.Context(), tasks.Request{ID: "t", Topic: "x"}); err != nil {
			t.Fatal(err)
		}
		d := r.Pull("x", "t")[0]
		if d.Attempt != 1 || d.LastError != "" {
			t.Errorf("attempt %d, after %q", d.Attempt, d.LastError)
		}
		rig.Want(t, "ack by the earlier receipt", r.SettleOne(tasks.Verdict{Verb: tasks.Ack}, before).Err, tasks.ErrStale)
		r.Ack(d)
	})
}

func TestReplaceKeepsAndChanges(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		first, err := r.Replace(t.Context(), tasks.Request{ID: "t", Topic: "x", Delay: time.Hour, Payload: []byte("1")})
		if err != nil || first.Repeated || first.Revision != 1 {
			t.Fatalf("creates %+v, %v", first, err)
		}
		rig.Pass(time.Minute)
		second, err := r.Replace(t.Context(), tasks.Request{ID: "t", Topic: "y", Delay: time.Hour, Payload: []byte("2")})
		if err != nil || !second.Repeated || second.Revision != 2 || second.Topic != "y" || !second.Created.Equal(first.Created) || second.Due.Sub(first.Due) != time.Minute {
			t.Fatalf("replaces %+v, %v", second, err)
		}
		if got := r.MustGet("t"); string(got.Payload) != "2" || got.Topic != "y" {
			t.Errorf("afterwards %+v", got)
		}
		made, err := r.Replace(t.Context(), tasks.Request{Topic: "x"})
		if err != nil || made.ID == "" || made.Repeated {
			t.Errorf("without an id: %+v, %v", made, err)
		}
		r.CheckConsistency()
	})
}

func TestRescheduleKeepsWhatIsNotGiven(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		first := r.Must(tasks.Request{ID: "t", Topic: "x", Delay: time.Hour, Payload: []byte("1"), Group: "g"})
		task, err := r.Reschedule(t.Context(), "t", tasks.Move{Payload: []byte("2")})
		if err != nil || !task.Due.Equal(first.Due) || string(task.Payload) != "2" || task.Group != "g" {
			t.Errorf("%+v, %v", task, err)
		}
		due := first.Due.Add(90*time.Minute + time.Nanosecond)
		task, err = r.Reschedule(t.Context(), "t", tasks.Move{Due: due})
		if err != nil || task.Due.Before(due) || task.Due.Sub(due) > time.Millisecond || string(task.Payload) != "2" || task.Revision != 3 {
			t.Errorf("%+v, %v", task, err)
		}
		_, err = r.Reschedule(t.Context(), "none", tasks.Move{Delay: rig.Ptr(time.Hour)})
		rig.Want(t, "Reschedule", err, tasks.ErrNotFound)
		_, err = r.Fire(t.Context(), "none")
		rig.Want(t, "Fire", err, tasks.ErrNotFound)
		task, err = r.Fire(t.Context(), "t")
		if err != nil || task.Due.After(r.Clock.Now()) {
			t.Errorf("fired %+v, %v", task, err)
		}
		r.Pull("x", "t")
		_, err = r.Fire(t.Context(), "t")
		rig.Want(t, "Fire", err, tasks.ErrDelivering)
	})
}
