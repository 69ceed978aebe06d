package wheel

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// steppedClock is the fake time plus what it was stepped by.
type steppedClock struct{ offset atomic.Int64 }

func (c *steppedClock) now() time.Time { return time.Now().Add(time.Duration(c.offset.Load())) }

func (c *steppedClock) millis() int64 { return c.now().UnixMilli() }

func (c *steppedClock) step(d time.Duration) { c.offset.Add(int64(d)) }

func TestNudgeAfterForwardStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c steppedClock
		r, f := start(t, c.now)
		r.Add(c.millis()+3_600_000, 1)
		r.Add(c.millis()+7_200_000, 2)
		synctest.Wait()
		c.step(time.Hour)
		f.want(t) // it was not nudged
		r.Nudge()
		f.want(t, 1)
		for range 100 {
			r.Nudge() // they do not pile up
		}
		pass(time.Hour)
		f.want(t, 2)
	})
}

// After a step of the clock the loop is behind through no fault of its own: it has its turn, and
// nothing is taken in its place.
func TestOverdueLeavesTheLoopItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c steppedClock
		r, f := start(t, c.now)
		for v := range uint64(3 * batchSize) {
			r.Add(c.millis()+1000, v)
		}
		synctest.Wait()
		c.step(time.Hour)
		r.Nudge()
		rescued := &firings{clock: c.now}
		if n := r.Overdue(c.millis(), rescued.fire); n != 0 || r.Stalled() {
			t.Errorf("Overdue = %d, stalled %v", n, r.Stalled())
		}
		if values, _ := f.got(); len(values) != 3*batchSize {
			t.Errorf("the loop has fired %d", len(values))
		}
		rescued.want(t)
	})
}

// A loop that does not move: all that is brought in its place is counted, however late it is.
func TestOverdueInPlaceOfTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c steppedClock
		r, f := start(t, c.now)
		r.Add(c.millis()+1000, 1)
		r.Add(c.millis()+3_600_000-150, 2)
		r.Add(c.millis()+3_600_000+50, 3)
		r.Add(c.millis()+3_600_000+5000, 4)
		synctest.Wait()
		rescued := &firings{clock: c.now}
		if n := r.Overdue(c.millis(), rescued.fire); n != 0 || r.Stalled() {
			t.Errorf("Overdue = %d with nothing due, stalled %v", n, r.Stalled())
		}
		before := c.millis()
		c.step(time.Hour) // nothing tells the loop, which sleeps
		if n := r.Overdue(before, rescued.fire); n != 0 || r.Stalled() {
			t.Errorf("Overdue = %d of a time before the step, stalled %v", n, r.Stalled())
		}
		if n := r.Overdue(c.millis(), rescued.fire); n != 3 || !r.Stalled() {
			t.Errorf("Overdue = %d, stalled %v", n, r.Stalled())
		}
		rescued.want(t, 1, 2, 3)
		pass(5 * time.Second)
		f.want(t, 4) // the queue has read the clock again
		if r.Stalled() {
			t.Error("it has moved, and still counts as stalled")
		}
	})
}

// What was past due when it was added counts as well, even if the wheel has had nothing to do for
// long.
func TestOverdueCountsWhatCameLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		block := make(chan struct{})
		r, err := NewRunner(Config{Fire: func([]uint64) { <-block }})
		if err != nil {
			t.Fatal(err)
		}
		r.Add(0, 0) // keeps the loop busy
		pass(time.Hour)
		r.Add(nowMillis()-30*60_000, 1)
		r.Add(nowMillis()-2*3_600_000, 2)
		rescued := &firings{clock: time.Now}
		if n := r.Overdue(nowMillis(), rescued.fire); n != 2 || r.Len() != 0 {
			t.Errorf("Overdue = %d, leaves %d; want 2, 0", n, r.Len())
		}
		rescued.want(t, 1, 2)
		r.Add(nowMillis()-1, 3)
		began := time.Now()
		if n := r.Overdue(nowMillis(), rescued.fire); n != 1 || time.Since(began) != 0 {
			t.Errorf("Overdue = %d after %v: a loop that is known to stall is not waited for", n, time.Since(began))
		}
		rescued.want(t, 3)
		close(block)
		r.Close()
		if n := r.Overdue(nowMillis(), rescued.fire); n != 0 {
			t.Errorf("Overdue = %d after Close", n)
		}
	})
}

