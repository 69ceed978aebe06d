package tasks_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// Superseding is for a version of a task that is being delivered, dead, or kept as for any other.
func TestSupersedeAVersion(t *testing.T) {
	for name, from := range map[string]func(r *rig){
		"pending": inAnHour, "ready": dueNow, "delivering": handedOut, "dead": buried, "finished": finishedTask,
		"retrying": func(r *rig) { handedOut(r); r.settle(Verdict{Verb: Release, Delay: ptr(time.Hour)}, r.delivery) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, r *rig) {
				r.topic("x", keepsFinished)
				put := Request{ID: "t", Topic: "x", Delay: time.Hour, Supersede: true}
				_, err := r.Replace(WithVersion(t.Context(), AnyVersion), put)
				want(t, "of an absent task", err, ErrRevision)
				from(r)
				before := r.get("t")
				for _, v := range []Version{
					{Revision: before.Revision + 1, Created: before.Created},
					{Revision: before.Revision, Created: before.Created.Add(time.Millisecond)},
				} {
					_, err := r.Replace(WithVersion(t.Context(), v), put)
					want(t, "of another version", err, ErrRevision)
				}
				if got := r.get("t"); got.State != before.State || got.Revision != before.Revision {
					t.Fatalf("it has become %+v", got)
				}
				r.checkConsistency()
				got, err := r.Replace(WithVersion(t.Context(), Version{Revision: before.Revision, Created: before.Created}), put)
				if want(t, "Replace", err, nil); got.Revision != before.Revision+1 || got.State != Pending {
					t.Errorf("superseded: %+v", got)
				}
				_, err = r.Replace(WithVersion(t.Context(), Version{Revision: before.Revision}), put)
				want(t, "once more", err, ErrRevision)
				_, err = r.Replace(WithVersion(t.Context(), AnyVersion), put)
				want(t, "of any version", err, nil)
				r.checkConsistency()
			})
		})
	}
}

// Of callers that supersede the same version of a task together, one does.
func TestSupersedeTogether(t *testing.T) {
	for name, from := range map[string]func(r *rig){"delivering": handedOut, "dead": buried, "finished": finishedTask} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, r *rig) {
				r.topic("x", keepsFinished)
				from(r)
				for _, conditional := range []bool{true, false} {
					before := r.get("t")
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
							want(t, "Replace", err, ErrRevision)
						}
					}
					wanted := map[bool]int{true: 1, false: callers}[conditional]
					if got := r.get("t"); done != wanted || got.Revision != before.Revision+int64(wanted) {
						t.Errorf("%d have superseded it; it is %+v", done, got)
					}
					r.checkConsistency()
				}
			})
		})
	}
}

// A caller supersedes only tasks of its topics, and within its bounds.
func TestSupersedeGranted(t *testing.T) {
	for name, from := range map[string]func(r *rig){"delivering": handedOut, "dead": buried, "finished": finishedTask} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, r *rig) {
				r.topic("x", keepsFinished)
				from(r)
				before := r.get("t")
				own := WithGrant(t.Context(), &Grant{Topics: []string{"own.*"}})
				_, err := r.Replace(own, Request{ID: "t", Topic: "own.a", Supersede: true})
				want(t, "Replace of another caller's task", err, ErrNotGranted)
				results, err := r.ReplaceBatch(own, []Request{{ID: "t", Topic: "own.a", Supersede: true}, {ID: "u", Topic: "own.a", Delay: time.Hour, Supersede: true}})
				want(t, "ReplaceBatch", err, nil)
				want(t, "ReplaceBatch of another caller's task", results[0].Err, ErrNotGranted)
				want(t, "ReplaceBatch of its own", results[1].Err, nil)
				if got := r.get("t"); got.State != before.State || got.Revision != before.Revision {
					t.Errorf("it has become %+v", got)
				}
				bounded := WithGrant(t.Context(), &Grant{Topics: []string{"x", "own.*"}, MaxPending: 1})
				_, err = r.Replace(bounded, Request{ID: "t", Topic: "own.a", Supersede: true})
				want(t, "Replace beyond a bound", err, map[bool]error{true: ErrQuota}[name != "delivering"])
				r.checkQuotas()
				r.checkConsistency()
			})
		})
	}
}

// The follow-up of a dead task stays when that is superseded. If it dies once more, it has another.
func TestSupersedeAndOnDead(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.topic("x", TopicSettings{Retry: Retry{MaxAttempts: 1}, OnDead: OnDead{Topic: "y"}})
		d := r.one("t", "x")
		r.supersede(Request{ID: "t", Topic: "x"}) // while it is delivered: it does not die
		want(t, "Release", r.settle(Verdict{Verb: Release}, d).Err, ErrStale)
		r.wantFollowUps("superseded", "x", 0, 0, 0, 0)
		r.settle(Verdict{Verb: Release}, r.pull("x", "t")[0])
		r.wantFollowUps("dead", "x", 1, 1, 0, 0)
		r.supersede(Request{ID: "t", Topic: "x"})
		r.wantFollowUps("superseded", "x", 0, 1, 0, 0)
		r.settle(Verdict{Verb: Bury}, r.pull("x", "t")[0])
		r.wantFollowUps("dead again", "x", 1, 2, 0, 0)
		if n := r.counts("y").Ready; n != 2 {
			t.Errorf("%d follow-ups", n)
		}
	})
}

// Memory may be full: a dead task is not superseded then, and one that is delivered is, by one that
// takes no more of it.
func TestSupersedeWithoutRoom(t *testing.T) {
	bubble(t, Config{MaxPending: 2}, func(t *testing.T, r *rig) {
		r.bury("x", "dead")
		r.must(Request{ID: "other", Topic: "y", Delay: time.Hour})
		d := r.one("t", "x")
		_, err := r.Replace(t.Context(), Request{ID: "dead", Topic: "x", Supersede: true})
		want(t, "Replace of the dead task", err, ErrOverloaded)
		if got := r.get("dead"); got.State != Dead {
			t.Errorf("it has become %+v", got)
		}
		r.supersede(Request{ID: "t", Topic: "x"})
		r.stale("superseded", d)
		r.ack(r.pull("x", "t")[0])
		r.supersede(Request{ID: "dead", Topic: "x"})
		r.checkConsistency()
	})
}

// An outage of the ledger keeps no receiver waiting for a task that is being replaced.
func TestSettleWhileSupersededInAnOutage(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.topic("x", TopicSettings{Lease: time.Hour})
		d := r.one("t", "x")
		heal := r.outage()
		done := make(chan error, 1)
		go func() {
			_, err := r.Replace(context.Background(), Request{ID: "t", Topic: "x", Delay: time.Hour, Supersede: true})
			done <- err
		}()
		synctest.Wait()
		r.wantBusy(store.Replacing)
		a := atOnceDo(t, "a verdict", func() Settled { return r.settle(Verdict{Verb: Ack}, d) })
		want(t, "Ack", a.Err, ErrUnavailable)
		heal()
		want(t, "Replace", <-done, nil)
		r.stale("superseded", d)
		pass(time.Minute)
		r.checkConsistency()
	})
}
