package delivertest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

const (
	subject   = "subject"   // the topic that is delivered by the way under test
	bystander = "bystander" // another one, with a handler
	patience  = 90 * time.Second
)

// Run runs the conformance suite. It calls fresh for each case, with the receiver that the rig is
// to call. Cases run at the same time: no rig may disturb another one.
func Run(t *testing.T, fresh func(t *testing.T, r *Receiver) Rig) {
	for _, c := range []struct {
		name string
		test func(*fixture)
	}{
		{"Success", testSuccess},
		{"Failure", testFailure},
		{"Exhausted", testExhausted},
		{"Killed", testKilled},
		{"Paused", testPaused},
		{"Timeout", testTimeout},
		{"Panic", testPanic},
		{"Slow", testSlow},
		{"NeverAnswers", testNeverAnswers},
		{"AnswersLate", testAnswersLate},
		{"SettlesTwice", testSettlesTwice},
		{"SettlesAgainstItsAnswer", testSettlesAgainstItsAnswer},
		{"SettlesAfterRestart", testSettlesAfterRestart},
		{"SettlesAfterCrash", testSettlesAfterCrash},
		{"Shutdown", testShutdown},
		{"Crash", testCrash},
		{"CrashCounted", testCrashCounted},
		{"Load", testLoad},
		{"Targets", testTargets},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // most of a case is waiting
			c.test(newFixture(t, fresh))
		})
	}
}

// A fixture is one case: a way of delivery, its receiver, and a scheduler, which is replaced at
// each restart.
type fixture struct {
	*testing.T
	rig      Rig
	breaker  Breaker // the rig, if its receiver does not answer
	receiver *Receiver
	history  *history
	mem      *memledger.Ledger

	s        *tasks.Scheduler
	leave    context.CancelFunc  // ends what Serve has begun
	settings tasks.TopicSettings // of the subject, with defaults
}

func newFixture(t *testing.T, fresh func(t *testing.T, r *Receiver) Rig) *fixture {
	h := newHistory()
	r := &Receiver{h: h, script: accept}
	f := &fixture{T: t, rig: fresh(t, r), receiver: r, history: h, mem: memledger.New(memledger.Strict())}
	f.breaker, _ = f.rig.(Breaker)
	return f
}

// start opens the first scheduler, with settings for the topic under test, and waits until its
// replay is over: before that it refuses a stale receipt with ErrReplaying.
func (f *fixture) start(adjust func(set *tasks.TopicSettings)) {
	f.Helper()
	f.open()
	set := f.rig.Settings()
	set.Retry = tasks.Retry{MinBackoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond}
	if adjust != nil {
		adjust(&set)
	}
	t, err := f.s.SetTopic(f.Context(), subject, set, -1)
	if err != nil {
		f.Fatalf("SetTopic: %v", err)
	}
	f.settings = t.Settings
	f.serve()
	f.Cleanup(func() {
		f.leave()
		_ = f.s.Close(context.Background())
	})
	f.wait("the replay is over", func() bool { return f.s.Stats().Readiness.Ready })
}

func (f *fixture) open() {
	f.Helper()
	var err error
	f.s, err = tasks.Open(f.Context(), f.mem, tasks.Config{
		Ways: f.rig.Ways(), Observer: f.history.observer(), Log: slog.New(slog.DiscardHandler),
		SweepEvery: 50 * time.Millisecond, Grace: 200 * time.Millisecond,
	})
	if err != nil {
		f.Fatalf("Open: %v", err)
	}
	if err := f.s.Handle(bystander, func(context.Context, *tasks.Delivery) error { return nil }); err != nil {
		f.Fatalf("Handle: %v", err)
	}
}

func (f *fixture) serve() {
	f.Helper()
	ctx, leave := context.WithCancel(context.WithoutCancel(f.Context()))
	f.leave = leave
	if err := f.rig.Serve(ctx, f.s, subject); err != nil {
		f.Fatalf("Serve: %v", err)
	}
}

// close ends the scheduler in order, with whatever is under way.
func (f *fixture) close() {
	f.Helper()
	f.leave()
	if err := f.s.Close(context.WithoutCancel(f.Context())); err != nil {
		f.Fatalf("Close: %v", err)
	}
	f.mem = f.mem.Reopen()
}

// crash ends the scheduler as kill -9 would: from then on it records nothing.
func (f *fixture) crash() {
	f.Helper()
	f.history.mu.Lock()
	f.history.crashed[f.history.run] = true
	f.history.mu.Unlock()
	f.mem.Crash()
	f.leave()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = f.s.Close(ctx) // its goroutines; their results are discarded
	f.mem = f.mem.Reopen()
}

// reopen opens the next scheduler.
func (f *fixture) reopen() {
	f.Helper()
	f.open()
	f.serve()
}

// needs skips the case if the way lacks an ability.
func (f *fixture) needs(a Ability) {
	f.Helper()
	if why, cannot := f.rig.Cannot()[a]; cannot {
		f.Skipf("it cannot %s: %s", a, why)
	}
	if f.breaker != nil && ofReceivers[a] {
		f.Skipf("it cannot %s: a broker only stores", a)
	}
}

func (f *fixture) can(a Ability) bool {
	_, cannot := f.rig.Cannot()[a]
	return !cannot && (f.breaker == nil || !ofReceivers[a])
}

