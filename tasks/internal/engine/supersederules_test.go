package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// Superseding is for a version of a task that is being delivered, dead, or kept as for any other.
func TestSupersedeAVersion(t *testing.T) {
	for name, from := range map[string]func(r *rig.Rig){
		"pending": inAnHour, "ready": dueNow, "delivering": handedOut, "dead": buried, "finished": finishedTask,
		"retrying": func(r *rig.Rig) {
			handedOut(r)
			r.SettleOne(Verdict{Verb: Release, Delay: rig.Ptr(time.Hour)}, r.Delivery)
		},
	} {
		t.Run(name, func(t *testing.T) {
			rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
				r.MustSetTopic("x", keepsFinished)
				put := Request{ID: "t", Topic: "x", Delay: time.Hour, Supersede: true}
				_, err := r.Replace(WithVersion(t.Context(), AnyVersion), put)
				rig.Want(t, "of an absent task", err, ErrRevision)
				from(r)
				before := r.MustGet("t")
				for _, v := range []Version{
					{Revision: before.Revision + 1, Created: before.Created},
					{Revision: before.Revision, Created: before.Created.Add(time.Millisecond)},
				} {
					_, err := r.Replace(WithVersion(t.Context(), v), put)
					rig.Want(t, "of another version", err, ErrRevision)
				}
				if got := r.MustGet("t"); got.State != before.State || got.Revision != before.Revision {
					t.Fatalf("it has become %+v", got)
				}
				r.CheckConsistency()
				got, err := r.Replace(WithVersion(t.Context(), Version{Revision: before.Revision, Created: before.Created}), put)
				if rig.Want(t, "Replace", err, nil); got.Revision != before.Revision+1 || got.State != Pending {
					t.Errorf("superseded: %+v", got)
				}
				_, err = r.Replace(WithVersion(t.Context(), Version{Revision: before.Revision}), put)
				rig.Want(t, "once more", err, ErrRevision)
				_, err = r.Replace(WithVersion(t.Context(), AnyVersion), put)
				rig.Want(t, "of any version", err, nil)
				r.CheckConsistency()
			})
		})
	}
}

// Of callers that supersede the same version of a task together, one does.
func TestSupersedeTogether(t *testing.T) {
	for name, from := range map[string]func(r *rig.Rig){"delivering": handedOut, "dead": buried, "finished": finishedTask} {
		t.Run(name, func(t *testing.T) {
			rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
				r.MustSetTopic("x", keepsFinished)
				from(r)
				for _, conditional := range []bool{true, false} {
					before := r.MustGet("t")
					ctx := t.Context()
					if conditional {
						ctx = WithVersion(ctx, Version{Revision: before.Revision, Created: before.Created})
					}
					const callers = 10
					errs := make(chan error, callers)
					for i := range callers {
						go func() {
							_, err := r.Replace(ctx, Request{ID: "t", Topic: "x", Delay: time.Hour, Payload: fmt.Append(nil, i), Supersede: true})
							errs <- err
						}()
					}
					done := 0
					for range callers {
						if err := <-errs; err == nil {
							done++
						} else {
							rig.Want(t, "Replace", err, ErrRevision)
						}
					}
					wanted := map[bool]int{true: 1, false: callers}[conditional]
					if got := r.MustGet("t"); done != wanted || got.Revision != before.Revision+int64(wanted) {
						t.Errorf("%d have superseded it; it is %+v", done, got)
					}
					r.CheckConsistency()
				}
			})
		})
	}
}

