package tasks_test

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
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// supersede replaces a task, whatever its state, and wants that to be accepted.
func (r *rig) supersede(req Request) Task {
	r.t.Helper()
	req.Supersede = true
	task, err := r.Replace(r.t.Context(), req)
	want(r.t, "Replace of "+req.ID, err, nil)
	return task
}

// stale wants each verdict on a delivery to be refused as stale.
func (r *rig) stale(what string, d Delivery) {
	r.t.Helper()
	for _, v := range []Verb{Ack, Release, Extend, Bury, Return} {
		want(r.t, fmt.Sprint(what, ": verb ", v), r.settle(Verdict{Verb: v}, d).Err, ErrStale)
	}
}

// The receipt of a delivery whose task was superseded settles neither that nor the new task: while
// this waits, is ready, is delivered, after a restart and after a crash. It is stale also where the
// lease has run out since. The new task is delivered as if it were the first.
func TestSupersededReceipts(t *testing.T) {
	for _, c := range []struct {
		name     string
		settings TopicSettings
		end      func(r *rig, d Delivery) // of the first delivery
	}{
		{"open", TopicSettings{}, func(*rig, Delivery) {}},
		{"open and claimed", TopicSettings{CountCrashes: true}, func(*rig, Delivery) {}},
		{"open since before a restart", TopicSettings{}, func(r *rig, _ Delivery) { r.restart(); synctest.Wait() }},
		{"lost by a crash", TopicSettings{}, func(r *rig, _ Delivery) { r.crash(); synctest.Wait() }},
		{"lost and delivered again", TopicSettings{}, func(r *rig, _ Delivery) { r.crash(); pass(time.Second); r.pull("x", "t") }},
		{"failed", TopicSettings{}, func(r *rig, d Delivery) { r.settle(Verdict{Verb: Release}, d) }},
		{"its lease run out", TopicSettings{}, func(r *rig, _ Delivery) { pass(time.Minute) }},
		{"dead", TopicSettings{}, func(r *rig, d Delivery) { r.settle(Verdict{Verb: Bury}, d) }},
		{"dead before a crash", TopicSettings{}, func(r *rig, d Delivery) { r.settle(Verdict{Verb: Bury}, d); r.crash(); synctest.Wait() }},
		{"dead by its lease", TopicSettings{Retry: Retry{MaxAttempts: 1}}, func(r *rig, _ Delivery) { pass(time.Minute) }},
		{"kept, skipped", TopicSettings{KeepFinished: 10 * time.Hour}, func(r *rig, d Delivery) {
			r.settle(Verdict{Verb: Release, Delay: ptr(time.Hour)}, d)
			want(r.t, "Cancel", r.Cancel(r.t.Context(), "t"), nil)
		}},
	} {
		for _, again := range []struct {
			name string
			do   func(r *rig)
		}{
			{"", func(*rig) {}}, {"restarted", (*rig).restart}, {"crashed", (*rig).crash},
		} {
			t.Run(c.name+" "+again.name, func(t *testing.T) {
				bubble(t, Config{}, func(t *testing.T, r *rig) {
					c.settings.Lease = 10 * time.Second
					r.topic("x", c.settings)
					d := r.one("t", "x")
					c.end(r, d)
					before := r.get("t")
					got := r.supersede(Request{ID: "t", Topic: "x", Delay: 2 * time.Minute, Payload: []byte("2")})
					if !got.Created.Equal(before.Created) || got.Revision != before.Revision+1 || got.Attempt != 0 || got.State != Pending || got.LastError != "" {
						t.Errorf("superseded: %+v; before: %+v", got, before)
					}
					if got.Repeated != (before.State != Finished) {
						t.Errorf("repeated: %v", got.Repeated)
					}
					if now := r.get("t"); now.State != Pending || now.Revision != got.Revision || string(now.Payload) != "2" {
						t.Errorf("afterwards: %+v", now)
					}
					r.stale("while it waits", d)
					again.do(r)
					synctest.Wait()
					r.stale("while it waits", d)
					pass(time.Minute) // any lease of before is over
					r.stale("still", d)
					pass(time.Minute)
					r.stale("while it is ready", d)
					again.do(r)
					synctest.Wait()
					r.stale("while it is ready", d)
					next := r.pull("x", "t")[0]
					if next.Attempt != 1 {
						t.Errorf("attempt %d", next.Attempt)
					}
					r.stale("while it is delivered", d)
					again.do(r)
					synctest.Wait()
					r.stale("while it is delivered", d)
					r.checkConsistency()
					r.ack(next)
					r.stale("when it has gone", d)
					r.checkConsistency()
				})
			})
		}
	}
}

