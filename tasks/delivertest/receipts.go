package delivertest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// testSettlesTwice: the first settlement by a receipt is valid. A broker that stores twice, because
// its answer was lost, has the task's id to tell them apart, and the task is settled once.
func testSettlesTwice(f *fixture) {
	f.start(func(set *tasks.TopicSettings) { set.Lease = 2 * tasks.MinLease })
	if f.breaker != nil {
		f.fault(Lose)
		f.schedule(0, "stored", 5)
		f.allFailed(1)
		f.fault(None)
		f.finish()
		if c := f.counts(); c.Delivered != 5 {
			f.Errorf("5 tasks were delivered %d times", c.Delivered)
		}
		return
	}
	f.needs(Receipt)
	f.receiver.say(Answer{Say: Later})
	again := time.Duration(0)
	release := tasks.Verdict{Verb: tasks.Release, Delay: &again, Reason: "not yet"}
	ack, bury := tasks.Verdict{Verb: tasks.Ack}, tasks.Verdict{Verb: tasks.Bury, Reason: "never"}

	twice := f.receipt(f.schedule(0, "twice", 1)[0], 1)
	f.settle(ack, twice, nil)
	f.settle(ack, twice, nil)
	f.settle(release, twice, tasks.ErrStale)
	f.settle(bury, twice, tasks.ErrStale)

	id := f.schedule(0, "returned", 1)[0]
	returned := f.receipt(id, 1)
	f.settle(release, returned, nil)
	next := f.receipt(id, 2)
	f.settle(ack, returned, tasks.ErrStale) // though there is a delivery that could be meant
	f.settle(release, returned, tasks.ErrStale)
	f.settle(ack, next, nil)
	f.settle(ack, returned, tasks.ErrStale)

	buried := f.receipt(f.schedule(0, "buried", 1)[0], 1)
	f.settle(bury, buried, nil)
	f.settle(ack, buried, tasks.ErrStale)

	many := f.receipt(f.schedule(0, "many", 1)[0], 1)
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() { f.settle(ack, many, nil) })
	}
	group.Wait()
	f.finish()
	if c := f.counts(); c.Delivered != 3 || c.Died != 1 || c.Failed != 2 {
		f.Errorf("three delivered, one of them after a failure, and one buried: %+v", c)
	}
}

// testSettlesAgainstItsAnswer: if a receiver settles by receipt and then answers the opposite, the
// receipt is valid.
func testSettlesAgainstItsAnswer(f *fixture) {
	f.needs(Receipt)
	f.start(nil)
	again := time.Duration(0)
	f.receiver.play(func(a Arrival, n int) Answer {
		switch {
		case n > 1:
			return Answer{Say: Accept}
		case a.ID == "done-0":
			f.settle(tasks.Verdict{Verb: tasks.Ack}, a.Receipt, nil)
			return Answer{Say: Fail, Why: "it is done already"}
		default:
			f.settle(tasks.Verdict{Verb: tasks.Release, Delay: &again, Reason: "once more"}, a.Receipt, nil)
			return Answer{Say: Accept}
		}
	})
	f.schedule(0, "done", 1)
	f.schedule(0, "undone", 1)
	f.finish()
	if c := f.counts(); c.Delivered != 2 || c.Failed != 1 {
		f.Errorf("one delivered at once, one at the second attempt: %+v", c)
	}
}

// testSettlesAfterRestart: a delivery from before a shutdown is settled by its receipt after it,
// without another delivery; or its lease ends.
func testSettlesAfterRestart(f *fixture) { f.settleAfter(f.close) }

// testSettlesAfterCrash: the same with one that was killed, as long as the task has not been
// delivered again.
func testSettlesAfterCrash(f *fixture) {
	f.settleAfter(func() {
		f.pause(true)
		f.crash()
	})
}

func (f *fixture) settleAfter(end func()) {
	f.needs(Receipt)
	f.start(func(set *tasks.TopicSettings) { set.Lease = 5 * tasks.MinLease })
	f.receiver.play(func(_ Arrival, n int) Answer {
		if n == 1 {
			return Answer{Say: Later}
		}
		return Answer{Say: Accept}
	})
	ids := f.schedule(0, "held", 3)
	var receipts []string
	for _, id := range ids {
		receipts = append(receipts, f.receipt(id, 1))
	}
	f.settle(tasks.Verdict{Verb: tasks.Ack}, receipts[0], nil)
	end()
	f.reopen()
	f.wait("replay is over", func() bool { return f.s.Readiness().Ready })
	f.settle(tasks.Verdict{Verb: tasks.Ack}, receipts[1], nil)
	f.pause(false)
	f.finish()
	f.history.each(func(id string, st *story) {
		if want := map[string]int{ids[0]: 1, ids[1]: 1, ids[2]: 2}[id]; len(st.arrivals) != want {
			f.Errorf("%s has arrived %d times, want %d", id, len(st.arrivals), want)
		}
	})
}

func (f *fixture) pause(paused bool) {
	f.Helper()
	if err := f.s.Admin().PauseTopic(f.Context(), subject, paused); err != nil {
		f.Fatalf("PauseTopic: %v", err)
	}
}

// receipt waits for the n-th delivery of a task to be left open by its receiver, and
// returns its receipt.
func (f *fixture) receipt(id string, n int) (receipt string) {
	f.Helper()
	f.wait(id+" is held by its receiver", func() bool {
		f.history.mu.Lock()
		defer f.history.mu.Unlock()
		st := f.history.story(id)
		if len(st.arrivals) < n || st.arrivals[n-1].said != Later {
			return false
		}
		receipt = st.arrivals[n-1].Receipt
		return true
	})
	return receipt
}

// settle settles one receipt and wants this error. It may be called by any goroutine.
func (f *fixture) settle(v tasks.Verdict, receipt string, want error) {
	f.Helper()
	answers, err := f.s.Settle(context.WithoutCancel(f.Context()), v, []string{receipt})
	if err != nil {
		f.Errorf("Settle: %v", err)
		return
	}
	if got := answers[0]; !errors.Is(got.Err, want) || want == nil && !got.Recorded {
		f.Errorf("%s by receipt: %+v, want %v", verdicts[v.Verb], got, want)
	} else if want == nil {
		f.history.settle(receipt, Answer{Say: verdicts[v.Verb], Why: v.Reason})
	}
}
