package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
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

// Everything that is asked of a closed scheduler is refused.
func TestClosed(t *testing.T) {
	ctx := context.Background()
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		d := r.One("t", "x")
		for range 3 {
			rig.Want(t, "Close", r.Close(ctx), nil)
		}
		<-r.Done()
		rig.Want(t, "Err", r.Err(), nil)
		for what, err := range everything(r, d) {
			rig.Want(t, what, err, ErrClosed)
		}
		r.Admin().Return([]Delivery{d})
		_, _, _ = r.Stats(), r.Readiness(), r.Admin().Topics()
	})
}

// everything calls each method that can be refused.
func everything(r *rig.Rig, d Delivery) map[string]error {
	ctx := r.T.Context()
	errs := make(map[string]error)
	_, errs["Schedule"] = r.Schedule(ctx, Request{ID: "new", Topic: "x"})
	_, errs["Replace"] = r.Replace(ctx, Request{ID: "t", Topic: "x"})
	_, errs["Reschedule"] = r.Reschedule(ctx, "t", Move{Delay: rig.Ptr(time.Second)})
	_, errs["Fire"] = r.Fire(ctx, "t")
	errs["Cancel"] = r.Cancel(ctx, "t")
	_, errs["Get"] = r.Get(ctx, "t")
	_, errs["List"] = r.List(ctx, Query{})
	_, errs["DeadTasks"] = r.Admin().DeadTasks(ctx, "x", 0, "")
	_, errs["Requeue"] = r.Admin().Requeue(ctx, "x", Requeue{IDs: []string{"t"}})
	_, errs["DeleteDead"] = r.Admin().DeleteDead(ctx, "x", []string{"t"})
	_, errs["Reserve"] = r.Reserve(ctx, "x", 1, time.Second, 0)
	_, errs["Settle"] = r.Settle(ctx, Verdict{Verb: Ack}, []string{d.Receipt()})
	errs["Handle"] = r.Handle("new", func(context.Context, *Delivery) error { return nil })
	_, errs["SetTopic"] = r.SetTopic(ctx, "x", TopicSettings{}, -1)
	errs["PauseTopic"] = r.Admin().PauseTopic(ctx, "x", true)
	errs["DeleteTopic"] = r.Admin().DeleteTopic(ctx, "x", -1)
	results, err := r.ScheduleBatch(ctx, []Request{{ID: "new", Topic: "x"}})
	if err == nil {
		err = results[0].Err
	}
	errs["ScheduleBatch"] = err
	return errs
}

// Close while everything else goes on: nothing hangs, nothing that was accepted is lost.
func TestCloseBesideEverything(t *testing.T) {
	for range 10 {
		synctest.Test(t, func(t *testing.T) {
			r := rig.New(t, Config{}, memledger.Shards(4))
			r.MustHandle("h", func(context.Context, *Delivery) error { time.Sleep(time.Millisecond); return nil })
			var mu sync.Mutex
			accepted, acked := map[string]bool{}, map[string]bool{}
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					for n := 0; ; n++ {
						id := fmt.Sprintf("t-%d-%d", i, n)
						_, err := r.Schedule(context.Background(), Request{ID: id, Topic: "x"})
						if errors.Is(err, ErrClosed) {
							return
						}
						mu.Lock()
						accepted[id] = err == nil
						mu.Unlock()
						time.Sleep(time.Millisecond)
						_, _ = r.Schedule(context.Background(), Request{Topic: "h"})
						ds, _ := r.Reserve(context.Background(), "x", 3, time.Millisecond, 0)
						for _, d := range ds {
							answers, err := r.Settle(context.Background(), Verdict{Verb: Ack}, []string{d.Receipt()})
							if err == nil && answers[0].Err == nil {
								mu.Lock()
								acked[d.ID] = true
								mu.Unlock()
							}
						}
					}
				})
			}
			for range 2 {
				wg.Go(func() {
					time.Sleep(50 * time.Millisecond)
					if err := r.Close(context.Background()); err != nil {
						t.Error("Close:", err)
					}
				})
			}
			wg.Wait()
			r.Mem = r.Mem.Reopen()
			r.Open()
			rig.Pass(time.Minute) // of leases, too
			for id, kept := range accepted {
				if !kept || acked[id] {
					continue
				}
				if _, err := r.Get(t.Context(), id); err != nil {
					t.Errorf("Get(%s) = %v after the restart", id, err)
				}
			}
			r.CheckConsistency()
		})
	}
}

