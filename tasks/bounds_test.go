package tasks_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// Handlers that leave their deliveries to receipts go on as soon as one is settled.
func TestOpenHandlersGoOnAtOnce(t *testing.T) {
	bubble(t, Config{MaxInFlight: 2, SweepEvery: time.Minute}, func(t *testing.T, r *rig) {
		r.topic("y", TopicSettings{Concurrency: 1, Lease: time.Hour})
		var ds collection[Delivery]
		r.handle("y", func(_ context.Context, d *Delivery) error { ds.add(*d); return ErrLater })
		for range 5 {
			r.must(Request{Topic: "y"})
		}
		pass(time.Millisecond)
		for n := range 3 {
			if got := len(ds.list()); got != 2+n {
				t.Fatalf("%d handed out after %d acknowledgements", got, n)
			}
			r.ack(ds.list()[n])
			pass(time.Millisecond)
		}
		r.checkConsistency()
	})
}

// The bound on open deliveries holds for receivers together; handlers that are not
// among them do not wait for it.
func TestHandlersBesideTooManyOpenDeliveries(t *testing.T) {
	bubble(t, Config{MaxInFlight: 1, SweepEvery: time.Minute}, func(t *testing.T, r *rig) {
		var handled collection[string]
		r.handle("y", func(_ context.Context, d *Delivery) error { handled.add(d.ID); return nil })
		r.one("a", "x")
		_, err := r.Reserve(t.Context(), "z", 1, time.Minute, 0)
		want(t, "Reserve", err, ErrOverloaded)
		r.must(Request{ID: "h1", Topic: "y"})
		r.must(Request{ID: "h2", Topic: "y", Delay: time.Second})
		pass(1100 * time.Millisecond)
		if got := handled.list(); !slices.Equal(got, []string{"h1", "h2"}) {
			t.Errorf("handled %v", got)
		}
	})
}

// A move must not make the tasks larger than all of them may be.
func TestMovesObeyMaxBytes(t *testing.T) {
	const bound = 1 << 20
	bubble(t, Config{MaxBytes: bound}, func(t *testing.T, r *rig) {
		const tasks = 40
		for i := range tasks {
			r.must(Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Hour})
		}
		grown := 0
		for i := range tasks {
			id := fmt.Sprint("t", i)
			_, err := r.Reschedule(t.Context(), id, Move{Payload: make([]byte, 64<<10)})
			if i < 15 {
				want(t, "Reschedule", err, nil)
			}
			if err == nil {
				grown++
				continue
			}
			want(t, "Reschedule", err, ErrOverloaded)
			_, err = r.Replace(t.Context(), Request{ID: id, Topic: "x", Delay: time.Hour, Payload: make([]byte, 64<<10)})
			want(t, "Replace", err, ErrOverloaded)
			_, err = r.Reschedule(t.Context(), id, Move{Delay: ptr(time.Minute)})
			want(t, "Reschedule of the time alone", err, nil)
		}
		if live := r.Stats().ArenaLive; grown == tasks || live > bound {
			t.Errorf("%d of %d have grown, to %d bytes", grown, tasks, live)
		}
		_, err := r.Reschedule(t.Context(), "t0", Move{Payload: []byte{}})
		want(t, "Reschedule to less", err, nil)
		_, err = r.Reschedule(t.Context(), "t39", Move{Payload: make([]byte, 60<<10)})
		want(t, "Reschedule into the room of another", err, nil)
		r.checkConsistency()
	})
}

// As many dead tasks come back as there is room for; the others stay as they are.
func TestRequeueObeysMaxPending(t *testing.T) {
	bubble(t, Config{MaxPending: 3}, func(t *testing.T, r *rig) {
		var ids []string
		for i := range 10 {
			ids = append(ids, fmt.Sprint("t", i))
		}
		r.bury("x", ids...)
		r.must(Request{ID: "there", Topic: "y", Delay: time.Hour})
		n, err := requeued(r.Requeue(t.Context(), "x", Requeue{}))
		want(t, "Requeue", err, ErrOverloaded)
		if c := r.counts("x"); n != 2 || c.Ready != 2 || c.Dead != 8 {
			t.Errorf("%d requeued; counts %+v", n, c)
		}
		r.checkConsistency()
		n, err = r.DeleteDead(t.Context(), "x", nil) // needs no room
		if want(t, "DeleteDead", err, nil); n != 8 {
			t.Errorf("%d deleted", n)
		}
		r.checkConsistency()
	})
}

