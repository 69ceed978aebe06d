package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/memledger"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// herd schedules n tasks of the topic x in an hour.
func (r *rig) herd(n int) {
	r.t.Helper()
	var requests []Request
	for i := range n {
		requests = append(requests, Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Hour})
		if len(requests) == MaxBatch || i == n-1 {
			results, err := r.ScheduleBatch(r.t.Context(), requests)
			want(r.t, "ScheduleBatch", err, nil)
			for _, res := range results {
				want(r.t, res.ID, res.Err, nil)
			}
			requests = requests[:0]
		}
	}
}

// purge purges the topic x.
func (r *rig) purge(p Purged, kind error) {
	r.t.Helper()
	got, err := r.Purge(r.t.Context(), "x")
	if want(r.t, "Purge", err, kind); got != p {
		r.t.Fatalf("purged %+v, want %+v", got, p)
	}
}

func TestPurge(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		_, err := r.Purge(t.Context(), "no topic")
		want(t, "Purge", err, ErrInvalid)
		r.purge(Purged{}, nil) // a topic that no task has
		buried(r)
		d := r.one("out", "x")
		r.must(Request{ID: "ready", Topic: "x"})
		r.must(Request{ID: "pending", Topic: "x", Delay: time.Hour})
		retried := r.one("retried", "y")
		r.settle(Verdict{Verb: Release, Delay: ptr(time.Minute)}, retried)
		r.must(Request{ID: "other", Topic: "y", Delay: time.Hour})

		r.purge(Purged{Cancelled: 2, Delivering: 1}, nil)
		for _, id := range []string{"ready", "pending"} {
			r.inLedger(id, recovery.Nowhere)
			want(t, "Cancel again", r.Cancel(t.Context(), id), nil)
		}
		r.inLedger("t", recovery.Dead)
		r.inLedger("other", recovery.Pending)
		r.inLedger("retried", recovery.Pending)
		if c := r.counts("x"); c.Cancelled != 2 || c.Pending != 0 || c.Ready != 0 || c.Delivering != 1 || c.Dead != 1 {
			t.Errorf("counts %+v", c)
		}
		r.ack(d)
		r.checkConsistency()
		pass(2 * time.Hour)
		r.pull("x")
		r.restart()
		synctest.Wait()
		r.pull("x")
		r.purge(Purged{}, nil)
	})
}

// No more than a piece waits for the ledger at a time, and no caller waits for all of it.
func TestPurgeGoesInPieces(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		const n = 3*engine.PurgeAtOnce + 100
		r.herd(n)
		_, release := r.faulty.Hold(ledgertest.Apply)
		purged := make(chan Purged)
		go func() {
			p, err := r.Purge(t.Context(), "x")
			want(t, "Purge", err, nil)
			purged <- p
		}()
		synctest.Wait()
		if q := r.Stats().Ledger.Queued; q > engine.PurgeAtOnce || q < engine.PurgeAtOnce/2 {
			t.Errorf("%d changes wait for the ledger", q)
		}
		if c := r.counts("x"); c.Pending != n || c.Cancelled != 0 {
			t.Errorf("before the ledger has answered: %+v", c)
		}
		release()
		if p := <-purged; p != (Purged{Cancelled: n}) {
			t.Errorf("purged %+v", p)
		}
		if pendings, _ := r.dump(); len(pendings) != 0 {
			t.Errorf("%d records are left", len(pendings))
		}
		r.checkConsistency()
	})
}

// When the ledger stops in the middle, the answer tells what was done before, and a
// repetition does the rest.
func TestPurgeGivenUpInTheMiddle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{}, memledger.BatchLimits(100, 1<<20))
		synctest.Wait()
		const n = 2*engine.PurgeAtOnce + 100
		r.herd(n)
		r.faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Nth: 25, Times: -1})
		var p Purged
		var err error
		r.within("Purge", func() { p, err = r.Purge(t.Context(), "x") })
		want(t, "Purge", err, ErrUnknown)
		pendings, _ := r.dump()
		if p.Cancelled == 0 || p.Cancelled+len(pendings) != n {
			t.Errorf("%d were cancelled, %d are left of %d", p.Cancelled, len(pendings), n)
		}
		// What is open is not delivered meanwhile, and what was not begun is: of the
		// first kind there is less than a piece.
		pass(time.Hour)
		if ready := int(r.counts("x").Ready); ready < n-2*engine.PurgeAtOnce || ready > n-p.Cancelled {
			t.Errorf("%d are ready", ready)
		}
		r.within("Purge", func() { _, err = r.Purge(t.Context(), "x") })
		want(t, "Purge during an outage", err, ErrUnrecorded)
		r.faulty.Heal()
		pass(3 * time.Second)
		_, err = r.Purge(t.Context(), "x")
		want(t, "Purge", err, nil)
		if c := r.counts("x"); c.Cancelled != n || c.Ready+c.Pending != 0 {
			t.Errorf("in the end %+v", c)
		}
		r.checkConsistency()
	})
}