func TestGrace(t *testing.T) {
	for name, c := range map[string]struct {
		work   time.Duration // of the handler, if nothing stops it
		deaf   bool          // it ignores its context
		closed time.Duration // after which Close returns
		acked  bool
	}{
		"quick":           {work: time.Second, closed: time.Second, acked: true},
		"told to stop":    {work: time.Hour, closed: 10 * time.Second},
		"does not listen": {work: 25 * time.Second, deaf: true, closed: 10*time.Second + engine.LastWords},
	} {
		t.Run(name, func(t *testing.T) {
			rig.Bubble(t, Config{Grace: 10 * time.Second}, func(t *testing.T, r *rig.Rig) {
				r.MustSetTopic("x", TopicSettings{Lease: time.Hour})
				var cause error
				r.MustHandle("x", func(ctx context.Context, _ *Delivery) error {
					if c.deaf {
						time.Sleep(c.work)
						return nil
					}
					select {
					case <-time.After(c.work):
						return nil
					case <-ctx.Done():
						cause = ctx.Err()
						return cause
					}
				})
				dueNow(r)
				synctest.Wait()
				began := time.Now()
				r.Shut()
				if took := time.Since(began); took != c.closed {
					t.Errorf("Close took %v, want %v", took, c.closed)
				}
				rig.Pass(time.Minute) // the deaf one ends
				if !c.deaf && !c.acked && !errors.Is(cause, context.Canceled) {
					t.Errorf("its context ended with %v", cause)
				}
				r.Open()
				rig.Pass(time.Second)
				if c.acked {
					wantEnd(r, recovery.Nowhere, 0)
				} else {
					wantEnd(r, recovery.Pending, Ready)
				}
				if task, err := r.Get(t.Context(), "t"); !c.acked && (err != nil || (task.Attempt == 1) == c.deaf) {
					t.Errorf("only an attempt that was ended in time is recorded: %+v, %v", task, err)
				}
			})
		})
	}
}

// The context of Close ends the grace early.
func TestGraceGivenUp(t *testing.T) {
	rig.Bubble(t, Config{Grace: time.Minute}, func(t *testing.T, r *rig.Rig) {
		r.MustHandle("x", func(ctx context.Context, _ *Delivery) error { <-ctx.Done(); return ctx.Err() })
		dueNow(r)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		rig.Want(t, "Close", r.Close(ctx), nil)
		if took := time.Since(began); took != time.Second {
			t.Errorf("Close took %v", took)
		}
	})
}

// What the ledger does not confirm in time is told.
func TestCloseDuringOutage(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		d := r.One("t", "x")
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Times: -1})
		if a := r.SettleOne(Verdict{Verb: Ack}, d); a.Err != nil || a.Recorded {
			t.Errorf("Ack: %+v", a)
		}
		began := time.Now()
		rig.Want(t, "Close", r.Close(t.Context()), recovery.ErrClosed)
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("it took %v", took)
		}
		r.Mem = r.Mem.Reopen()
		r.Open()
		rig.Pass(time.Second)
		wantEnd(r, recovery.Pending, Ready) // delivered again: the answer had said so
	})
}

func TestCloseAnswersReceivers(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		shardID := make(chan error, 1)
		go func() { _, err := r.Reserve(t.Context(), "x", 1, time.Minute, 0); shardID <- err }()
		synctest.Wait()
		began := time.Now()
		r.Shut()
		rig.Want(t, "Reserve", <-shardID, nil)
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
	})
}

// A ledger that has passed to another owner ends the scheduler.
func TestLost(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		d := r.One("t", "x")
		r.Must(Request{ID: "later", Topic: "x", Delay: time.Minute})
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Times: -1, Err: recovery.ErrLost})
		_, err := r.Schedule(t.Context(), Request{ID: "t2", Topic: "x"})
		rig.Want(t, "Schedule", err, ErrUnknown)
		<-r.Done()
		rig.Want(t, "Err", r.Err(), recovery.ErrLost)
		if rd := r.Readiness(); rd.LedgerOK || rd.Condition == "" {
			t.Errorf("readiness %+v", rd)
		}
		for what, err := range everything(r, d) {
			rig.Want(t, what, err, ErrClosed)
		}
		rig.Pass(time.Hour) // nothing more is delivered
		_ = r.Close(t.Context())
		rig.Want(t, "Err after Close", r.Err(), recovery.ErrLost)
	})
}

func TestOpenErrors(t *testing.T) {
	quiet := Config{Log: slog.New(slog.DiscardHandler)}
	t.Run("held", func(t *testing.T) {
		mem := memledger.New()
		_, err := mem.Adopt(t.Context())
		rig.Want(t, "Adopt", err, nil)
		_, err = Open(t.Context(), mem.Reopen(), quiet)
		rig.Want(t, "Open", err, recovery.ErrHeld)
	})
	for _, op := range []ledgertest.Op{ledgertest.Adopt, ledgertest.Setting, ledgertest.PutSetting, ledgertest.EachSetting, ledgertest.ListDead} {
		t.Run(string(op), func(t *testing.T) {
			mem := memledger.New()
			faulty := ledgertest.Wrap(mem)
			faulty.Inject(ledgertest.Fault{Op: op})
			_, err := Open(t.Context(), faulty, quiet)
			rig.Want(t, "Open", err, ledgertest.ErrInjected)
			s, err := Open(t.Context(), mem.Reopen(), quiet) // it has let the ledger go
			rig.Want(t, "Open afterwards", err, nil)
			rig.Want(t, "Close", s.Close(t.Context()), nil)
		})
	}
}
