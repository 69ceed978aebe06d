package tasks_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// However receivers come, give up and are too slow, none of them sleeps beside a ready
// task. The sweep, which would mend it, is far away.
func TestReadyTaskWakesAReceiver(t *testing.T) {
	for _, counted := range []bool{false, true} {
		bubble(t, Config{SweepEvery: time.Minute}, func(t *testing.T, r *rig) {
			seed := rand.Uint64()
			rng := rand.New(rand.NewPCG(seed, 0))
			r.topic("x", TopicSettings{CountCrashes: counted, Lease: time.Hour})
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
							r.Return(ds)
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
				pass(time.Duration(rng.IntN(5)) * time.Millisecond)
				Mutex(r.Engine()).Lock()
				x := r.Engine().TopicTable.ByName["x"]
				live, asleep, woken := x.Queue.Live, x.Reservers.Queue.Len(), x.Reservers.Woken
				Mutex(r.Engine()).Unlock()
				if live > 0 && asleep > 0 || woken != 0 {
					t.Fatalf("seed %d, step %d: %d ready, %d asleep, %d woken", seed, step, live, asleep, woken)
				}
			}
			pass(time.Second)
			if n := r.counts("x").Delivering; n == 0 {
				t.Error("nothing was handed out")
			}
			r.checkConsistency()
		})
	}
}

// When a topic is resumed, one receiver wakes the next, for as long as there are tasks.
func TestResumedTopicWakesAll(t *testing.T) {
	bubble(t, Config{SweepEvery: time.Minute}, func(t *testing.T, r *rig) {
		r.topic("x", TopicSettings{Paused: true})
		for range 3 {
			r.must(Request{Topic: "x"})
			go func() { _, _ = r.Reserve(t.Context(), "x", 1, time.Minute, time.Hour) }()
		}
		pass(time.Second)
		want(t, "PauseTopic", r.PauseTopic(t.Context(), "x", false), nil)
		pass(time.Millisecond)
		if n := r.counts("x").Delivering; n != 3 {
			t.Errorf("%d of 3 handed out", n)
		}
	})
}

// What became ready while a receiver waited for the ledger in vain is its next try.
func TestReadyDuringAClaimInVain(t *testing.T) {
	bubble(t, Config{SweepEvery: time.Minute}, func(t *testing.T, r *rig) {
		r.topic("x", TopicSettings{CountCrashes: true})
		r.must(Request{ID: "before", Topic: "x"})
		r.must(Request{ID: "t", Topic: "x", Delay: time.Second})
		_, release := r.faulty.Hold(ledgertest.Apply)
		go func() { _, _ = r.Reserve(t.Context(), "x", 1, time.Minute, time.Hour) }()
		pass(1900 * time.Millisecond)
		if task := r.get("t"); task.State != Ready {
			t.Fatalf("beside the claim the task is %v", task.State)
		}
		pass(200 * time.Millisecond)
		Mutex(r.Engine()).Lock()
		n, _ := r.Engine().Store.Find([]byte("t"))
		state := r.Engine().Store.Slot(n).State
		Mutex(r.Engine()).Unlock()
		if state != store.Claiming {
			t.Errorf("after it the task has state %d", state)
		}
		release()
		pass(time.Millisecond)
		r.checkConsistency()
	})
}