// A caller that leaves ends the purge. What was not sent stands as before.
func TestPurgeWithoutItsCaller(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.herd(engine.PurgeAtOnce + 500)
		gone, leave := context.WithCancel(t.Context())
		leave()
		_, err := r.Purge(gone, "x")
		want(t, "Purge", err, context.Canceled)
		r.checkConsistency()

		// The ledger is busy with another caller's write: nothing is sent.
		_, release := r.faulty.Hold(ledgertest.Apply)
		go func() { _, _ = r.Schedule(t.Context(), Request{ID: "before", Topic: "y", Delay: time.Hour}) }()
		synctest.Wait()
		r.within("Purge", func() { r.purge(Purged{}, ErrUnavailable) })
		release()
		pass(time.Second)
		if c := r.counts("x"); c.Pending != engine.PurgeAtOnce+500 || c.Cancelled != 0 {
			t.Errorf("after a purge that was not sent: %+v", c)
		}
		r.checkConsistency()

		// It leaves while a piece is with the ledger.
		reached, release := r.faulty.Hold(ledgertest.Apply)
		gone, leave = context.WithCancel(t.Context())
		go func() { <-reached; leave() }()
		p, err := r.Purge(gone, "x")
		want(t, "Purge", err, ErrUnknown)
		release()
		pass(time.Second)
		if c := r.counts("x"); p.Cancelled != 0 || c.Cancelled == 0 || c.Cancelled > engine.PurgeAtOnce || c.Pending+c.Cancelled != engine.PurgeAtOnce+500 {
			t.Errorf("purged %+v, counts %+v", p, c)
		}
		r.checkConsistency()
	})
}

// What replay has not read yet does not survive unnoticed.
func TestPurgeDuringReplay(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.herd(1000)
		r.shut()
		r.faulty = ledgertest.Wrap(r.mem)
		_, release := r.faulty.Hold(ledgertest.Scan)
		var err error
		r.Scheduler, err = Open(t.Context(), r.faulty, r.cfg)
		want(t, "Open", err, nil)
		r.within("Purge", func() { r.purge(Purged{}, ErrReplaying) })
		release()
		r.purge(Purged{Cancelled: 1000}, nil) // it waits for the end of replay
		if pendings, _ := r.dump(); len(pendings) != 0 {
			t.Errorf("%d records are left", len(pendings))
		}
		want(t, "Close", r.Close(t.Context()), nil)
		_, err = r.Purge(t.Context(), "x")
		want(t, "Purge", err, ErrClosed)
	})
}

// Tasks that another caller is changing when the purge comes by are waited for.
func TestPurgeOfBusyTasks(t *testing.T) {
	for _, c := range []struct {
		name     string
		settings TopicSettings
		prepare  func(r *rig)
		begin    func(r *rig)
		want     Purged
		place    recovery.Place
	}{
		{"moved", TopicSettings{}, inAnHour, func(r *rig) { _ = moveT(r) }, Purged{Cancelled: 1}, recovery.Nowhere},
		{"cancelled", TopicSettings{}, inAnHour, func(r *rig) { _ = cancelT(r) }, Purged{}, recovery.Nowhere},
		{"given another topic", TopicSettings{}, inAnHour, func(r *rig) {
			_, _ = r.Replace(r.t.Context(), Request{ID: "t", Topic: "y", Delay: time.Hour})
		}, Purged{}, recovery.Pending},
		{"claimed", TopicSettings{CountCrashes: true}, dueNow, func(r *rig) {
			_, _ = r.Reserve(r.t.Context(), "x", 1, 0, time.Hour)
		}, Purged{Delivering: 1}, recovery.Pending},
		{"acknowledged", TopicSettings{}, handedOut, func(r *rig) { r.settle(Verdict{Verb: Ack}, r.delivery) }, Purged{}, recovery.Nowhere},
		{"retried", TopicSettings{}, handedOut, func(r *rig) {
			r.settle(Verdict{Verb: Release, Delay: ptr(time.Minute)}, r.delivery)
		}, Purged{Cancelled: 1}, recovery.Nowhere},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, r *rig) {
				r.topic("x", c.settings)
				c.prepare(r)
				_, release := r.faulty.Hold(ledgertest.Apply)
				go c.begin(r)
				synctest.Wait()
				answer := make(chan Purged, 1)
				go func() {
					p, err := r.Purge(t.Context(), "x")
					want(t, "Purge", err, nil)
					answer <- p
				}()
				synctest.Wait()
				release()
				if p := <-answer; p != c.want {
					t.Errorf("purged %+v, want %+v", p, c.want)
				}
				pass(time.Second)
				r.inLedger("t", c.place)
				r.checkConsistency()
			})
		})
	}
}

