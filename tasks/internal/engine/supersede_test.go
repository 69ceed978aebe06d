package engine_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// mustSupersede replaces a task, whatever its state, and wants that to be accepted.
func mustSupersede(r *rig.Rig, req Request) Task {
	r.T.Helper()
	req.Supersede = true
	task, err := r.Replace(r.T.Context(), req)
	rig.Want(r.T, "Replace of "+req.ID, err, nil)
	return task
}

// stale wants each verdict on a delivery to be refused as stale.
func stale(r *rig.Rig, what string, d Delivery) {
	r.T.Helper()
	for _, v := range []Verb{Ack, Release, Extend, Bury, Return} {
		rig.Want(r.T, fmt.Sprint(what, ": verb ", v), r.SettleOne(Verdict{Verb: v}, d).Err, ErrStale)
	}
}

// The receipt of a delivery whose task was superseded settles neither that nor the new task: while
// this waits, is ready, is delivered, after a restart and after a crash. It is stale also where the
// lease has run out since. The new task is delivered as if it were the first.
func TestSupersededReceipts(t *testing.T) {
	for _, c := range []struct {
		name     string
		settings TopicSettings
		end      func(r *rig.Rig, d Delivery) // of the first delivery
	}{
		{"open", TopicSettings{}, func(*rig.Rig, Delivery) {}},
		{"open and claimed", TopicSettings{CountCrashes: true}, func(*rig.Rig, Delivery) {}},
		{"open since before a restart", TopicSettings{}, func(r *rig.Rig, _ Delivery) { r.Restart(); synctest.Wait() }},
		{"lost by a crash", TopicSettings{}, func(r *rig.Rig, _ Delivery) { r.Crash(); synctest.Wait() }},
		{"lost and delivered again", TopicSettings{}, func(r *rig.Rig, _ Delivery) { r.Crash(); rig.Pass(time.Second); r.Pull("x", "t") }},
		{"failed", TopicSettings{}, func(r *rig.Rig, d Delivery) { r.SettleOne(Verdict{Verb: Release}, d) }},
		{"its lease run out", TopicSettings{}, func(r *rig.Rig, _ Delivery) { rig.Pass(time.Minute) }},
		{"dead", TopicSettings{}, func(r *rig.Rig, d Delivery) { r.SettleOne(Verdict{Verb: Bury}, d) }},
		{"dead before a crash", TopicSettings{}, func(r *rig.Rig, d Delivery) { r.SettleOne(Verdict{Verb: Bury}, d); r.Crash(); synctest.Wait() }},
		{"dead by its lease", TopicSettings{Retry: Retry{MaxAttempts: 1}}, func(r *rig.Rig, _ Delivery) { rig.Pass(time.Minute) }},
		{"kept, skipped", TopicSettings{KeepFinished: 10 * time.Hour}, func(r *rig.Rig, d Delivery) {
			r.SettleOne(Verdict{Verb: Release, Delay: rig.Ptr(time.Hour)}, d)
			rig.Want(r.T, "Cancel", r.Cancel(r.T.Context(), "t"), nil)
		}},
	} {
		for _, again := range []struct {
			name string
			do   func(r *rig.Rig)
		}{
			{"", func(*rig.Rig) {}}, {"restarted", (*rig.Rig).Restart}, {"crashed", (*rig.Rig).Crash},
		} {
			t.Run(c.name+" "+again.name, func(t *testing.T) {
				rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
					c.settings.Lease = 10 * time.Second
					r.MustSetTopic("x", c.settings)
					d := r.One("t", "x")
					c.end(r, d)
					before := r.MustGet("t")
					got := mustSupersede(r, Request{ID: "t", Topic: "x", Delay: 2 * time.Minute, Payload: []byte("2")})
					if !got.Created.Equal(before.Created) || got.Revision != before.Revision+1 || got.Attempt != 0 || got.State != Pending || got.LastError != "" {
						t.Errorf("superseded: %+v; before: %+v", got, before)
					}
					if got.Repeated != (before.State != Finished) {
						t.Errorf("repeated: %v", got.Repeated)
					}
					if now := r.MustGet("t"); now.State != Pending || now.Revision != got.Revision || string(now.Payload) != "2" {
						t.Errorf("afterwards: %+v", now)
					}
					stale(r, "while it waits", d)
					again.do(r)
					synctest.Wait()
					stale(r, "while it waits", d)
					rig.Pass(time.Minute) // any lease of before is over
					stale(r, "still", d)
					rig.Pass(time.Minute)
					stale(r, "while it is ready", d)
					again.do(r)
					synctest.Wait()
					stale(r, "while it is ready", d)
					next := r.Pull("x", "t")[0]
					if next.Attempt != 1 {
						t.Errorf("attempt %d", next.Attempt)
					}
					stale(r, "while it is delivered", d)
					again.do(r)
					synctest.Wait()
					stale(r, "while it is delivered", d)
					r.CheckConsistency()
					r.Ack(next)
					stale(r, "when it has gone", d)
					r.CheckConsistency()
				})
			})
		}
	}
}

