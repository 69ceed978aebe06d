package wheel

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/RussellLuo/timingwheel"
)

// roundUp is the first whole millisecond at or after t: what a caller with a
// finer deadline passes to Add.
func roundUp(t time.Time) int64 { return t.Add(time.Millisecond - 1).UnixMilli() }

// The reference truncates a deadline to its millisecond, and fires as soon as
// that begins: see docs/internals/decisions/0001-wheel-and-delay-queue.md. Time is fake
// here, so that it happens every time.
func TestReferenceFiresEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const early = 900 * time.Microsecond
		reference := timingwheel.NewTimingWheel(time.Millisecond, 512)
		reference.Start()
		defer reference.Stop()
		var due, ours, theirs time.Time
		r, err := NewRunner(Config{Fire: func(values []uint64) {
			if values[0] == 2 {
				ours = time.Now()
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()

		// One timer at a whole millisecond puts either poller in step with it.
		reference.AfterFunc(9*time.Millisecond, func() {})
		r.Add(roundUp(time.Now().Add(9*time.Millisecond)), 1)
		pass(early)
		due = time.Now().Add(10 * time.Millisecond)
		reference.AfterFunc(10*time.Millisecond, func() { theirs = time.Now() })
		r.Add(roundUp(due), 2)
		pass(time.Second)
		synctest.Wait()

		if got := due.Sub(theirs); got != early {
			t.Errorf("the reference fired %v early; it used to be %v", got, early)
		}
		if late := ours.Sub(due); late < 0 || late >= time.Millisecond {
			t.Errorf("the Runner fired %v after the deadline; want less than a tick, and not early", late)
		}
	})
}