// A task that was acknowledged and kept is superseded as well. Its acknowledgement, repeated, gets
// the answer of the first, and does nothing to the new task.
func TestSupersedeAcknowledged(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.keepsFor("x", 10*time.Hour)
		d := r.one("t", "x")
		r.ack(d)
		for n := range 3 {
			u := r.subscribe(EventFilter{})
			got := r.supersede(Request{ID: "t", Topic: "x", Delay: time.Hour, Payload: []byte("2")})
			if got.Repeated || got.Revision != int64(2+n) || got.State != Pending || !got.Finished.IsZero() {
				t.Errorf("superseded: %+v", got)
			}
			if events := r.told(u); len(events) != 1 || r.counts("x").Scheduled == 0 {
				t.Errorf("events %q, counts %+v", events, r.counts("x"))
			}
			r.wantKept("x")
			r.inLedger("t", recovery.Pending)
			r.ack(d)
			for _, v := range []Verb{Release, Extend, Bury, Return} {
				want(t, "another verdict", r.settle(Verdict{Verb: v}, d).Err, ErrStale)
			}
			if now := r.get("t"); now.State != Pending {
				t.Errorf("afterwards: %+v", now)
			}
			r.crash()
			pass(time.Hour + time.Second)
			r.stale("after a crash", d)
			d = r.pull("x", "t")[0]
			r.ack(d)
			r.wantKept("x", "t")
			r.checkConsistency()
		}
	})
}