// A task that was acknowledged and kept is superseded as well. Its acknowledgement, repeated, gets
// the answer of the first, and does nothing to the new task.
func TestSupersedeAcknowledged(t *testing.T) {
	t.Parallel()
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.KeepsFor("x", 10*time.Hour)
		d := r.One("t", "x")
		r.Ack(d)
		for n := range 3 {
			u := subscribe(r, EventFilter{})
			got := mustSupersede(r, Request{ID: "t", Topic: "x", Delay: time.Hour, Payload: []byte("2")})
			if got.Repeated || got.Revision != int64(2+n) || got.State != Pending || !got.Finished.IsZero() {
				t.Errorf("superseded: %+v", got)
			}
			if events := told(r, u); len(events) != 1 || r.Counts("x").Scheduled == 0 {
				t.Errorf("events %q, counts %+v", events, r.Counts("x"))
			}
			wantKept(r, "x")
			r.InLedger("t", recovery.Pending)
			r.Ack(d)
			for _, v := range []Verb{Release, Extend, Bury, Return} {
				rig.Want(t, "another verdict", r.SettleOne(Verdict{Verb: v}, d).Err, ErrStale)
			}
			if now := r.MustGet("t"); now.State != Pending {
				t.Errorf("afterwards: %+v", now)
			}
			r.Crash()
			rig.Pass(time.Hour + time.Second)
			stale(r, "after a crash", d)
			d = r.Pull("x", "t")[0]
			r.Ack(d)
			wantKept(r, "x", "t")
			r.CheckConsistency()
		}
	})
}

// While it is not known yet whether a task is replaced, its receipts wait. If it is, they are
// stale. If that is taken back, they count.
func TestSettleWhileSuperseded(t *testing.T) {
	for _, undone := range []bool{false, true} {
		for _, v := range []Verb{Ack, Release, Extend, Bury, Return} {
			t.Run(fmt.Sprint("undone=", undone, " ", v), func(t *testing.T) {
				rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
					r.MustSetTopic("x", TopicSettings{Lease: time.Minute})
					d := r.One("t", "x")
					release := superseding(r, undone)
					rig.Pass(patience(r) / 2)
					answer := make(chan Settled, 1)
					go func() { answer <- r.SettleOne(Verdict{Verb: v}, d) }()
					rig.Pass(time.Millisecond)
					if len(answer) != 0 {
						t.Fatalf("it did not wait: %+v", <-answer)
					}
					if got := r.Counts("x"); got.Delivering != 1 || got.Pending != 0 {
						t.Errorf("meanwhile: %+v", got)
					}
					if !undone {
						release()
						rig.Want(t, "the verdict", (<-answer).Err, ErrStale)
						wantEnd(r, recovery.Pending, Pending)
						r.CheckConsistency()
						return
					}
					// The caller of Replace gives up, and that of the verdict nearly.
					rig.Pass(r.Engine().Config.AnswerWithin - patience(r)/4)
					release()
					if a := <-answer; a.Err != nil {
						t.Errorf("the verdict: %v", a.Err)
					}
					rig.Pass(0)
					end := map[Verb]State{Ack: 0, Release: Pending, Extend: Delivering, Bury: Dead, Return: Ready}[v]
					wantEnd(r, map[State]recovery.Place{0: recovery.Nowhere, Dead: recovery.Dead}[end]|placeOf(end), end)
					r.CheckConsistency()
				})
			})
		}
	}
}

// placeOf is where the ledger has a task that is alive.
func placeOf(s State) recovery.Place {
	if s == 0 || s == Dead {
		return 0
	}
	return recovery.Pending
}

// superseding begins to replace the task "t" of the topic "x", and keeps the ledger from answering
// until release is called. undone: the write waits behind another one, so that its caller can give
// it up.
func superseding(r *rig.Rig, undone bool) (release func()) {
	r.T.Helper()
	_, release = r.Faulty.Hold(ledgertest.Apply)
	if undone {
		go func() {
			_, _ = r.Schedule(context.Background(), Request{ID: "before", Topic: "other", Delay: time.Hour})
		}()
		synctest.Wait()
	}
	go func() {
		_, err := r.Replace(context.Background(), Request{ID: "t", Topic: "x", Delay: time.Hour, Supersede: true})
		switch {
		case undone && !errors.Is(err, ErrUnavailable):
			r.T.Errorf("Replace = %v", err)
		case !undone && err != nil:
			r.T.Errorf("Replace = %v", err)
		}
	}()
	synctest.Wait()
	wantBusy(r, store.Replacing)
	return release
}