// What the loop is working on is not overdue, however long that takes; it is when the loop hangs.
func TestOverdueBesideASlowLoop(t *testing.T) {
	for name, hangs := range map[string]bool{"slow": false, "hanging": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var fired atomic.Int64
				release := make(chan struct{})
				r, err := NewRunner(Config{Fire: func(values []uint64) {
					if fired.Add(int64(len(values))); hangs {
						<-release
						return
					}
					time.Sleep(500 * time.Millisecond)
				}})
				if err != nil {
					t.Fatal(err)
				}
				const n = 8 * batchSize
				timers := make([]Timer, n)
				for i := range timers {
					timers[i] = r.Add(nowMillis()+1000, 1)
				}
				time.Sleep(3 * time.Second)
				late := r.Overdue(nowMillis(), func(values []uint64) { fired.Add(int64(len(values))) })
				switch left := r.Len(); {
				case hangs && (late != n-batchSize || left != 0 || !r.IsLost(timers[0])):
					t.Errorf("it hangs: %d are late, %d left, lost: %v", late, left, r.IsLost(timers[0]))
				case !hangs && (late != 0 || left == 0 || r.IsLost(timers[0]) || r.IsLost(timers[n-1])):
					t.Errorf("it is slow: %d are late, %d left", late, left)
				}
				close(release)
				time.Sleep(8 * 500 * time.Millisecond)
				r.Close()
				if fired.Load() != n {
					t.Errorf("%d fired", fired.Load())
				}
			})
		})
	}
}

func TestClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c steppedClock
		r, f := start(t, c.now)
		r.Add(c.millis(), 0)
		f.want(t, 0) // the wheel has reached the present
		r.Add(c.millis()+100, 1)
		c.step(-time.Hour)
		base := c.millis()
		pass(100 * time.Millisecond)
		f.want(t) // 1 is due in an hour now
		r.Add(base+200, 2)
		r.Add(base+30*60_000, 3)
		pass(100 * time.Millisecond)
		f.want(t, 2)
		pass(30*time.Minute - 200*time.Millisecond)
		f.want(t, 3)
		pass(30 * time.Minute)
		f.want(t)
		pass(100 * time.Millisecond)
		f.want(t, 1)
	})
}

// However the clock is stepped, nothing is early by it, and after a Nudge
// nothing that is due waits.
func TestRandomSteps(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			var c steppedClock
			r, f := start(t, c.now)
			dues := make(map[uint64]int64)
			span := func() int64 { return rng.Int64N(1 << (1 + rng.IntN(24))) }
			for v := range uint64(300) {
				switch rng.IntN(10) {
				case 0:
					c.step(time.Duration(span()) * time.Millisecond)
				case 1:
					c.step(-time.Duration(span()) * time.Millisecond)
				case 2, 3, 4:
					pass(time.Duration(span()) * 100 * time.Microsecond)
				case 5:
					r.Overdue(c.millis(), f.fire)
				}
				due := c.millis() + span() - 100
				dues[v] = due
				if timer := r.Add(due, v); rng.IntN(4) == 0 && r.Cancel(timer) {
					delete(dues, v)
				}
				if rng.IntN(4) == 0 {
					r.Nudge()
				}
				values, at := f.got()
				for i, v := range values {
					due, ok := dues[v]
					if !ok || at[i] < due {
						t.Fatalf("seed %d: %d, due %d, fired at %d; armed: %v", seed, v, due, at[i], ok)
					}
					delete(dues, v)
				}
			}
			for ; len(dues) > 0; pass(time.Hour) {
				r.Nudge()
				values, _ := f.got()
				for _, v := range values {
					delete(dues, v)
				}
				for v, due := range dues {
					if due <= c.millis() {
						t.Fatalf("seed %d: %d was due at %d, and waits at %d", seed, v, due, c.millis())
					}
				}
			}
		})
	}
}

// Without forward steps no Nudge is needed, however far the clock is set back: the queue always has
// an element for the earliest bucket.
func TestRandomStepsBackNeedNoNudge(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 2))
			var c steppedClock
			r, f := start(t, c.now)
			pending := make(map[uint64]int64)
			span := func() int64 { return rng.Int64N(1 << (1 + rng.IntN(20))) }
			check := func() {
				values, at := f.got()
				for i, v := range values {
					if at[i] < pending[v] {
						t.Fatalf("seed %d: %d, due %d, fired at %d", seed, v, pending[v], at[i])
					}
					delete(pending, v)
				}
				for v, due := range pending {
					if due <= c.millis() {
						t.Fatalf("seed %d: %d was due at %d, and waits at %d", seed, v, due, c.millis())
					}
				}
			}
			for v := range uint64(300) {
				if rng.IntN(5) == 0 {
					c.step(-time.Duration(span()) * time.Millisecond)
				}
				if rng.IntN(2) == 0 {
					pass(time.Duration(span()) * time.Millisecond)
				}
				check()
				pending[v] = c.millis() + span() - 50
				timer := r.Add(pending[v], v)
				if rng.IntN(4) == 0 && r.Cancel(timer) {
					delete(pending, v)
				}
				check()
			}
		})
	}
}
