package wheel

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestCloseRefusesAndForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := start(t, time.Now)
		timer := r.Add(nowMillis()+10, 1)
		r.Close()
		r.Close()
		if r.Add(nowMillis(), 2) != 0 || r.Cancel(timer) || r.Len() != 0 || r.Overdue(nowMillis(), func([]uint64) {}) != 0 {
			t.Error("a closed Runner still holds timers")
		}
		r.Nudge()
		pass(time.Second)
		f.want(t)
	})
}

// Real time and real threads here: the test is that nothing hangs and nothing is fired after Close,
// whichever goroutines meet.
func TestCloseAgainstEverything(t *testing.T) {
	for seed := range uint64(100) {
		var closed atomic.Bool
		var fired atomic.Int64
		fire := func(values []uint64) {
			if closed.Load() {
				t.Error("fired after Close")
			}
			fired.Add(int64(len(values)))
		}
		r, err := NewRunner(Config{Fire: fire})
		if err != nil {
			t.Fatal(err)
		}
		var callers sync.WaitGroup
		begun := make(chan struct{}, 4)
		for i := range uint64(4) {
			callers.Go(func() {
				rng := rand.New(rand.NewPCG(seed, i))
				for n := 0; ; n++ {
					timer := r.Add(nowMillis()+rng.Int64N(5)-1, i)
					if timer == 0 {
						return
					}
					switch rng.IntN(8) {
					case 0:
						r.Cancel(timer)
					case 1:
						r.Nudge()
					}
					if i == 0 && n%50 == 25 {
						r.Overdue(nowMillis(), fire)
					}
					if n == 50 {
						begun <- struct{}{}
					}
					runtime.Gosched() // or a single processor takes 10 ms to go round
				}
			})
		}
		for range 4 {
			<-begun
		}
		var closers sync.WaitGroup
		for range 3 {
			closers.Go(func() {
				r.Close()
				closed.Store(true)
			})
		}
		closers.Wait()
		callers.Wait()
	}
}

// Close waits for a Fire that is running, on whichever goroutine.
func TestCloseWaitsForFire(t *testing.T) {
	for _, how := range []string{"loop", "Overdue"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var c steppedClock
				var done atomic.Bool
				fire := func([]uint64) {
					pass(time.Minute)
					done.Store(true)
				}
				r, err := NewRunner(Config{Clock: c.now, Fire: fire})
				if err != nil {
					t.Fatal(err)
				}
				r.Add(c.millis()+1000, 1)
				if how == "loop" {
					pass(time.Second)
				} else {
					synctest.Wait()
					c.step(time.Second)
					go r.Overdue(c.millis(), fire)
					pass(idleNaps * nap)
				}
				synctest.Wait()
				r.Close()
				if !done.Load() {
					t.Error("Close returned while Fire was running")
				}
			})
		})
	}
}