// What a handler returns does not count once its task is superseded, and does if that is taken
// back, also if it returns in between. Its worker, and its places, are free afterwards.
func TestSupersedeUnderAHandler(t *testing.T) {
	t.Parallel()
	ends := map[string]error{"success": nil, "failure": errors.New("no"), "death": Kill(errors.New("no")), "later": ErrLater}
	for name, end := range ends {
		for _, when := range []string{"after", "meanwhile", "undone"} {
			t.Run(name+" "+when, func(t *testing.T) {
				rig.Bubble(t, Config{MaxDeliveries: 2}, func(t *testing.T, r *rig.Rig) {
					r.MustSetTopic("x", TopicSettings{Lease: time.Minute, Concurrency: 1})
					gate := make(chan struct{})
					var got []Delivery
					r.MustHandle("x", func(_ context.Context, d *Delivery) error {
						got = append(got, *d)
						<-gate
						if d.Revision == 1 {
							return end
						}
						return nil
					})
					dueNow(r)
					rig.Pass(0)
					release := superseding(r, when == "undone")
					if when == "after" {
						release()
						rig.Pass(0)
						close(gate)
						rig.Pass(0)
					} else {
						close(gate)
						rig.Pass(0)
						wantBusy(r, store.Replacing)
						if when == "undone" {
							rig.Pass(3 * time.Second)
						}
						release()
						rig.Pass(0)
					}
					if when == "undone" {
						wantEnd(r, map[string]recovery.Place{"success": recovery.Nowhere, "failure": recovery.Pending, "death": recovery.Dead, "later": recovery.Pending}[name],
							map[string]State{"success": 0, "failure": Pending, "death": Dead, "later": Delivering}[name])
						r.CheckConsistency()
						return
					}
					wantEnd(r, recovery.Pending, Pending)
					if c := r.Counts("x"); c.Delivered+c.Failed+c.Died+c.LeaseExpired != 0 || c.Delivering != 0 {
						t.Errorf("counts %+v", c)
					}
					stale(r, "at the end of the handler", got[0])
					r.CheckConsistency()
					rig.Pass(time.Hour)
					if len(got) != 2 || got[1].Attempt != 1 || got[1].Revision != 2 {
						t.Errorf("deliveries: %+v", got)
					}
					wantEnd(r, recovery.Nowhere, 0)
					if c, s := r.Counts("x"), r.Stats(); c.Delivered != 1 || c.Failed+c.Died+c.LeaseExpired != 0 || r.Engine().Dispatch.ReservedInFlight != 0 || s.Rescued != 0 {
						t.Errorf("counts %+v, %d reserved", c, r.Engine().Dispatch.ReservedInFlight)
					}
					r.CheckConsistency()
				})
			})
		}
	}
}

// A lease that runs out while the ledger has not answered counts only if the task is not replaced.
func TestLeaseRunsOutWhileSuperseded(t *testing.T) {
	for _, undone := range []bool{false, true} {
		t.Run(fmt.Sprint("undone=", undone), func(t *testing.T) {
			rig.Bubble(t, Config{AnswerWithin: 10 * time.Second}, func(t *testing.T, r *rig.Rig) {
				r.MustSetTopic("x", TopicSettings{Lease: 2 * time.Second, Retry: Retry{MinBackoff: time.Hour, MaxBackoff: time.Hour}})
				d := r.One("t", "x")
				release := superseding(r, undone)
				rig.Pass(5 * time.Second)
				wantBusy(r, store.Replacing)
				if undone {
					rig.Pass(10 * time.Second)
				}
				release()
				rig.Pass(2 * time.Second)
				wantEnd(r, recovery.Pending, Pending)
				got, c := r.MustGet("t"), r.Counts("x")
				if undone && (got.Revision != 1 || got.Attempt != 1 || c.LeaseExpired != 1) || !undone && (got.Revision != 2 || got.Attempt != 0 || c.LeaseExpired+c.Failed != 0) {
					t.Errorf("afterwards %+v, %+v", got, c)
				}
				stale(r, "afterwards", d)
				r.CheckConsistency()
			})
		})
	}
}

// A delivery that is superseded gives up its places once: in its group, and among those that are
// out.
func TestSupersedeFreesPlaces(t *testing.T) {
	rig.Bubble(t, Config{MaxInFlight: 3}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{ConcurrencyPerGroup: 1, Lease: time.Hour})
		req := func(id, group string) Request { return Request{ID: id, Topic: "x", Group: group} }
		for _, id := range []string{"a1", "a2", "a3"} {
			r.Must(req(id, "a"))
		}
		r.Must(req("b1", "b"))
		r.Must(req("b2", "b"))
		first := r.Pull("x", "a1", "b1")
		late := req("a1", "b") // it comes back in another group
		late.Delay = time.Hour
		mustSupersede(r, late)
		r.CheckConsistency()
		second := r.Pull("x", "a2")
		r.Pull("x")
		stale(r, "of the superseded one", first[0])
		r.Pull("x")
		r.CheckConsistency()
		r.Ack(first[1])
		third := r.Pull("x", "b2")
		r.Pull("x")
		mustSupersede(r, req("b2", "b")) // due at once, behind nothing
		r.CheckConsistency()
		r.Ack(second[0])
		r.Pull("x", "b2", "a3")
		stale(r, "of the superseded one", third[0])
		if got := r.Engine().Dispatch.LeasedOut; got != 2 {
			t.Errorf("%d are out", got)
		}
		r.CheckConsistency()
	})
}