// A caller supersedes only tasks of its topics, and within its bounds.
func TestSupersedeGranted(t *testing.T) {
	for name, from := range map[string]func(r *rig.Rig){"delivering": handedOut, "dead": buried, "finished": finishedTask} {
		t.Run(name, func(t *testing.T) {
			rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
				r.MustSetTopic("x", keepsFinished)
				from(r)
				before := r.MustGet("t")
				own := WithGrant(t.Context(), &Grant{Topics: []string{"own.*"}})
				_, err := r.Replace(own, Request{ID: "t", Topic: "own.a", Supersede: true})
				rig.Want(t, "Replace of another caller's task", err, ErrExists)
				results, err := r.ReplaceBatch(own, []Request{{ID: "t", Topic: "own.a", Supersede: true}, {ID: "u", Topic: "own.a", Delay: time.Hour, Supersede: true}})
				rig.Want(t, "ReplaceBatch", err, nil)
				rig.Want(t, "ReplaceBatch of another caller's task", results[0].Err, ErrExists)
				rig.Want(t, "ReplaceBatch of its own", results[1].Err, nil)
				if got := r.MustGet("t"); got.State != before.State || got.Revision != before.Revision {
					t.Errorf("it has become %+v", got)
				}
				bounded := WithGrant(t.Context(), &Grant{Topics: []string{"x", "own.*"}, MaxPending: 1})
				_, err = r.Replace(bounded, Request{ID: "t", Topic: "own.a", Supersede: true})
				rig.Want(t, "Replace beyond a bound", err, map[bool]error{true: ErrQuota}[name != "delivering"])
				r.CheckQuotas()
				r.CheckConsistency()
			})
		})
	}
}

// The follow-up of a dead task stays when that is superseded. If it dies once more, it has another.
func TestSupersedeAndOnDead(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Retry: Retry{MaxAttempts: 1}, OnDead: OnDead{Topic: "y"}})
		d := r.One("t", "x")
		mustSupersede(r, Request{ID: "t", Topic: "x"}) // while it is delivered: it does not die
		rig.Want(t, "Release", r.SettleOne(Verdict{Verb: Release}, d).Err, ErrStale)
		r.WantFollowUps("superseded", "x", 0, 0, 0, 0)
		r.SettleOne(Verdict{Verb: Release}, r.Pull("x", "t")[0])
		r.WantFollowUps("dead", "x", 1, 1, 0, 0)
		mustSupersede(r, Request{ID: "t", Topic: "x"})
		r.WantFollowUps("superseded", "x", 0, 1, 0, 0)
		r.SettleOne(Verdict{Verb: Bury}, r.Pull("x", "t")[0])
		r.WantFollowUps("dead again", "x", 1, 2, 0, 0)
		if n := r.Counts("y").Ready; n != 2 {
			t.Errorf("%d follow-ups", n)
		}
	})
}

// Memory may be full: a dead task is not superseded then, and one that is delivered is, by one that
// takes no more of it.
func TestSupersedeWithoutRoom(t *testing.T) {
	rig.Bubble(t, Config{MaxPending: 2}, func(t *testing.T, r *rig.Rig) {
		r.Bury("x", "dead")
		r.Must(Request{ID: "other", Topic: "y", Delay: time.Hour})
		d := r.One("t", "x")
		_, err := r.Replace(t.Context(), Request{ID: "dead", Topic: "x", Supersede: true})
		rig.Want(t, "Replace of the dead task", err, ErrOverloaded)
		if got := r.MustGet("dead"); got.State != Dead {
			t.Errorf("it has become %+v", got)
		}
		mustSupersede(r, Request{ID: "t", Topic: "x"})
		stale(r, "superseded", d)
		r.Ack(r.Pull("x", "t")[0])
		mustSupersede(r, Request{ID: "dead", Topic: "x"})
		r.CheckConsistency()
	})
}

// An outage of the ledger keeps no receiver waiting for a task that is being replaced.
func TestSettleWhileSupersededInAnOutage(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Lease: time.Hour})
		d := r.One("t", "x")
		heal := outage(r)
		done := make(chan error, 1)
		go func() {
			_, err := r.Replace(context.Background(), Request{ID: "t", Topic: "x", Delay: time.Hour, Supersede: true})
			done <- err
		}()
		synctest.Wait()
		wantBusy(r, store.Replacing)
		a := atOnceDo(t, "a verdict", func() Settled { return r.SettleOne(Verdict{Verb: Ack}, d) })
		rig.Want(t, "Ack", a.Err, ErrUnavailable)
		heal()
		rig.Want(t, "Replace", <-done, nil)
		stale(r, "superseded", d)
		rig.Pass(time.Minute)
		r.CheckConsistency()
	})
}