// A lags is an observer that notes how many tasks at most were dealt with before their
// events were told, which is when the lock is given up.
type lags struct {
	r    *rig
	kind EventKind
	done func(Counts) int64

	told, most int64
}

func (l *lags) Observe(e Event) {
	if e.Kind == l.kind {
		l.most = max(l.most, l.done(l.r.counts("x"))-l.told)
		l.told++
	}
}

// Others get the lock while many tasks have to be passed over, or taken back.
func TestLockIsGivenUpInBetween(t *testing.T) {
	const tasks = 3000
	fill := func(r *rig, maxLateness time.Duration) {
		requests := make([]Request, tasks)
		for i := range requests {
			requests[i] = Request{Topic: "x", MaxLateness: maxLateness}
		}
		results, err := r.ScheduleBatch(r.t.Context(), requests)
		want(r.t, "ScheduleBatch", err, nil)
		for _, res := range results {
			want(r.t, res.ID, res.Err, nil)
		}
	}
	check := func(l *lags) {
		if l.told != tasks || l.most > engine.AtOnce {
			l.r.t.Errorf("%d of %d %s, up to %d at once", l.told, tasks, l.kind, l.most)
		}
		l.r.checkConsistency()
	}
	t.Run("skipped", func(t *testing.T) {
		l := &lags{kind: EventSkipped, done: func(c Counts) int64 { return c.Skipped }}
		bubble(t, Config{Observer: l}, func(t *testing.T, r *rig) {
			l.r = r
			fill(r, time.Millisecond)
			pass(time.Second)
			r.pull("x")
			pass(time.Second)
			check(l)
		})
	})
	t.Run("leases", func(t *testing.T) {
		l := &lags{kind: EventRetried, done: func(c Counts) int64 { return c.LeaseExpired }}
		bubble(t, Config{Observer: l}, func(t *testing.T, r *rig) {
			l.r = r
			fill(r, 0)
			for range tasks / MaxReserve {
				ds, err := r.Reserve(t.Context(), "x", MaxReserve, 0, 2*time.Second)
				if want(t, "Reserve", err, nil); len(ds) != MaxReserve {
					t.Fatalf("%d reserved", len(ds))
				}
			}
			pass(4 * time.Second)
			check(l)
		})
	})
}

// A cancels is an observer that cancels a task as soon as it hears of another.
type cancels struct {
	r    *rig
	kind EventKind
	err  error
}

func (c *cancels) Observe(e Event) {
	if e.Kind == c.kind {
		c.kind = ""
		c.err = c.r.Cancel(c.r.t.Context(), "t")
	}
}

// A task that a receiver has taken is its own, also while it passes over many others.
func TestTakenTaskCannotBeCancelled(t *testing.T) {
	c := &cancels{kind: EventSkipped}
	bubble(t, Config{Observer: c}, func(t *testing.T, r *rig) {
		c.r = r
		r.must(Request{ID: "t", Topic: "x"})
		pass(time.Millisecond)
		for range 3 * engine.AtOnce {
			r.must(Request{Topic: "x", MaxLateness: time.Millisecond})
		}
		pass(time.Second)
		d := r.pull("x", "t")[0]
		want(t, "Cancel", c.err, ErrDelivering)
		r.ack(d)
		r.pull("x")
		pass(time.Second)
		if n := r.counts("x").Skipped; n != 3*engine.AtOnce {
			t.Errorf("%d skipped", n)
		}
		r.checkConsistency()
	})
}

// A change that is given up unsent gives its place among those that wait back, once.
func TestPlacesOfGivenUpMoves(t *testing.T) {
	bubble(t, Config{MaxInFlight: 2}, func(t *testing.T, r *rig) {
		r.must(Request{ID: "t", Topic: "x", Delay: time.Hour})
		for range 5 {
			_, release := r.faulty.Hold(ledgertest.Apply)
			go func() { _ = r.Cancel(t.Context(), "nobody") }()
			go func() { _, _ = r.Schedule(t.Context(), Request{ID: "before", Topic: "x", Delay: time.Hour}) }()
			pass(time.Millisecond)
			want(t, "Reschedule", moveT(r), ErrUnavailable)
			release()
			pass(time.Millisecond)
			r.checkConsistency()
		}
		r.inLedger("t", recovery.Pending)
		want(t, "Reschedule", moveT(r), nil)
	})
}