// While it is not known yet whether a task is replaced, its receipts wait. If it is, they are
// stale. If that is taken back, they count.
func TestSettleWhileSuperseded(t *testing.T) {
	for _, undone := range []bool{false, true} {
		for _, v := range []Verb{Ack, Release, Extend, Bury, Return} {
			t.Run(fmt.Sprint("undone=", undone, " ", v), func(t *testing.T) {
				bubble(t, Config{}, func(t *testing.T, r *rig) {
					r.topic("x", TopicSettings{Lease: time.Minute})
					d := r.one("t", "x")
					release := r.superseding(undone)
					pass(r.patience() / 2)
					answer := make(chan Settled, 1)
					go func() { answer <- r.settle(Verdict{Verb: v}, d) }()
					pass(time.Millisecond)
					if len(answer) != 0 {
						t.Fatalf("it did not wait: %+v", <-answer)
					}
					if got := r.counts("x"); got.Delivering != 1 || got.Pending != 0 {
						t.Errorf("meanwhile: %+v", got)
					}
					if !undone {
						release()
						want(t, "the verdict", (<-answer).Err, ErrStale)
						r.wantEnd(recovery.Pending, Pending)
						r.checkConsistency()
						return
					}
					// The caller of Replace gives up, and that of the verdict nearly.
					pass(r.Engine().Config.AnswerWithin - r.patience()/4)
					release()
					if a := <-answer; a.Err != nil {
						t.Errorf("the verdict: %v", a.Err)
					}
					pass(0)
					end := map[Verb]State{Ack: 0, Release: Pending, Extend: Delivering, Bury: Dead, Return: Ready}[v]
					r.wantEnd(map[State]recovery.Place{0: recovery.Nowhere, Dead: recovery.Dead}[end]|placeOf(end), end)
					r.checkConsistency()
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
func (r *rig) superseding(undone bool) (release func()) {
	r.t.Helper()
	_, release = r.faulty.Hold(ledgertest.Apply)
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
			r.t.Errorf("Replace = %v", err)
		case !undone && err != nil:
			r.t.Errorf("Replace = %v", err)
		}
	}()
	synctest.Wait()
	r.wantBusy(store.Replacing)
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
				bubble(t, Config{MaxDeliveries: 2}, func(t *testing.T, r *rig) {
					r.topic("x", TopicSettings{Lease: time.Minute, Concurrency: 1})
					gate := make(chan struct{})
					var got []Delivery
					r.handle("x", func(_ context.Context, d *Delivery) error {
						got = append(got, *d)
						<-gate
						if d.Revision == 1 {
							return end
						}
						return nil
					})
					dueNow(r)
					pass(0)
					release := r.superseding(when == "undone")
					if when == "after" {
						release()
						pass(0)
						close(gate)
						pass(0)
					} else {
						close(gate)
						pass(0)
						r.wantBusy(store.Replacing)
						if when == "undone" {
							pass(3 * time.Second)
						}
						release()
						pass(0)
					}
					if when == "undone" {
						r.wantEnd(map[string]recovery.Place{"success": recovery.Nowhere, "failure": recovery.Pending, "death": recovery.Dead, "later": recovery.Pending}[name],
							map[string]State{"success": 0, "failure": Pending, "death": Dead, "later": Delivering}[name])
						r.checkConsistency()
						return
					}
					r.wantEnd(recovery.Pending, Pending)
					if c := r.counts("x"); c.Delivered+c.Failed+c.Died+c.LeaseExpired != 0 || c.Delivering != 0 {
						t.Errorf("counts %+v", c)
					}
					r.stale("at the end of the handler", got[0])
					r.checkConsistency()
					pass(time.Hour)
					if len(got) != 2 || got[1].Attempt != 1 || got[1].Revision != 2 {
						t.Errorf("deliveries: %+v", got)
					}
					r.wantEnd(recovery.Nowhere, 0)
					if c, s := r.counts("x"), r.Stats(); c.Delivered != 1 || c.Failed+c.Died+c.LeaseExpired != 0 || r.Engine().Dispatch.ReservedInFlight != 0 || s.Rescued != 0 {
						t.Errorf("counts %+v, %d reserved", c, r.Engine().Dispatch.ReservedInFlight)
					}
					r.checkConsistency()
				})
			})
		}
	}
}

// A lease that runs out while the ledger has not answered counts only if the task is not replaced.
func TestLeaseRunsOutWhileSuperseded(t *testing.T) {
	for _, undone := range []bool{false, true} {
		t.Run(fmt.Sprint("undone=", undone), func(t *testing.T) {
			bubble(t, Config{AnswerWithin: 10 * time.Second}, func(t *testing.T, r *rig) {
				r.topic("x", TopicSettings{Lease: 2 * time.Second, Retry: Retry{MinBackoff: time.Hour, MaxBackoff: time.Hour}})
				d := r.one("t", "x")
				release := r.superseding(undone)
				pass(5 * time.Second)
				r.wantBusy(store.Replacing)
				if undone {
					pass(10 * time.Second)
				}
				release()
				pass(2 * time.Second)
				r.wantEnd(recovery.Pending, Pending)
				got, c := r.get("t"), r.counts("x")
				if undone && (got.Revision != 1 || got.Attempt != 1 || c.LeaseExpired != 1) || !undone && (got.Revision != 2 || got.Attempt != 0 || c.LeaseExpired+c.Failed != 0) {
					t.Errorf("afterwards %+v, %+v", got, c)
				}
				r.stale("afterwards", d)
				r.checkConsistency()
			})
		})
	}
}

// A delivery that is superseded gives up its places once: in its group, and among those that are
// out.
func TestSupersedeFreesPlaces(t *testing.T) {
	bubble(t, Config{MaxInFlight: 3}, func(t *testing.T, r *rig) {
		r.topic("x", TopicSettings{ConcurrencyPerGroup: 1, Lease: time.Hour})
		req := func(id, group string) Request { return Request{ID: id, Topic: "x", Group: group} }
		for _, id := range []string{"a1", "a2", "a3"} {
			r.must(req(id, "a"))
		}
		r.must(req("b1", "b"))
		r.must(req("b2", "b"))
		first := r.pull("x", "a1", "b1")
		late := req("a1", "b") // it comes back in another group
		late.Delay = time.Hour
		r.supersede(late)
		r.checkConsistency()
		second := r.pull("x", "a2")
		r.pull("x")
		r.stale("of the superseded one", first[0])
		r.pull("x")
		r.checkConsistency()
		r.ack(first[1])
		third := r.pull("x", "b2")
		r.pull("x")
		r.supersede(req("b2", "b")) // due at once, behind nothing
		r.checkConsistency()
		r.ack(second[0])
		r.pull("x", "b2", "a3")
		r.stale("of the superseded one", third[0])
		if got := r.Engine().Dispatch.LeasedOut; got != 2 {
			t.Errorf("%d are out", got)
		}
		r.checkConsistency()
	})
}
