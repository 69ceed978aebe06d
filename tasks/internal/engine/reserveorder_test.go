package engine_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// However receivers come, give up and are too slow, none of them sleeps beside a ready
// task. The sweep, which would mend it, is far away.
func TestReadyTaskWakesAReceiver(t *testing.T) {
	for _, counted := range []bool{false, true} {
		rig.Bubble(t, Config{SweepEvery: time.Minute}, func(t *testing.T, r *rig.Rig) {
			seed := rand.Uint64()
			rng := rand.New(rand.NewPCG(seed, 0))
			r.MustSetTopic("x", TopicSettings{CountCrashes: counted, Lease: time.Hour})
			for step := range 2000 {
				for range rng.IntN(4) {
					limit, wait := 1+rng.IntN(2), time.Duration(rng.IntN(30))*time.Millisecond
					ctx, leave := context.WithTimeout(t.Context(), time.Duration(rng.IntN(30))*time.Millisecond)
					go func() {
						defer leave()
						ds, err := r.Reserve(ctx, "x", limit, wait, 0)
						if err != nil {
							t.Error(err)
						}
						if limit == 2 {
							r.Admin().Return(ds)
						}
					}()
				}
				for range rng.IntN(2) {
					delay := time.Duration(rng.IntN(20)) * time.Millisecond
					go func() {
						if _, err := r.Schedule(t.Context(), Request{Topic: "x", Delay: delay}); err != nil {
							t.Error(err)
						}
					}()
				}
				rig.Pass(time.Duration(rng.IntN(5)) * time.Millisecond)
				rig.Mutex(r.Engine()).Lock()
				x := r.Engine().TopicTable.ByName["x"]
				live, asleep, woken := x.Queue.Live, x.Reservers.Queue.Len(), x.Reservers.Woken
				rig.Mutex(r.Engine()).Unlock()
				if live > 0 && asleep > 0 || woken != 0 {
					t.Fatalf("seed %d, step %d: %d ready, %d asleep, %d woken", seed, step, live, asleep, woken)
				}
			}
			rig.Pass(time.Second)
			if n := r.Counts("x").Delivering; n == 0 {
				t.Error("nothing was handed out")
			}
			r.CheckConsistency()
		})
	}
}

// When a topic is resumed, one receiver wakes the next, for as long as there are tasks.
func TestResumedTopicWakesAll(t *testing.T) {
	rig.Bubble(t, Config{SweepEvery: time.Minute}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Paused: true})
		for range 3 {
			r.Must(Request{Topic: "x"})
			go func() { _, _ = r.Reserve(t.Context(), "x", 1, time.Minute, time.Hour) }()
		}
		rig.Pass(time.Second)
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "x", false), nil)
		rig.Pass(time.Millisecond)
		if n := r.Counts("x").Delivering; n != 3 {
			t.Errorf("%d of 3 handed out", n)
		}
	})
}

// What became ready while a receiver waited for the ledger in vain is its next try.
func TestReadyDuringAClaimInVain(t *testing.T) {
	rig.Bubble(t, Config{SweepEvery: time.Minute}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{CountCrashes: true})
		r.Must(Request{ID: "before", Topic: "x"})
		r.Must(Request{ID: "t", Topic: "x", Delay: time.Second})
		_, release := r.Faulty.Hold(ledgertest.Apply)
		go func() { _, _ = r.Reserve(t.Context(), "x", 1, time.Minute, time.Hour) }()
		rig.Pass(1900 * time.Millisecond)
		if task := r.MustGet("t"); task.State != Ready {
			t.Fatalf("beside the claim the task is %v", task.State)
		}
		rig.Pass(200 * time.Millisecond)
		rig.Mutex(r.Engine()).Lock()
		n, _ := r.Engine().Store.Find([]byte("t"))
		state := r.Engine().Store.Slot(n).State
		rig.Mutex(r.Engine()).Unlock()
		if state != store.Claiming {
			t.Errorf("after it the task has state %d", state)
		}
		release()
		rig.Pass(time.Millisecond)
		r.CheckConsistency()
	})
}
