package wheel

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// firings collects what a Runner fires, and when by the clock handed in.
type firings struct {
	clock func() time.Time

	mu     sync.Mutex
	values []uint64
	at     []int64
}

func (f *firings) fire(values []uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.clock().UnixMilli()
	for _, v := range values {
		f.values = append(f.values, v)
		f.at = append(f.at, now)
	}
}

// got waits until nothing moves, and returns what was fired since the last call.
func (f *firings) got() (values []uint64, at []int64) {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	values, at = f.values, f.at
	f.values, f.at = nil, nil
	return values, at
}

// want fails the test unless exactly these were fired, at the present.
func (f *firings) want(t *testing.T, want ...uint64) {
	t.Helper()
	values, at := f.got()
	if !slices.Equal(values, want) {
		t.Fatalf("fired %v at %v; want %v", values, at, want)
	}
}

// start starts a Runner that collects into f; it is closed with the test.
func start(t *testing.T, clock func() time.Time) (*Runner, *firings) {
	t.Helper()
	f := &firings{clock: clock}
	r, err := NewRunner(Config{Clock: clock, Fire: f.fire})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r, f
}

// pass lets fake time pass.
func pass(d time.Duration) { <-time.After(d) }

func nowMillis() int64 { return time.Now().UnixMilli() }

func TestFiresOnTimeAndNeverEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pass(300 * time.Microsecond) // not at the start of a millisecond
		r, f := start(t, time.Now)
		base := nowMillis()
		delays := []int64{1, 2, 3, 255, 256, 257, 1000, 65_535, 65_536, 65_537, 1_800_000, 86_400_000, 40 * 86_400_000}
		for i, d := range delays {
			r.Add(base+d, uint64(i))
		}
		pass(41 * 24 * time.Hour)
		values, at := f.got()
		if len(values) != len(delays) {
			t.Fatalf("%d fired, want %d", len(values), len(delays))
		}
		for i, v := range values {
			// A wait is computed in whole milliseconds from within one, so it
			// may end in the middle of the due one; that is all.
			if late := at[i] - base - delays[v]; late != 0 {
				t.Errorf("due after %d ms: fired %d ms late", delays[v], late)
			}
		}
		if n := r.Len(); n != 0 {
			t.Errorf("Len() = %d in the end", n)
		}
	})
}

func TestPastDueFiresAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := start(t, time.Now)
		// Time stands still, so that all this is one millisecond.
		for v := range uint64(3) {
			r.Add(nowMillis(), v)
			f.want(t, v)
			r.Add(nowMillis()-5000, v+10)
			f.want(t, v+10)
		}
		pass(time.Hour) // the wheel had nothing to do, and is behind
		r.Add(nowMillis()-1000, 20)
		f.want(t, 20)
		r.Add(nowMillis()+1, 21)
		f.want(t)
		pass(time.Millisecond)
		f.want(t, 21)
	})
}

func TestCancelledIsNotFired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := start(t, time.Now)
		due := nowMillis() + 10
		a, _ := r.Add(due, 1), r.Add(due, 2)
		if !r.Cancel(a) || r.Cancel(a) || r.Cancel(0) {
			t.Error("Cancel is true once, for a timer that waits")
		}
		pass(10 * time.Millisecond)
		f.want(t, 2)

		// A bucket that was emptied and is used again still has its element.
		due = nowMillis() + 10
		r.Cancel(r.Add(due, 3))
		r.Add(due, 4)
		pass(10 * time.Millisecond)
		f.want(t, 4)
	})
}

func TestAddToAClosedRunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := start(t, time.Now)
		r.Close()
		if r.Add(nowMillis(), 1) != 0 {
			t.Error("it made a timer")
		}
	})
}

func TestCoarseTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &firings{clock: time.Now}
		r, err := NewRunner(Config{Tick: 50 * time.Millisecond, Fire: f.fire})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		base := nowMillis() // a multiple of 50
		for d := range int64(101) {
			r.Add(base+d, uint64(d))
		}
		pass(time.Second)
		values, at := f.got()
		for i, v := range values {
			if want := ceilTo(50, base+int64(v)); at[i] != want {
				t.Errorf("due after %d ms: fired after %d", v, at[i]-base)
			}
		}
		if len(values) != 101 {
			t.Errorf("fired %d of 101", len(values))
		}
	})
}

// An element far ahead waits in stages, as the delay queue cannot wait longer
// than the nanoseconds of an int64.
func TestVeryFarDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := start(t, time.Now)
		timer := r.Add(1<<62, 1)
		r.Add(1<<63-1, 2)
		r.Add(nowMillis()+100*365*24*3_600_000, 3)
		for range 99 {
			pass(365 * 24 * time.Hour)
		}
		f.want(t)
		pass(365 * 24 * time.Hour)
		f.want(t, 3)
		if !r.Cancel(timer) || r.Len() != 1 {
			t.Error("what is due in millions of years does not wait")
		}
	})
}

// While Fire is busy with a batch, the rest of a burst can be cancelled.
func TestCancelDuringBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		block := make(chan struct{})
		fired := make(map[uint64]bool)
		r, err := NewRunner(Config{Fire: func(values []uint64) {
			for _, v := range values {
				fired[v] = true
			}
			<-block
		}})
		if err != nil {
			t.Fatal(err)
		}
		due := nowMillis() + 5
		timers := make([]Timer, 3*batchSize)
		for i := range timers {
			timers[i] = r.Add(due, uint64(i))
		}
		pass(5 * time.Millisecond)
		synctest.Wait()
		cancelled := 0
		for i, timer := range timers {
			ok := r.Cancel(timer)
			if ok == fired[uint64(i)] {
				t.Fatalf("Cancel(%d) = %v, fired %v", i, ok, fired[uint64(i)])
			}
			if ok {
				cancelled++
			}
		}
		if cancelled < batchSize {
			t.Errorf("only %d could be cancelled", cancelled)
		}
		close(block)
		synctest.Wait()
		if len(fired)+cancelled != len(timers) {
			t.Errorf("%d fired and %d cancelled of %d", len(fired), cancelled, len(timers))
		}
		r.Close()
	})
}

func TestConfigFaults(t *testing.T) {
	_, err := NewRunner(Config{Tick: 1500 * time.Microsecond})
	if err == nil || !strings.Contains(err.Error(), "tick") || !strings.Contains(err.Error(), "Fire") {
		t.Errorf("NewRunner: %v; want both faults named", err)
	}
	if _, err := NewRunner(Config{Tick: -time.Second, Fire: func([]uint64) {}}); err == nil {
		t.Error("a negative tick is accepted")
	}
}

// A pulse comes from a Runner that rests, from one that fires, and from one that is closed. It does
// not come while Fire hangs.
func TestPulse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		firing := make(chan struct{})
		r, err := NewRunner(Config{Fire: func([]uint64) { close(firing); <-hang }})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		beats := func(c <-chan struct{}) bool {
			synctest.Wait()
			select {
			case <-c:
				return true
			default:
				return false
			}
		}
		if !beats(r.Pulse()) {
			t.Error("none comes from a Runner that rests")
		}
		r.Add(time.Now().Add(time.Second).UnixMilli(), 1)
		<-firing
		first, second := r.Pulse(), r.Pulse()
		if beats(first) || beats(second) {
			t.Error("it comes although Fire hangs")
		}
		close(hang)
		if !beats(first) || !beats(second) {
			t.Error("none comes when Fire goes on")
		}
		r.Close()
		if !beats(r.Pulse()) {
			t.Error("none comes from a closed Runner")
		}
	})
}
