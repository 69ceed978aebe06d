package engine_test

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
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// Handlers that leave their deliveries to receipts go on as soon as one is settled.
func TestOpenHandlersGoOnAtOnce(t *testing.T) {
	rig.Bubble(t, Config{MaxInFlight: 2, SweepEvery: time.Minute}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("y", TopicSettings{Concurrency: 1, Lease: time.Hour})
		var ds rig.Collection[Delivery]
		r.MustHandle("y", func(_ context.Context, d *Delivery) error { ds.Add(*d); return ErrLater })
		for range 5 {
			r.Must(Request{Topic: "y"})
		}
		rig.Pass(time.Millisecond)
		for n := range 3 {
			if got := len(ds.List()); got != 2+n {
				t.Fatalf("%d handed out after %d acknowledgements", got, n)
			}
			r.Ack(ds.List()[n])
			rig.Pass(time.Millisecond)
		}
		r.CheckConsistency()
	})
}

// The bound on open deliveries holds for receivers together; handlers that are not
// among them do not wait for it.
func TestHandlersBesideTooManyOpenDeliveries(t *testing.T) {
	rig.Bubble(t, Config{MaxInFlight: 1, SweepEvery: time.Minute}, func(t *testing.T, r *rig.Rig) {
		var handled rig.Collection[string]
		r.MustHandle("y", func(_ context.Context, d *Delivery) error { handled.Add(d.ID); return nil })
		r.One("a", "x")
		_, err := r.Reserve(t.Context(), "z", 1, time.Minute, 0)
		rig.Want(t, "Reserve", err, ErrOverloaded)
		r.Must(Request{ID: "h1", Topic: "y"})
		r.Must(Request{ID: "h2", Topic: "y", Delay: time.Second})
		rig.Pass(1100 * time.Millisecond)
		if got := handled.List(); !slices.Equal(got, []string{"h1", "h2"}) {
			t.Errorf("handled %v", got)
		}
	})
}

// A move must not make the tasks larger than all of them may be.
func TestMovesObeyMaxBytes(t *testing.T) {
	const bound = 1 << 20
	rig.Bubble(t, Config{MaxBytes: bound}, func(t *testing.T, r *rig.Rig) {
		const tasks = 40
		for i := range tasks {
			r.Must(Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Hour})
		}
		grown := 0
		for i := range tasks {
			id := fmt.Sprint("t", i)
			_, err := r.Reschedule(t.Context(), id, Move{Payload: make([]byte, 64<<10)})
			if i < 15 {
				rig.Want(t, "Reschedule", err, nil)
			}
			if err == nil {
				grown++
				continue
			}
			rig.Want(t, "Reschedule", err, ErrOverloaded)
			_, err = r.Replace(t.Context(), Request{ID: id, Topic: "x", Delay: time.Hour, Payload: make([]byte, 64<<10)})
			rig.Want(t, "Replace", err, ErrOverloaded)
			_, err = r.Reschedule(t.Context(), id, Move{Delay: rig.Ptr(time.Minute)})
			rig.Want(t, "Reschedule of the time alone", err, nil)
		}
		if live := r.Stats().ArenaLive; grown == tasks || live > bound {
			t.Errorf("%d of %d have grown, to %d bytes", grown, tasks, live)
		}
		_, err := r.Reschedule(t.Context(), "t0", Move{Payload: []byte{}})
		rig.Want(t, "Reschedule to less", err, nil)
		_, err = r.Reschedule(t.Context(), "t39", Move{Payload: make([]byte, 60<<10)})
		rig.Want(t, "Reschedule into the room of another", err, nil)
		r.CheckConsistency()
	})
}

// As many dead tasks come back as there is room for; the others stay as they are.
func TestRequeueObeysMaxPending(t *testing.T) {
	rig.Bubble(t, Config{MaxPending: 3}, func(t *testing.T, r *rig.Rig) {
		var ids []string
		for i := range 10 {
			ids = append(ids, fmt.Sprint("t", i))
		}
		r.Bury("x", ids...)
		r.Must(Request{ID: "there", Topic: "y", Delay: time.Hour})
		n, err := rig.Requeued(r.Admin().Requeue(t.Context(), "x", Requeue{}))
		rig.Want(t, "Requeue", err, ErrOverloaded)
		if c := r.Counts("x"); n != 2 || c.Ready != 2 || c.Dead != 8 {
			t.Errorf("%d requeued; counts %+v", n, c)
		}
		r.CheckConsistency()
		n, err = r.Admin().DeleteDead(t.Context(), "x", nil) // needs no room
		if rig.Want(t, "DeleteDead", err, nil); n != 8 {
			t.Errorf("%d deleted", n)
		}
		r.CheckConsistency()
	})
}