// A cancel that is given up leaves its task to the purge that found it busy.
func TestPurgeAfterACancelThatWasGivenUp(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		inAnHour(r)
		_, release := r.faulty.Hold(ledgertest.Apply)
		go func() { _, _ = r.Schedule(t.Context(), Request{ID: "before", Topic: "y", Delay: time.Hour}) }()
		synctest.Wait()
		given := make(chan error, 1)
		go func() { given <- cancelT(r) }()
		pass(1500 * time.Millisecond)
		purged := make(chan error, 1)
		go func() {
			_, err := r.Purge(t.Context(), "x")
			purged <- err
		}()
		pass(time.Millisecond)
		if len(purged) != 0 {
			t.Fatalf("Purge returned before the outcome of the task was known: %v", <-purged)
		}
		pass(time.Second)
		want(t, "Cancel", <-given, ErrUnavailable)
		want(t, "Purge", <-purged, ErrUnrecorded)
		release()
		pass(time.Second)
		r.inLedger("t", recovery.Nowhere)
		r.checkConsistency()
	})
}

// Each task is either delivered or cancelled, whatever the two do at the same time.
func TestPurgeRace(t *testing.T) {
	r := newRig(t, Config{}, memledger.Shards(4))
	total := 20_000
	if testing.Short() {
		total = 4000
	}
	var mu sync.Mutex
	delivered := make(map[string]int)
	r.topic("x", TopicSettings{Concurrency: 8})
	r.handle("x", func(_ context.Context, d *Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		delivered[d.ID]++
		return nil
	})
	began := time.Now()
	requests := make([]Request, total)
	for i := range requests {
		requests[i] = Request{ID: fmt.Sprint("t", i), Topic: "x", Due: began.Add(time.Duration(i) * 20 * time.Microsecond)}
	}
	var wg sync.WaitGroup
	cancelled := make([]int, 3)
	stop := make(chan struct{})
	for k := range cancelled {
		wg.Go(func() {
			for {
				p, err := r.Purge(context.Background(), "x")
				if err != nil && !errors.Is(err, ErrReplaying) {
					t.Errorf("Purge: %v", err)
				}
				cancelled[k] += p.Cancelled
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
			}
		})
	}
	for len(requests) > 0 {
		part := requests[:min(500, len(requests))]
		results, err := r.ScheduleBatch(context.Background(), part)
		want(t, "ScheduleBatch", err, nil)
		for _, res := range results {
			want(t, "Schedule", res.Err, nil)
		}
		requests = requests[len(part):]
	}
	for r.Stats().Total.Pending+r.Stats().Total.Ready+r.Stats().Total.Delivering > 0 || r.Stats().Ledger.Queued > 0 {
		<-time.After(time.Millisecond)
	}
	close(stop)
	wg.Wait()
	mu.Lock()
	defer mu.Unlock()
	sum := cancelled[0] + cancelled[1] + cancelled[2]
	if sum+len(delivered) != total || int(r.counts("x").Cancelled) != sum {
		t.Errorf("of %d, %d were cancelled and %d delivered; the counter says %d", total, sum, len(delivered), r.counts("x").Cancelled)
	}
	for id, n := range delivered {
		if n != 1 {
			t.Errorf("%s was delivered %d times", id, n)
		}
	}
	t.Logf("%d cancelled, %d delivered", sum, len(delivered))
	r.checkConsistency()
}

// purgeTopic is a move of the simulation. No receiver pulls meanwhile, so that what was
// not being delivered before is gone.
func (s *simulation) purgeTopic() {
	topic := []string{"pulled", "counted"}[s.rng.IntN(2)]
	s.m.begin()
	p, err := s.Purge(s.t.Context(), topic)
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.purged(fmt.Sprintf("Purge of %s: %+v", topic, p), err, func(f *fact) bool { return f.topic == topic })
}

// purged takes note of a purge of the tasks that belong to something, or may.
func (s *simulation) purged(what string, err error, belongs func(*fact) bool) {
	if err != nil && !s.excused("purge", err) {
		s.m.fault("purge", "%s: %v", what, err)
	}
	for id, f := range s.m.facts {
		if !belongs(f) && f.topic != "" || f.may&mayBeAlive == 0 {
			continue
		}
		s.m.note(id, "%s, %v", what, err)
		switch sure := f.may == mayBeAlive && !f.loose && belongs(f); {
		case s.m.over(id, s.faults), f.busy():
		case err == nil && sure && f.open == nil:
			f.gone()
		default:
			f.may |= mayBeAbsent
			f.loose = true
		}
	}
	s.m.calls = false
}
