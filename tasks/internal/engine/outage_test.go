package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/memledger"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// within fails the test if f takes longer than a caller waits for the ledger.
func within(r *rig.Rig, what string, f func()) {
	r.T.Helper()
	began := time.Now()
	f()
	if took := time.Since(began); took > rig.Engine(r.Scheduler).Config.AnswerWithin {
		r.T.Errorf("%s took %v", what, took)
	}
}

// An answer that comes after its caller has left changes nothing of what the caller
// was told.
func TestAnswerAfterTheCallerHasLeft(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		_, release := r.Faulty.Hold(ledgertest.Apply)
		p, err := r.Engine().Plan(&Request{ID: "t", Topic: "x", Delay: time.Hour}, engine.Admission{})
		rig.Want(t, "plan", err, nil)
		defer p.Free()
		c := engine.NewPendingWrite(1)
		one := []engine.Planned{{Plan: p}}
		r.Engine().CreateAll(one, c)
		r.Engine().ConfirmAll(nil, c)
		rig.Want(t, "the creation", one[0].Err, nil)
		synctest.Wait() // it has been sent
		gone, leave := context.WithCancel(t.Context())
		leave()
		rig.Want(t, "await", r.Engine().Await(gone, c), ErrUnknown)
		release()
		rig.Pass(time.Millisecond)
		rig.Want(t, "the answer", r.Engine().OutcomesOf(c)[0], engine.ErrOpen)
		wantEnd(r, recovery.Nowhere, 0)
	})
}

// Of a batch that was given up in the middle, just those tasks exist that were
// answered as accepted.
func TestBatchGivenUpInTheMiddle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, Config{}, memledger.BatchLimits(100, 1<<20))
		synctest.Wait()
		var requests []Request
		for i := range 600 {
			requests = append(requests, Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Hour})
		}
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Nth: 3, Times: -1})
		results, err := r.ScheduleBatch(t.Context(), requests)
		rig.Want(t, "ScheduleBatch", err, nil)
		r.Faulty.Heal()
		rig.Pass(3 * time.Second)
		accepted := 0
		for _, res := range results {
			place := recovery.Nowhere
			if res.Err == nil {
				accepted++
				place = recovery.Pending
			}
			r.InLedger(res.ID, place)
		}
		if accepted == 0 || accepted == len(requests) {
			t.Errorf("%d of %d were accepted", accepted, len(requests))
		}
		r.CheckConsistency()
	})
}

// A batch that is repeated waits once for all of its ids, not once for each.
func TestRepeatedBatchDuringOutage(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		var requests []Request
		for i := range 100 {
			requests = append(requests, Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Hour})
		}
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Times: -1})
		for range 2 {
			within(r, "the batch", func() {
				results, err := r.ScheduleBatch(t.Context(), requests)
				rig.Want(t, "ScheduleBatch", err, nil)
				for _, res := range results {
					rig.Want(t, res.ID, res.Err, ErrUnknown)
				}
			})
		}
		r.Faulty.Heal()
		rig.Pass(3 * time.Second)
		results, err := r.ScheduleBatch(t.Context(), requests)
		rig.Want(t, "ScheduleBatch", err, nil)
		for _, res := range results {
			rig.Want(t, res.ID, res.Err, nil)
		}
		r.CheckConsistency()
	})
}

// A repetition that has made the creation its own does not know its outcome either.
func TestWantedCreationGivenUp(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		_, release := r.Faulty.Hold(ledgertest.Apply)
		for range 2 {
			_, err := r.Schedule(t.Context(), Request{ID: "t", Topic: "x", Delay: time.Hour})
			rig.Want(t, "Schedule", err, ErrUnknown)
		}
		_, err := r.Schedule(t.Context(), Request{ID: "t", Topic: "x", Delay: time.Minute})
		rig.Want(t, "Schedule of something else", err, ErrUnavailable)
		release()
		rig.Pass(time.Millisecond)
		wantEnd(r, recovery.Pending, Pending) // it was asked for again
		if r.MustGet("t").Due.Sub(r.Clock.Now()) < 59*time.Minute {
			t.Error("it is another one")
		}
	})
}

