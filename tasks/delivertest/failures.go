package delivertest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// testTimeout: an attempt that gets no answer fails when its lease ends, and not before
// the next one begins; the task is delivered after it.
func testTimeout(f *fixture) {
	f.start(func(set *tasks.TopicSettings) { set.Lease = tasks.MinLease })
	f.fault(Hang)
	f.schedule(0, "hanging", 5)
	f.allFailed(1)
	f.fault(None)
	f.finish()
}

// testPanic: a receiver that breaks down in the middle costs an attempt, and has no other effect.
func testPanic(f *fixture) {
	f.start(func(set *tasks.TopicSettings) { set.Lease = tasks.MinLease })
	f.fault(Cut)
	f.schedule(0, "cut", 5)
	f.allFailed(1)
	f.passing("beside")
	f.fault(None)
	f.finish()
}

// testSlow: a slow receiver has as many tasks at once as its topic may have, delays the other tasks
// of the topic and no others, and loses nothing.
func testSlow(f *fixture) {
	const places, all = 3, 12
	f.start(func(set *tasks.TopicSettings) { set.Concurrency = places })
	if f.breaker != nil {
		f.fault(Hang)
		f.schedule(0, "slow", all)
		f.wait("some are under way", func() bool { return f.counts().Delivering > 0 })
		f.passing("beside")
		f.fault(None)
		f.finish()
		return
	}
	answer, release := f.gate()
	f.receiver.say(Answer{Say: Accept, after: answer})
	f.schedule(0, "slow", all)
	most := all
	if f.can(Bounded) {
		most = places
	}
	f.wait("as many as possible are under way", func() bool { return f.receiver.underWay() >= most })
	f.passing("beside")
	f.quiet(100 * time.Millisecond)
	if n := f.receiver.mostAtOnce(); n > most {
		f.Errorf("%d were under way at once, of %d", n, most)
	}
	release()
	f.finish()
	if c := f.counts(); c.Failed != 0 {
		f.Errorf("%d attempts failed because they were slow", c.Failed)
	}
}

// testNeverAnswers: a receiver that never answers, and does not even notice that it was given up,
// uses a task's attempts up. Its answer long after that changes nothing.
func testNeverAnswers(f *fixture) {
	f.start(func(set *tasks.TopicSettings) {
		set.Lease, set.Retry.MaxAttempts = tasks.MinLease, 2
	})
	answer, release := f.gate()
	if f.breaker != nil {
		f.fault(Hang)
	} else {
		f.receiver.say(Answer{Say: Accept, after: answer, deaf: true})
	}
	ids := f.schedule(0, "unanswered", 4)
	f.passing("beside")
	f.finish()
	release()
	if f.breaker != nil {
		f.fault(None)
	}
	f.wait("all have been answered after all", func() bool { return f.receiver.underWay() == 0 })
	f.passing("after")
	f.finish()
	for _, id := range ids {
		if t := f.get(id); t == nil || t.State != tasks.Dead || t.Attempt != 2 {
			f.Errorf("%s got no answer to two attempts: %+v", id, t)
		}
	}
}

// testAnswersLate: an answer to an attempt after its lease does not count as one to the attempt
// that is under way by then.
func testAnswersLate(f *fixture) {
	if f.breaker != nil {
		f.Skip("a broker does not answer late: what it stores after all is one more message with the same id")
	}
	f.start(func(set *tasks.TopicSettings) { set.Lease = 3 * tasks.MinLease })
	late, answerLate := f.gate()
	second, answerSecond := f.gate()
	f.receiver.play(func(_ Arrival, n int) Answer {
		switch n {
		case 1:
			return Answer{Say: Accept, after: late, deaf: true}
		case 2:
			return Answer{Say: Fail, Why: "not yet", after: second}
		}
		return Answer{Say: Accept}
	})
	f.schedule(0, "late", 1)
	f.allFailed(1)
	f.wait("there are two under way", func() bool { return f.receiver.underWay() == 2 })
	answerLate()
	f.wait("there is one under way", func() bool { return f.receiver.underWay() == 1 })
	f.quiet(100 * time.Millisecond) // for what it said to get through, if it does
	answerSecond()
	f.finish()
	f.history.each(func(id string, st *story) {
		if len(st.arrivals) != 3 {
			f.Errorf("%s has arrived %d times, want 3", id, len(st.arrivals))
		}
	})
}

// testLoad: ten thousand tasks, three of ten attempts fail, three attempts a task: all are settled,
// as the receiver answered.
func testLoad(f *fixture) {
	n := 10_000
	if testing.Short() {
		n = 1000
	}
	f.start(func(set *tasks.TopicSettings) {
		set.Retry = tasks.Retry{MaxAttempts: 3, MinBackoff: time.Millisecond, MaxBackoff: 50 * time.Millisecond}
		if f.breaker != nil { // its failures are not spread as evenly
			set.Retry.MaxAttempts = 100
		}
	})
	f.fault(Flaky)
	began := time.Now()
	for part := range 10 {
		f.schedule(time.Duration(part)*20*time.Millisecond, fmt.Sprint("load-", part), n/10)
	}
	f.finish()
	f.fault(None)
	c := f.counts()
	f.Logf("%d tasks: %d delivered, %d dead, %d attempts failed, in %v", n, c.Delivered, c.Died, c.Failed, time.Since(began).Round(time.Millisecond))
	if c.Delivered+c.Died != int64(n) || c.Failed == 0 {
		f.Errorf("%d tasks have become %+v", n, c)
	}
	if f.breaker == nil && (c.Died == 0 || c.Failed < int64(n)/5) {
		f.Errorf("too few failures for a receiver that fails three of ten: %+v", c)
	}
}

// allFailed waits until each task has had so many attempts that failed.
func (f *fixture) allFailed(n int) {
	f.Helper()
	f.wait("every task has failed once", func() bool {
		return f.history.all(func(st *story) bool {
			count, _ := st.count(tasks.EventRetried)
			return count >= n
		})
	})
}

// gate is what answers wait for; it opens with the end of the case at the latest.
func (f *fixture) gate() (opened <-chan struct{}, open func()) {
	ch := make(chan struct{})
	open = sync.OnceFunc(func() { close(ch) })
	f.Cleanup(open)
	return ch, open
}