// A lags is an observer that notes how many tasks at most were dealt with before their
// events were told, which is when the lock is given up.
type lags struct {
	r    *rig.Rig
	kind EventKind
	done func(Counts) int64

	told, most int64
}

func (l *lags) Observe(e Event) {
	if e.Kind == l.kind {
		l.most = max(l.most, l.done(l.r.Counts("x"))-l.told)
		l.told++
	}
}

// Others get the lock while many tasks have to be passed over, or taken back.
func TestLockIsGivenUpInBetween(t *testing.T) {
	const tasks = 3000
	fill := func(r *rig.Rig, maxLateness time.Duration) {
		requests := make([]Request, tasks)
		for i := range requests {
			requests[i] = Request{Topic: "x", MaxLateness: maxLateness}
		}
		results, err := r.ScheduleBatch(r.T.Context(), requests)
		rig.Want(r.T, "ScheduleBatch", err, nil)
		for _, res := range results {
			rig.Want(r.T, res.ID, res.Err, nil)
		}
	}
	check := func(l *lags) {
		if l.told != tasks || l.most > engine.AtOnce {
			l.r.T.Errorf("%d of %d %s, up to %d at once", l.told, tasks, l.kind, l.most)
		}
		l.r.CheckConsistency()
	}
	t.Run("skipped", func(t *testing.T) {
		l := &lags{kind: EventSkipped, done: func(c Counts) int64 { return c.Skipped }}
		rig.Bubble(t, Config{Observer: l}, func(t *testing.T, r *rig.Rig) {
			l.r = r
			fill(r, time.Millisecond)
			rig.Pass(time.Second)
			r.Pull("x")
			rig.Pass(time.Second)
			check(l)
		})
	})
	t.Run("leases", func(t *testing.T) {
		l := &lags{kind: EventRetried, done: func(c Counts) int64 { return c.LeaseExpired }}
		rig.Bubble(t, Config{Observer: l}, func(t *testing.T, r *rig.Rig) {
			l.r = r
			fill(r, 0)
			for range tasks / MaxReserve {
				ds, err := r.Reserve(t.Context(), "x", MaxReserve, 0, 2*time.Second)
				if rig.Want(t, "Reserve", err, nil); len(ds) != MaxReserve {
					t.Fatalf("%d reserved", len(ds))
				}
			}
			rig.Pass(4 * time.Second)
			check(l)
		})
	})
}

// A cancels is an observer that cancels a task as soon as it hears of another.
type cancels struct {
	r    *rig.Rig
	kind EventKind
	err  error
}

func (c *cancels) Observe(e Event) {
	if e.Kind == c.kind {
		c.kind = ""
		c.err = c.r.Cancel(c.r.T.Context(), "t")
	}
}

// A task that a receiver has taken is its own, also while it passes over many others.
func TestTakenTaskCannotBeCancelled(t *testing.T) {
	c := &cancels{kind: EventSkipped}
	rig.Bubble(t, Config{Observer: c}, func(t *testing.T, r *rig.Rig) {
		c.r = r
		r.Must(Request{ID: "t", Topic: "x"})
		rig.Pass(time.Millisecond)
		for range 3 * engine.AtOnce {
			r.Must(Request{Topic: "x", MaxLateness: time.Millisecond})
		}
		rig.Pass(time.Second)
		d := r.Pull("x", "t")[0]
		rig.Want(t, "Cancel", c.err, ErrDelivering)
		r.Ack(d)
		r.Pull("x")
		rig.Pass(time.Second)
		if n := r.Counts("x").Skipped; n != 3*engine.AtOnce {
			t.Errorf("%d skipped", n)
		}
		r.CheckConsistency()
	})
}

// A change that is given up unsent gives its place among those that wait back, once.
func TestPlacesOfGivenUpMoves(t *testing.T) {
	rig.Bubble(t, Config{MaxInFlight: 2}, func(t *testing.T, r *rig.Rig) {
		r.Must(Request{ID: "t", Topic: "x", Delay: time.Hour})
		for range 5 {
			_, release := r.Faulty.Hold(ledgertest.Apply)
			go func() { _ = r.Cancel(t.Context(), "nobody") }()
			go func() { _, _ = r.Schedule(t.Context(), Request{ID: "before", Topic: "x", Delay: time.Hour}) }()
			rig.Pass(time.Millisecond)
			rig.Want(t, "Reschedule", moveT(r), ErrUnavailable)
			release()
			rig.Pass(time.Millisecond)
			r.CheckConsistency()
		}
		r.InLedger("t", recovery.Pending)
		rig.Want(t, "Reschedule", moveT(r), nil)
	})
}