// A caller that gives up because so many others change the same task gets ErrContended. The
// ledger answers each change after 30 ms; while it does not answer, the error is ErrUnavailable.
func TestContendedChanges(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.Must(Request{ID: "t", Topic: "x", Delay: time.Hour})
		slow := make(chan struct{})
		defer close(slow)
		go func() {
			for {
				_, release := r.Faulty.Hold(ledgertest.Apply)
				select {
				case <-time.After(30 * time.Millisecond):
					release()
				case <-slow:
					release()
					return
				}
			}
		}()
		synctest.Wait()
		const many = 500
		answers := make(chan error, many)
		for range many {
			go func() { answers <- moveT(r) }()
		}
		done, contended, unknown := 0, 0, 0
		for range many {
			switch err := <-answers; {
			case err == nil:
				done++
			case errors.Is(err, ErrContended) && errors.Is(err, ErrUnavailable):
				contended++
			case errors.Is(err, ErrUnknown) && unknown == 0:
				// Its write was under way when the time was over.
				unknown++
			default:
				t.Error(err)
			}
		}
		if done < 20 || contended < 20 {
			t.Errorf("%d changes were made, %d were contended", done, contended)
		}
	})
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.Must(Request{ID: "t", Topic: "x", Delay: time.Hour})
		_, release := r.Faulty.Hold(ledgertest.Apply)
		defer release()
		first := make(chan error, 1)
		go func() { first <- moveT(r) }()
		synctest.Wait()
		if err := moveT(r); !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrContended) {
			t.Errorf("while the ledger does not answer: %v", err)
		}
		rig.Want(t, "the first one", <-first, ErrUnknown)
	})
}

// What waits for a busy task takes no more memory with every caller that gives up.
func TestWatchersGiveUp(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		_, release := r.Faulty.Hold(ledgertest.Apply)
		go func() { _, _ = r.Schedule(t.Context(), Request{ID: "t", Topic: "x", Delay: time.Hour}) }()
		synctest.Wait()
		gone, leave := context.WithCancel(t.Context())
		leave()
		watch := func() <-chan struct{} {
			rig.Mutex(r.Engine()).Lock()
			defer rig.Mutex(r.Engine()).Unlock()
			n, _ := r.Engine().Store.Find([]byte("t"))
			return r.Engine().WatchLocked(n)
		}
		first := watch()
		for range 100 {
			_, err := r.Get(gone, "t")
			rig.Want(t, "Get", err, ErrUnavailable)
		}
		if watch() != first || len(r.Engine().Writes.Waiting) != 1 {
			t.Error("each caller has left something behind")
		}
		release()
		rig.Pass(time.Millisecond)
		if <-first; len(r.Engine().Writes.Waiting) != 0 {
			t.Error("a caller still waits")
		}
	})
}

// A change that was given up before it was sent does not hold its task back for as
// long as the write before it is not answered.
func TestGivenUpChangeDoesNotDelayDelivery(t *testing.T) {
	for name, change := range map[string]func(r *rig.Rig) error{
		"Cancel":     func(r *rig.Rig) error { return r.Cancel(r.T.Context(), "t") },
		"Reschedule": moveT,
		"Replace": func(r *rig.Rig) error {
			_, err := r.Replace(r.T.Context(), Request{ID: "t", Topic: "z", Delay: time.Hour})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
				var delivered rig.Collection[string]
				r.MustHandle("x", func(_ context.Context, d *Delivery) error { delivered.Add(d.ID); return nil })
				r.Must(Request{ID: "t", Topic: "x", Delay: 5 * time.Second})
				_, release := r.Faulty.Hold(ledgertest.Apply)
				go func() { _, _ = r.Schedule(t.Context(), Request{ID: "before", Topic: "y", Delay: time.Hour}) }()
				synctest.Wait()
				rig.Want(t, name, change(r), ErrUnavailable)
				rig.Pass(3*time.Second + time.Millisecond)
				if n := len(delivered.List()); n != 1 {
					t.Errorf("delivered %d times during the outage", n)
				}
				release()
				rig.Pass(time.Second)
				if n := len(delivered.List()); n != 1 {
					t.Errorf("delivered %d times in the end", n)
				}
				r.CheckConsistency()
			})
		})
	}
}

func moveT(r *rig.Rig) error {
	_, err := r.Reschedule(r.T.Context(), "t", Move{Delay: rig.Ptr(time.Hour)})
	return err
}

// A change that takes the place of a retry that was not written yet, and is given up
// itself, leaves the retry to be written; also one that keeps the task's time.
func TestRetryBehindAGivenUpChange(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		d := r.One("t", "x")
		_, release := r.Faulty.Hold(ledgertest.Apply)
		for range 2 {
			go r.SettleOne(Verdict{Verb: Release, Delay: rig.Ptr(time.Duration(0))}, d)
			synctest.Wait()
			d = r.Pull("x", "t")[0]
		}
		go r.SettleOne(Verdict{Verb: Release, Delay: rig.Ptr(time.Duration(0))}, d)
		synctest.Wait()
		rig.Want(t, "Reschedule", moveT(r), ErrUnavailable)
		release()
		rig.Pass(time.Second)
		if f := r.InLedger("t", recovery.Pending); f.Attempt != 3 {
			t.Errorf("%d attempts are recorded, want 3", f.Attempt)
		}
		r.CheckConsistency()
	})
}

