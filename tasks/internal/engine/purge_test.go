package engine_test

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
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// herdOf schedules n tasks of the topic x in an hour.
func herdOf(r *rig.Rig, n int) {
	r.T.Helper()
	var requests []Request
	for i := range n {
		requests = append(requests, Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Hour})
		if len(requests) == MaxBatch || i == n-1 {
			results, err := r.ScheduleBatch(r.T.Context(), requests)
			rig.Want(r.T, "ScheduleBatch", err, nil)
			for _, res := range results {
				rig.Want(r.T, res.ID, res.Err, nil)
			}
			requests = requests[:0]
		}
	}
}

// purge purges the topic x.
func purge(r *rig.Rig, p Purged, kind error) {
	r.T.Helper()
	got, err := r.Admin().Purge(r.T.Context(), "x")
	if rig.Want(r.T, "Purge", err, kind); got != p {
		r.T.Fatalf("purged %+v, want %+v", got, p)
	}
}

func TestPurge(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		_, err := r.Admin().Purge(t.Context(), "no topic")
		rig.Want(t, "Purge", err, ErrInvalid)
		purge(r, Purged{}, nil) // a topic that no task has
		buried(r)
		d := r.One("out", "x")
		r.Must(Request{ID: "ready", Topic: "x"})
		r.Must(Request{ID: "pending", Topic: "x", Delay: time.Hour})
		retried := r.One("retried", "y")
		r.SettleOne(Verdict{Verb: Release, Delay: rig.Ptr(time.Minute)}, retried)
		r.Must(Request{ID: "other", Topic: "y", Delay: time.Hour})

		purge(r, Purged{Cancelled: 2, Delivering: 1}, nil)
		for _, id := range []string{"ready", "pending"} {
			r.InLedger(id, recovery.Nowhere)
			rig.Want(t, "Cancel again", r.Cancel(t.Context(), id), nil)
		}
		r.InLedger("t", recovery.Dead)
		r.InLedger("other", recovery.Pending)
		r.InLedger("retried", recovery.Pending)
		if c := r.Counts("x"); c.Cancelled != 2 || c.Pending != 0 || c.Ready != 0 || c.Delivering != 1 || c.Dead != 1 {
			t.Errorf("counts %+v", c)
		}
		r.Ack(d)
		r.CheckConsistency()
		rig.Pass(2 * time.Hour)
		r.Pull("x")
		r.Restart()
		synctest.Wait()
		r.Pull("x")
		purge(r, Purged{}, nil)
	})
}

// No more than a piece waits for the ledger at a time, and no caller waits for all of it.
func TestPurgeGoesInPieces(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		const n = 3*engine.PurgeAtOnce + 100
		herdOf(r, n)
		_, release := r.Faulty.Hold(ledgertest.Apply)
		purged := make(chan Purged)
		go func() {
			p, err := r.Admin().Purge(t.Context(), "x")
			rig.Want(t, "Purge", err, nil)
			purged <- p
		}()
		synctest.Wait()
		if q := r.Stats().Ledger.Queued; q > engine.PurgeAtOnce || q < engine.PurgeAtOnce/2 {
			t.Errorf("%d changes wait for the ledger", q)
		}
		if c := r.Counts("x"); c.Pending != n || c.Cancelled != 0 {
			t.Errorf("before the ledger has answered: %+v", c)
		}
		release()
		if p := <-purged; p != (Purged{Cancelled: n}) {
			t.Errorf("purged %+v", p)
		}
		if pendings, _ := r.Dump(); len(pendings) != 0 {
			t.Errorf("%d records are left", len(pendings))
		}
		r.CheckConsistency()
	})
}

