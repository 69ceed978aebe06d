package delivertest

import (
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// testShutdown: a scheduler that closes in the middle leaves nothing behind: settled tasks are
// final, and all others are delivered by the next one.
func testShutdown(f *fixture) { f.interrupt(f.close, false) }

// testCrash: the same when it is killed; only what it could not record any more may come again.
func testCrash(f *fixture) { f.interrupt(f.crash, false) }

// testCrashCounted: an attempt that ended with its process counts, where it should.
func testCrashCounted(f *fixture) { f.interrupt(f.crash, true) }

func (f *fixture) interrupt(end func(), counted bool) {
	const places, waiting = 4, 12
	f.start(func(set *tasks.TopicSettings) {
		set.Concurrency, set.Lease, set.CountCrashes = places, 2*tasks.MinLease, counted
	})
	f.schedule(0, "settled", 20)
	f.finish()

	f.fault(Hang)
	f.schedule(0, "interrupted", waiting)
	f.schedule(3*time.Second, "later", 10)
	held := waiting
	if f.can(Bounded) {
		held = places
	}
	f.wait("the receiver has what it can have", func() bool {
		if f.breaker != nil {
			return f.counts().Delivering > 0
		}
		return f.receiver.underWay() == held
	})
	end()
	f.fault(None)
	f.wait("the receiver has given up", func() bool { return f.receiver.underWay() == 0 })
	f.reopen()
	f.schedule(0, "new", 5)
	f.finish()
	f.history.each(func(id string, st *story) {
		if all := st.attempts(nil); counted && len(all) == 2 && all[1].n != 2 {
			f.Errorf("%s: attempt %d follows one that was counted before the crash", id, all[1].n)
		}
	})
	if c := f.counts(); c.Delivered != waiting+10+5 {
		f.Errorf("after the restart %d were delivered, want %d", c.Delivered, waiting+10+5)
	}
}