// In a topic that coalesces, the task of a group that was chosen may be superseded while it is
// delivered. It comes once more, and those that were skipped for it do not.
func TestSupersedeAndCoalesce(t *testing.T) {
	missing(t, MisfireCoalesce, func(t *testing.T, r *rig.Rig) {
		inTopic(r, time.Second, "t0", "g")
		inTopic(r, 2*time.Second, "t1", "g")
		down(r, 10*time.Minute)
		d := r.Pull("x", "t1")[0]
		mustSupersede(r, Request{ID: "t1", Topic: "x", Group: "g", Delay: time.Minute})
		stale(r, "superseded", d)
		come(r, 1)
		rig.Pass(time.Minute)
		come(r, 1, "t1")
		inTopic(r, time.Minute, "t2", "g")
		mustSupersede(r, Request{ID: "t2", Topic: "x", Group: "g", Held: true})
		inTopic(r, time.Minute, "t3", "g")
		down(r, 10*time.Minute)
		come(r, 0, "t3")
		wantHeld(r, "held", "t2")
	})
}

// With each real ledger, what is dead, or finished and kept, is superseded by one write. It is that
// task alone after a restart.
func TestSupersedeOnRealLedgers(t *testing.T) {
	dir, server := t.TempDir(), redistest.Start(t)
	for name, ledger := range map[string]func() (recovery.Ledger, error){
		"disk": func() (recovery.Ledger, error) { return diskledger.Open(dir, diskledger.Options{}) },
		"redis": func() (recovery.Ledger, error) {
			return redisledger.Open(redisledger.Options{
				URL: server.URL(), Node: "a", Shards: 2, FailoverAfter: time.Second, Log: slog.New(slog.DiscardHandler),
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			open := func() *Scheduler {
				l, err := ledger()
				rig.Want(t, "opening the ledger", err, nil)
				s, err := Open(t.Context(), l, Config{Log: slog.New(slog.DiscardHandler)})
				rig.Want(t, "Open", err, nil)
				<-rig.Engine(s).Reading.Replayed
				return s
			}
			s := open()
			_, err := s.SetTopic(t.Context(), "x", TopicSettings{KeepFinished: time.Hour}, -1)
			rig.Want(t, "SetTopic", err, nil)
			ends := map[string]Verb{"dead": Bury, "kept": Ack, "open": 0}
			receipts := make(map[string]string)
			for id := range ends {
				_, err := s.Schedule(t.Context(), Request{ID: id, Topic: "x"})
				rig.Want(t, "Schedule", err, nil)
				ds, err := s.Reserve(t.Context(), "x", 1, time.Minute, time.Minute)
				if rig.Want(t, "Reserve", err, nil); len(ds) != 1 {
					t.Fatal("it is not reserved")
				}
				receipts[id] = ds[0].Receipt()
				if ends[id] != 0 {
					_, err = s.Settle(t.Context(), Verdict{Verb: ends[id]}, []string{receipts[id]})
					rig.Want(t, "Settle", err, nil)
				}
			}
			for round := range 2 { // the second one of tasks that wait
				for id := range ends {
					_, err := s.Replace(t.Context(), Request{ID: id, Topic: "y", Delay: time.Hour, Payload: []byte("new"), Supersede: true})
					rig.Want(t, "Replace", err, nil)
				}
				rig.Want(t, "Close", s.Close(t.Context()), nil)
				s = open()
				for id := range ends {
					got, err := s.Get(t.Context(), id)
					if rig.Want(t, "Get", err, nil); got.State != Pending || got.Topic != "y" || got.Revision != int64(2+round) || string(got.Payload) != "new" {
						t.Errorf("%s: %+v", id, got)
					}
					answers, err := s.Settle(t.Context(), Verdict{Verb: Release}, []string{receipts[id]})
					rig.Want(t, "Settle", err, nil)
					rig.Want(t, "an old receipt", answers[0].Err, ErrStale)
				}
				if n := s.Stats().Total; n.Pending != 3 || n.Dead+n.Finished+n.Delivering != 0 {
					t.Errorf("%+v", n)
				}
			}
			rig.Want(t, "Close", s.Close(t.Context()), nil)
		})
	}
}