// When the ledger stops in the middle, the answer tells what was done before, and a
// repetition does the rest.
func TestPurgeGivenUpInTheMiddle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, Config{}, memledger.BatchLimits(100, 1<<20))
		synctest.Wait()
		const n = 2*engine.PurgeAtOnce + 100
		herdOf(r, n)
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Nth: 25, Times: -1})
		var p Purged
		var err error
		within(r, "Purge", func() { p, err = r.Admin().Purge(t.Context(), "x") })
		rig.Want(t, "Purge", err, ErrUnknown)
		pendings, _ := r.Dump()
		if p.Cancelled == 0 || p.Cancelled+len(pendings) != n {
			t.Errorf("%d were cancelled, %d are left of %d", p.Cancelled, len(pendings), n)
		}
		// What is open is not delivered meanwhile, and what was not begun is: of the
		// first kind there is less than a piece.
		rig.Pass(time.Hour)
		if ready := int(r.Counts("x").Ready); ready < n-2*engine.PurgeAtOnce || ready > n-p.Cancelled {
			t.Errorf("%d are ready", ready)
		}
		within(r, "Purge", func() { _, err = r.Admin().Purge(t.Context(), "x") })
		rig.Want(t, "Purge during an outage", err, ErrUnrecorded)
		r.Faulty.Heal()
		rig.Pass(3 * time.Second)
		_, err = r.Admin().Purge(t.Context(), "x")
		rig.Want(t, "Purge", err, nil)
		if c := r.Counts("x"); c.Cancelled != n || c.Ready+c.Pending != 0 {
			t.Errorf("in the end %+v", c)
		}
		r.CheckConsistency()
	})
}

// A caller that leaves ends the purge. What was not sent stands as before.
func TestPurgeWithoutItsCaller(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		herdOf(r, engine.PurgeAtOnce+500)
		gone, leave := context.WithCancel(t.Context())
		leave()
		_, err := r.Admin().Purge(gone, "x")
		rig.Want(t, "Purge", err, context.Canceled)
		r.CheckConsistency()

		// The ledger is busy with another caller's write: nothing is sent.
		_, release := r.Faulty.Hold(ledgertest.Apply)
		go func() { _, _ = r.Schedule(t.Context(), Request{ID: "before", Topic: "y", Delay: time.Hour}) }()
		synctest.Wait()
		within(r, "Purge", func() { purge(r, Purged{}, ErrUnavailable) })
		release()
		rig.Pass(time.Second)
		if c := r.Counts("x"); c.Pending != engine.PurgeAtOnce+500 || c.Cancelled != 0 {
			t.Errorf("after a purge that was not sent: %+v", c)
		}
		r.CheckConsistency()

		// It leaves while a piece is with the ledger.
		reached, release := r.Faulty.Hold(ledgertest.Apply)
		gone, leave = context.WithCancel(t.Context())
		go func() { <-reached; leave() }()
		p, err := r.Admin().Purge(gone, "x")
		rig.Want(t, "Purge", err, ErrUnknown)
		release()
		rig.Pass(time.Second)
		if c := r.Counts("x"); p.Cancelled != 0 || c.Cancelled == 0 || c.Cancelled > engine.PurgeAtOnce || c.Pending+c.Cancelled != engine.PurgeAtOnce+500 {
			t.Errorf("purged %+v, counts %+v", p, c)
		}
		r.CheckConsistency()
	})
}

// What replay has not read yet does not survive unnoticed.
func TestPurgeDuringReplay(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		herdOf(r, 1000)
		r.Shut()
		r.Faulty = ledgertest.Wrap(r.Mem)
		_, release := r.Faulty.Hold(ledgertest.Scan)
		var err error
		r.Scheduler, err = Open(t.Context(), r.Faulty, r.Cfg)
		rig.Want(t, "Open", err, nil)
		within(r, "Purge", func() { purge(r, Purged{}, ErrReplaying) })
		release()
		purge(r, Purged{Cancelled: 1000}, nil) // it waits for the end of replay
		if pendings, _ := r.Dump(); len(pendings) != 0 {
			t.Errorf("%d records are left", len(pendings))
		}
		rig.Want(t, "Close", r.Close(t.Context()), nil)
		_, err = r.Admin().Purge(t.Context(), "x")
		rig.Want(t, "Purge", err, ErrClosed)
	})
}

