package tasks

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

func wasWoken(t *turn) bool {
	select {
	case <-t.ready:
		return true
	default:
		return false
	}
}

// Each task wakes one receiver, and one that was woken in vain is still in front of
// those that came after it.
func TestTurns(t *testing.T) {
	var r reservers
	var a, b, c turn
	for _, x := range []*turn{&a, &b, &c} {
		r.join(x)
	}
	check := func(what string, woken ...bool) {
		t.Helper()
		for i, x := range []*turn{&a, &b, &c} {
			if wasWoken(x) != woken[i] {
				t.Fatalf("%s: receiver %d is woken: %v", what, i, !woken[i])
			}
		}
	}
	r.wake(1)
	check("the first task", true, false, false)
	r.wake(1)
	check("the same one again", true, false, false)
	r.wake(2)
	check("a second task", true, true, false)
	r.leave(&b)
	r.leave(&a)
	r.join(&b)
	r.join(&a)
	r.wake(1)
	check("both were in vain", true, false, false)
	r.leave(&b) // has gone, unwoken
	r.wake(2)
	check("behind the one that has gone", true, false, true)
	r.leave(&a)
	r.leave(&c)
	if r.woken != 0 || r.queue.Len() != 0 {
		t.Errorf("%d woken, %d asleep in the end", r.woken, r.queue.Len())
	}
}

// However receivers come, give up and are too slow, none of them sleeps beside a ready
// task. The sweep, which would mend it, is far away.
func TestNobodySleepsBesideAReadyTask(t *testing.T) {
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
				r.engine.mu.Lock()
				x := r.engine.topics["x"]
				live, asleep, woken := x.queue.live, x.reservers.queue.Len(), x.reservers.woken
				r.engine.mu.Unlock()
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
		r.engine.mu.Lock()
		n, _ := r.engine.store.Find([]byte("t"))
		state := r.engine.store.Slot(n).State
		r.engine.mu.Unlock()
		if state != store.Claiming {
			t.Errorf("after it the task has state %d", state)
		}
		release()
		pass(time.Millisecond)
		r.checkConsistency()
	})
}