// fault makes deliveries from now on fail, by the receiver if it answers, else by a fault in
// between.
func (f *fixture) fault(what Fault) {
	f.Helper()
	if f.breaker != nil {
		if what != None {
			f.history.mu.Lock()
			f.history.broken = true
			f.history.mu.Unlock()
		}
		f.breaker.Break(what)
		return
	}
	switch what {
	case None:
		f.receiver.play(accept)
	case Refuse:
		f.receiver.say(Answer{Say: Fail, Why: "not today"})
	case Hang:
		f.receiver.say(Answer{Say: Silence})
	case Cut, Lose:
		f.receiver.say(Answer{Say: Panic})
	case Flaky:
		f.receiver.play(func(a Arrival, n int) Answer {
			if failsNow(a.ID, n) {
				return Answer{Say: Fail, Why: "three of ten"}
			}
			return Answer{Say: Accept}
		})
	}
}

// schedule asks for tasks that are due in delay.
func (f *fixture) schedule(delay time.Duration, name string, n int) (ids []string) {
	f.Helper()
	due := now().Add(delay)
	reqs := make([]tasks.Request, n)
	for i := range reqs {
		id := fmt.Sprintf("%s-%d", name, i)
		reqs[i] = tasks.Request{ID: id, Topic: subject, Due: due, Payload: fmt.Appendf(nil, `{"task":%q}`, id)}
		ids = append(ids, id)
	}
	f.ask(reqs...)
	return ids
}

// ask schedules tasks, which have to be accepted. Each has an ID and a Due.
func (f *fixture) ask(reqs ...tasks.Request) {
	f.Helper()
	for part := range slices.Chunk(reqs, tasks.MaxBatch) {
		for _, r := range part {
			f.history.ask(r)
		}
		results, err := f.s.ScheduleBatch(f.Context(), part)
		if err != nil {
			f.Fatalf("ScheduleBatch: %v", err)
		}
		for _, r := range results {
			if r.Err != nil {
				f.Fatalf("schedule %s: %v", r.ID, r.Err)
			}
		}
	}
}

// wait waits until cond holds.
func (f *fixture) wait(what string, cond func() bool) {
	f.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	over := time.After(patience)
	for !cond() {
		select {
		case <-tick.C:
		case <-over:
			f.report()
			f.Fatalf("in vain waited until %s", what)
		}
	}
}

// quiet waits for d, in which an event should not happen.
func (f *fixture) quiet(d time.Duration) { <-time.After(d) }

func (f *fixture) get(id string) *tasks.Task {
	f.Helper()
	t, err := f.s.Get(f.Context(), id)
	if errors.Is(err, tasks.ErrNotFound) {
		return nil
	}
	if err != nil {
		f.Fatalf("Get(%s): %v", id, err)
	}
	return &t
}

func (f *fixture) counts() tasks.Counts {
	f.Helper()
	t, err := f.s.Topic(subject)
	if err != nil {
		f.Fatalf("Topic: %v", err)
	}
	return t.Counts
}

// passing delivers a task of another topic, to show that nothing blocks it.
func (f *fixture) passing(id string) {
	f.Helper()
	r := tasks.Request{ID: id, Topic: bystander, Due: now()}
	f.ask(r)
	f.wait("a task of another topic is delivered", func() bool { return f.get(id) == nil })
}

// finish waits until every task is settled, and judges what has happened.
func (f *fixture) finish() {
	f.Helper()
	f.wait("every task is settled", func() bool {
		c := f.counts()
		return f.s.Readiness().Ready && c.Pending+c.Ready+c.Delivering == 0
	})
	if f.breaker != nil { // what it has stored may be read a little later
		f.wait("everything delivered has arrived", func() bool {
			return f.history.all(func(st *story) bool {
				n, _ := st.count(tasks.EventDelivered)
				return n == 0 || len(st.arrivals) > 0
			})
		})
	}
	f.quiet(100 * time.Millisecond)
	if n := f.s.Stats().MissedWakes; n != 0 {
		f.Errorf("the sweep found ready tasks %d times for which no receiver had been woken", n)
	}
	f.report()
}

// report judges what has happened so far.
func (f *fixture) report() {
	f.Helper()
	ends := map[string]*tasks.Task{}
	f.history.each(func(id string, _ *story) { ends[id] = nil })
	for id := range ends {
		ends[id] = f.get(id)
	}
	f.history.mu.Lock()
	defer f.history.mu.Unlock()
	j := &judge{settings: f.settings, cannot: f.rig.Cannot(), answers: f.breaker == nil, crashed: f.history.crashed, broken: f.history.broken}
	var bad []string
	for id, st := range f.history.tasks {
		if st.asked.Topic == bystander {
			continue
		}
		if faults := j.judge(st, ends[id]); len(faults) > 0 {
			bad = append(bad, fmt.Sprintf("%s:\n  %s%s", id, strings.Join(faults, "\n  "), st.tell(f.history.zero)))
		}
	}
	slices.Sort(bad)
	for _, text := range bad[:min(len(bad), 5)] {
		f.Error(text)
	}
	if len(bad) > 5 {
		f.Errorf("and %d more tasks with faults", len(bad)-5)
	}
}