// Tasks that another caller is changing when the purge comes by are waited for.
func TestPurgeOfBusyTasks(t *testing.T) {
	for _, c := range []struct {
		name     string
		settings TopicSettings
		prepare  func(r *rig.Rig)
		begin    func(r *rig.Rig)
		want     Purged
		place    recovery.Place
	}{
		{"moved", TopicSettings{}, inAnHour, func(r *rig.Rig) { _ = moveT(r) }, Purged{Cancelled: 1}, recovery.Nowhere},
		{"cancelled", TopicSettings{}, inAnHour, func(r *rig.Rig) { _ = cancelT(r) }, Purged{}, recovery.Nowhere},
		{"given another topic", TopicSettings{}, inAnHour, func(r *rig.Rig) {
			_, _ = r.Replace(r.T.Context(), Request{ID: "t", Topic: "y", Delay: time.Hour})
		}, Purged{}, recovery.Pending},
		{"claimed", TopicSettings{CountCrashes: true}, dueNow, func(r *rig.Rig) {
			_, _ = r.Reserve(r.T.Context(), "x", 1, 0, time.Hour)
		}, Purged{Delivering: 1}, recovery.Pending},
		{"acknowledged", TopicSettings{}, handedOut, func(r *rig.Rig) { r.SettleOne(Verdict{Verb: Ack}, r.Delivery) }, Purged{}, recovery.Nowhere},
		{"retried", TopicSettings{}, handedOut, func(r *rig.Rig) {
			r.SettleOne(Verdict{Verb: Release, Delay: rig.Ptr(time.Minute)}, r.Delivery)
		}, Purged{Cancelled: 1}, recovery.Nowhere},
	} {
		t.Run(c.name, func(t *testing.T) {
			rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
				r.MustSetTopic("x", c.settings)
				c.prepare(r)
				_, release := r.Faulty.Hold(ledgertest.Apply)
				go c.begin(r)
				synctest.Wait()
				answer := make(chan Purged, 1)
				go func() {
					p, err := r.Admin().Purge(t.Context(), "x")
					rig.Want(t, "Purge", err, nil)
					answer <- p
				}()
				synctest.Wait()
				release()
				if p := <-answer; p != c.want {
					t.Errorf("purged %+v, want %+v", p, c.want)
				}
				rig.Pass(time.Second)
				r.InLedger("t", c.place)
				r.CheckConsistency()
			})
		})
	}
}

// A cancel that is given up leaves its task to the purge that found it busy.
func TestPurgeAfterACancelThatWasGivenUp(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		inAnHour(r)
		_, release := r.Faulty.Hold(ledgertest.Apply)
		go func() { _, _ = r.Schedule(t.Context(), Request{ID: "before", Topic: "y", Delay: time.Hour}) }()
		synctest.Wait()
		given := make(chan error, 1)
		go func() { given <- cancelT(r) }()
		rig.Pass(1500 * time.Millisecond)
		purged := make(chan error, 1)
		go func() {
			_, err := r.Admin().Purge(t.Context(), "x")
			purged <- err
		}()
		rig.Pass(time.Millisecond)
		if len(purged) != 0 {
			t.Fatalf("Purge returned before the outcome of the task was known: %v", <-purged)
		}
		rig.Pass(time.Second)
		rig.Want(t, "Cancel", <-given, ErrUnavailable)
		rig.Want(t, "Purge", <-purged, ErrUnrecorded)
		release()
		rig.Pass(time.Second)
		r.InLedger("t", recovery.Nowhere)
		r.CheckConsistency()
	})
}

// Each task is either delivered or cancelled, whatever the two do at the same time.
func TestPurgeRace(t *testing.T) {
	r := rig.New(t, Config{}, memledger.Shards(4))
	total := 20_000
	if testing.Short() {
		total = 4000
	}
	var mu sync.Mutex
	delivered := make(map[string]int)
	r.MustSetTopic("x", TopicSettings{Concurrency: 8})
	r.MustHandle("x", func(_ context.Context, d *Delivery) error {
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
				p, err := r.Admin().Purge(context.Background(), "x")
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
		rig.Want(t, "ScheduleBatch", err, nil)
		for _, res := range results {
			rig.Want(t, "Schedule", res.Err, nil)
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
	if sum+len(delivered) != total || int(r.Counts("x").Cancelled) != sum {
		t.Errorf("of %d, %d were cancelled and %d delivered; the counter says %d", total, sum, len(delivered), r.Counts("x").Cancelled)
	}
	for id, n := range delivered {
		if n != 1 {
			t.Errorf("%s was delivered %d times", id, n)
		}
	}
	t.Logf("%d cancelled, %d delivered", sum, len(delivered))
	r.CheckConsistency()
}