// Settle has one deadline, also if it waits for acknowledgements of its own and for
// those that it repeats.
func TestSettleWaitsOnce(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		a, b := r.One("a", "x"), r.One("b", "x")
		_, release := r.Faulty.Hold(ledgertest.Apply)
		gone, leave := context.WithCancel(t.Context())
		leave()
		_, err := r.Settle(gone, Verdict{Verb: Ack}, []string{a.Receipt()})
		rig.Want(t, "Settle", err, nil)
		within(r, "Settle", func() {
			answers, err := r.Settle(t.Context(), Verdict{Verb: Ack}, []string{a.Receipt(), b.Receipt()})
			rig.Want(t, "Settle", err, nil)
			for _, s := range answers {
				if s.Err != nil || s.Recorded {
					t.Errorf("answer %+v", s)
				}
			}
		})
		release()
		rig.Pass(time.Millisecond)
		r.InLedger("a", recovery.Nowhere)
		r.InLedger("b", recovery.Nowhere)
	})
}

// A shard that does not answer keeps no caller from waiting for another one.
func TestSettleBesideAStalledShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, Config{}, memledger.Shards(4), memledger.Apart())
		synctest.Wait()
		var ds []Delivery
		for i := range 20 {
			ds = append(ds, r.One(fmt.Sprint("t", i), "x"))
		}
		apart := func() (a, b Delivery) {
			for _, d := range ds[1:] {
				if rig.Begun(d).Shard != rig.Begun(ds[0]).Shard {
					return ds[0], d
				}
			}
			panic("all in one shard")
		}
		stuck, free := apart()
		reached, release := r.Faulty.Hold(ledgertest.Apply)
		go r.SettleOne(Verdict{Verb: Ack}, stuck)
		<-reached
		rig.Pass(3 * time.Second)
		// The other shard is held up too, but not for long yet.
		answer := make(chan Settled, 1)
		go func() { answer <- r.SettleOne(Verdict{Verb: Ack}, free) }()
		synctest.Wait()
		if len(answer) != 0 {
			t.Fatalf("it did not wait: %+v", <-answer)
		}
		release()
		if a := <-answer; a.Err != nil || !a.Recorded {
			t.Errorf("answer %+v", a)
		}
	})
}

// A ledger that does not let itself be read delays the audit, and nothing else.
func TestSweepBesideAHangingAudit(t *testing.T) {
	rig.Bubble(t, Config{AnswerWithin: time.Minute}, func(t *testing.T, r *rig.Rig) {
		var delivered atomic.Int32
		r.MustHandle("x", func(context.Context, *Delivery) error { delivered.Add(1); return nil })
		r.Must(Request{ID: "t", Topic: "x", Delay: time.Hour})
		reached, release := r.Faulty.Hold(ledgertest.Get)
		<-reached
		r.Clock.Step(2 * time.Hour)
		rig.Pass(1100 * time.Millisecond)
		if delivered.Load() != 1 {
			t.Error("the sweep waits for the audit")
		}
		release()
	})
}

// A conditional hangs, when it is told to, while it is asked for its condition.
type conditional struct {
	*ledgertest.Faulty
	hangs atomic.Bool
	over  chan struct{}
}

func (c *conditional) Condition() error {
	if c.hangs.Load() {
		<-c.over
	}
	return nil
}

// The ledger is asked how it is without the lock, and no caller waits for the answer.
func TestHangingCondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ledger := &conditional{Faulty: ledgertest.Wrap(memledger.New()), over: make(chan struct{})}
		s, err := Open(t.Context(), ledger, Config{})
		rig.Want(t, "Open", err, nil)
		ledger.hangs.Store(true)
		rig.Pass(2 * time.Second)
		_, err = s.Schedule(t.Context(), Request{ID: "t", Topic: "x"})
		rig.Want(t, "Schedule", err, nil)
		ds, err := s.Reserve(t.Context(), "x", 1, 0, 0)
		if err != nil || len(ds) != 1 {
			t.Errorf("Reserve = %d, %v", len(ds), err)
		}
		close(ledger.over)
		rig.Want(t, "Close", s.Close(t.Context()), nil)
	})
}
