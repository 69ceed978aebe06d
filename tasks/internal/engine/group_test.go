package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/memledger"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// cancelGroup cancels the group g.
func cancelGroup(r *rig.Rig, cancelled int, delivering ...string) {
	r.T.Helper()
	c, err := r.CancelGroup(r.T.Context(), "g")
	rig.Want(r.T, "CancelGroup", err, nil)
	slices.Sort(c.Delivering)
	if c.Cancelled != cancelled || !slices.Equal(c.Delivering, delivering) || c.More != 0 {
		r.T.Fatalf("cancelled %+v; want %d, %q being delivered", c, cancelled, delivering)
	}
}

// group lists the ids of a group, soonest first.
func group(r *rig.Rig, name string, want ...string) {
	r.T.Helper()
	if got := rig.IDsOf(r.Pages(Query{Group: name, Limit: 2})); !slices.Equal(got, want) {
		r.T.Fatalf("the group %s has %q; want %q", name, got, want)
	}
}

func TestCancelGroup(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		for _, name := range []string{"", "no group", "-"} {
			_, err := r.CancelGroup(t.Context(), name)
			rig.Want(t, "CancelGroup", err, ErrInvalid)
		}
		cancelGroup(r, 0) // a group that no task has
		r.Must(Request{ID: "dead", Topic: "x", Group: "g"})
		r.SettleOne(Verdict{Verb: Bury}, r.Pull("x", "dead")[0])
		r.Must(Request{ID: "out", Topic: "x", Group: "g"})
		d := r.Pull("x", "out")[0]
		r.Must(Request{ID: "retried", Topic: "x", Group: "g"})
		r.SettleOne(Verdict{Verb: Release, Delay: rig.Ptr(time.Minute)}, r.Pull("x", "retried")[0])
		r.Must(Request{ID: "ready", Topic: "x", Group: "g"})
		r.Must(Request{ID: "pending", Topic: "y", Group: "g", Delay: time.Hour})
		r.Must(Request{ID: "other", Topic: "x", Group: "h", Delay: time.Hour})
		r.Must(Request{ID: "none", Topic: "x", Delay: time.Hour})
		group(r, "g", "out", "ready", "retried", "pending")

		cancelGroup(r, 3, "out")
		cancelGroup(r, 0, "out")
		for _, id := range []string{"ready", "retried", "pending"} {
			r.InLedger(id, recovery.Nowhere)
			rig.Want(t, "Cancel again", r.Cancel(t.Context(), id), nil)
		}
		r.InLedger("dead", recovery.Dead)
		group(r, "g", "out")
		group(r, "h", "other")
		if c := r.Stats().Total; c.Cancelled != 3 || c.Pending != 2 || c.Ready != 0 || c.Delivering != 1 || c.Dead != 1 {
			t.Errorf("counts %+v", c)
		}
		r.CheckConsistency()
		r.Ack(d)
		group(r, "g")
		r.Restart()
		synctest.Wait()
		r.Pull("x")
		group(r, "g")
		group(r, "h", "other")
		// Brought back, a dead one is a member again.
		_, err := r.Admin().Requeue(t.Context(), "x", Requeue{})
		rig.Want(t, "Requeue", err, nil)
		group(r, "g", "dead")
		cancelGroup(r, 1)
		r.CheckConsistency()
		rig.Want(t, "Close", r.Close(t.Context()), nil)
		_, err = r.CancelGroup(t.Context(), "g")
		rig.Want(t, "CancelGroup", err, ErrClosed)
	})
}

// Several deadlines of one thing are a batch of one group.
func TestGroupOfABatch(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		const day = time.Minute // the test is as long as there are sweeps
		results, err := r.ScheduleBatch(t.Context(), []Request{
			{ID: "c7-close", Topic: "coupon.close", Group: "g", Delay: 30 * day},
			{ID: "c7-week", Topic: "coupon.warn", Group: "g", Delay: 23 * day},
			{ID: "c7-day", Topic: "coupon.warn", Group: "g", Delay: 29 * day},
		})
		rig.Want(t, "ScheduleBatch", errors.Join(err, results[0].Err, results[1].Err, results[2].Err), nil)
		group(r, "g", "c7-week", "c7-day", "c7-close")
		rig.Pass(23*day + time.Second)
		r.Ack(r.Pull("coupon.warn", "c7-week")[0])
		group(r, "g", "c7-day", "c7-close")
		cancelGroup(r, 2) // redeemed: no more warnings
		rig.Pass(10 * day)
		r.Pull("coupon.warn")
		r.Pull("coupon.close")
		r.CheckConsistency()
	})
}

// A task is listed in the group of its last content, after moves, a crash and a restart.
func TestGroupAfterMoves(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		replace := func(id, group string, delay time.Duration) {
			_, err := r.Replace(t.Context(), Request{ID: id, Topic: "x", Group: group, Delay: delay})
			rig.Want(t, "Replace", err, nil)
		}
		for i := range 4 {
			replace(fmt.Sprint("t", i), "g", time.Duration(i+1)*time.Hour)
		}
		replace("t1", "h", time.Hour)
		replace("t2", "", time.Hour)
		replace("t3", "g", time.Minute)
		_, err := r.Reschedule(t.Context(), "t0", Move{Delay: rig.Ptr(9 * time.Hour), Payload: []byte("longer than before")})
		rig.Want(t, "Reschedule", err, nil)
		check := func() {
			t.Helper()
			group(r, "g", "t3", "t0")
			group(r, "h", "t1")
			r.CheckConsistency()
		}
		check()
		r.Restart()
		synctest.Wait()
		check()
		r.Crash()
		synctest.Wait()
		check()
		replace("t1", "g", 2*time.Hour)
		replace("t2", "g", 3*time.Hour)
		group(r, "g", "t3", "t1", "t2", "t0")
		group(r, "h")
		cancelGroup(r, 4)
	})
}

// What the storage has lost is written again, and is in its group as before; what it has
// brought back is in none.
func TestGroupAfterARewind(t *testing.T) {
	rig.RewoundBubble(t, nil, func(t *testing.T, r *rig.RewindRig) {
		due := time.Now().Add(time.Hour)
		for i := range 10 {
			_, err := r.Schedule(t.Context(), Request{ID: fmt.Sprint("t", i), Topic: "x", Group: "g", Due: due})
			rig.Want(t, "Schedule", err, nil)
		}
		filed := recovery.Spot{Place: recovery.Pending, At: due.UnixMilli()}
		var loss recovery.Batch
		for i := range 5 {
			loss.Add(recovery.Change{ID: fmt.Append(nil, "t", i), From: filed})
		}
		stray := record.Fields{Flags: record.ChosenID, Revision: 1, Due: filed.At, Next: filed.At, Topic: []byte("x"), Group: []byte("g")}
		loss.Add(recovery.Change{ID: []byte("stray"), To: filed, Data: stray.Append(nil)})
		r.Loses(&loss)
		r.Storage.Watcher.Rewound(0)
		synctest.Wait()
		c, err := r.Asked.CancelGroup(t.Context(), "g")
		if rig.Want(t, "CancelGroup", err, nil); c.Cancelled != 10 || len(c.Delivering) != 0 {
			t.Errorf("cancelled %+v", c)
		}
		if held := r.Held(); len(held) != 0 {
			t.Errorf("left: %v", held)
		}
		rig.Mutex(r.Engine()).Lock()
		defer rig.Mutex(r.Engine()).Unlock()
		rig.Want(t, "groups", r.Engine().Store.Check(), nil)
	})
}

// Members that another caller is changing are waited for; what has left the group stays.
func TestCancelGroupOfBusyTasks(t *testing.T) {
	for _, c := range []struct {
		name       string
		delay      time.Duration
		begin      func(r *rig.Rig)
		cancelled  int
		delivering []string
		place      recovery.Place
	}{
		{"moved", time.Hour, func(r *rig.Rig) { _ = moveT(r) }, 1, nil, recovery.Nowhere},
		{"cancelled", time.Hour, func(r *rig.Rig) { _ = cancelT(r) }, 0, nil, recovery.Nowhere},
		{"replaced", time.Hour, func(r *rig.Rig) {
			_, _ = r.Replace(r.T.Context(), Request{ID: "t", Topic: "y", Group: "g", Delay: time.Hour})
		}, 1, nil, recovery.Nowhere},
		{"given another group", time.Hour, func(r *rig.Rig) {
			_, _ = r.Replace(r.T.Context(), Request{ID: "t", Topic: "x", Group: "h", Delay: time.Hour})
		}, 0, nil, recovery.Pending},
		{"claimed", 0, func(r *rig.Rig) {
			_, _ = r.Reserve(r.T.Context(), "x", 1, 0, time.Hour)
		}, 0, []string{"t"}, recovery.Pending},
	} {
		t.Run(c.name, func(t *testing.T) {
			rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
				r.MustSetTopic("x", TopicSettings{CountCrashes: true})
				r.Must(Request{ID: "t", Topic: "x", Group: "g", Delay: c.delay})
				_, release := r.Faulty.Hold(ledgertest.Apply)
				go c.begin(r)
				synctest.Wait()
				cancelled := make(chan GroupCancelled, 1)
				go func() {
					got, err := r.CancelGroup(t.Context(), "g")
					rig.Want(t, "CancelGroup", err, nil)
					cancelled <- got
				}()
				synctest.Wait()
				release()
				if got := <-cancelled; got.Cancelled != c.cancelled || !slices.Equal(got.Delivering, c.delivering) {
					t.Errorf("%+v", got)
				}
				rig.Pass(time.Second)
				r.InLedger("t", c.place)
				r.CheckConsistency()
			})
		})
	}
}

// When the ledger stops in the middle, the answer tells what was done before, and a
// repetition does the rest. Nothing that is open is delivered meanwhile.
func TestCancelGroupDuringAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, Config{}, memledger.BatchLimits(100, 1<<20))
		synctest.Wait()
		const n = 2*engine.PurgeAtOnce + 100
		members(r, n, time.Hour)
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Nth: 25, Times: -1})
		var c GroupCancelled
		var err error
		within(r, "CancelGroup", func() { c, err = r.CancelGroup(t.Context(), "g") })
		rig.Want(t, "CancelGroup", err, ErrUnknown)
		if pendings, _ := r.Dump(); c.Cancelled == 0 || c.Cancelled+len(pendings) != n {
			t.Errorf("%d were cancelled, %d are left of %d", c.Cancelled, len(pendings), n)
		}
		within(r, "CancelGroup", func() { c, err = r.CancelGroup(t.Context(), "g") })
		if rig.Want(t, "CancelGroup during an outage", err, ErrUnrecorded); c.Cancelled != 0 {
			t.Errorf("during an outage %+v", c)
		}
		r.CheckConsistency()
		r.Faulty.Heal()
		rig.Pass(3 * time.Second)
		_, err = r.CancelGroup(t.Context(), "g")
		rig.Want(t, "CancelGroup", err, nil)
		if total := r.Stats().Total; total.Cancelled != n || total.Pending != 0 {
			t.Errorf("in the end %+v", total)
		}
		group(r, "g")
		r.CheckConsistency()
	})
}

// members schedules n tasks of the group g.
func members(r *rig.Rig, n int, delay time.Duration) {
	r.T.Helper()
	requests := make([]Request, n)
	for i := range requests {
		requests[i] = Request{ID: fmt.Sprint("t", i), Topic: "x", Group: "g", Delay: delay}
	}
	for part := range slices.Chunk(requests, MaxBatch) {
		results, err := r.ScheduleBatch(r.T.Context(), part)
		rig.Want(r.T, "ScheduleBatch", err, nil)
		for _, res := range results {
			rig.Want(r.T, res.ID, res.Err, nil)
		}
	}
}

// What replay has not read yet does not survive unnoticed.
func TestCancelGroupDuringReplay(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		members(r, 100, time.Hour)
		r.Shut()
		r.Faulty = ledgertest.Wrap(r.Mem)
		_, release := r.Faulty.Hold(ledgertest.Scan)
		var err error
		r.Scheduler, err = Open(t.Context(), r.Faulty, r.Cfg)
		rig.Want(t, "Open", err, nil)
		within(r, "CancelGroup", func() { _, err = r.CancelGroup(t.Context(), "g") })
		rig.Want(t, "CancelGroup", err, ErrReplaying)
		release()
		cancelGroup(r, 100) // it waits for the end of replay
	})
}

// The answer names no more than a thousand of those that are being delivered.
func TestCancelGroupBeingDelivered(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		const out, left = MaxGroupDelivering + 500, 700
		members(r, out, 0)
		for taken := 0; taken < out; {
			ds, err := r.Reserve(t.Context(), "x", MaxReserve, 0, time.Hour)
			rig.Want(t, "Reserve", err, nil)
			taken += len(ds)
		}
		for i := range left {
			r.Must(Request{Topic: "y", Group: "g", Delay: time.Duration(i) * time.Second})
		}
		c, err := r.CancelGroup(t.Context(), "g")
		rig.Want(t, "CancelGroup", err, nil)
		slices.Sort(c.Delivering)
		if n := len(slices.Compact(c.Delivering)); c.Cancelled != left || n != MaxGroupDelivering || c.More != out-MaxGroupDelivering {
			t.Errorf("%d cancelled, %d named, %d more", c.Cancelled, n, c.More)
		}
		r.CheckConsistency()
	})
}

// Each task is cancelled, or delivered; those that CancelGroup neither cancels nor names
// were gone before. Members go and come in the meantime.
func TestCancelGroupRace(t *testing.T) {
	r := rig.New(t, Config{}, memledger.Shards(4))
	rounds, members := 40, 300
	if testing.Short() {
		rounds = 8
	}
	var mu sync.Mutex
	began, ended := make(map[string]int), make(map[string]int)
	r.MustSetTopic("x", TopicSettings{Concurrency: 8})
	r.MustHandle("x", func(_ context.Context, d *Delivery) error {
		mu.Lock()
		began[d.ID]++
		mu.Unlock()
		<-time.After(100 * time.Microsecond)
		mu.Lock()
		ended[d.ID]++
		mu.Unlock()
		return nil
	})
	total := 0
	for round := range rounds {
		group, now := fmt.Sprint("g", round), time.Now()
		requests := make([]Request, members)
		for i := range requests {
			requests[i] = Request{ID: fmt.Sprint(group, "-", i), Topic: "x", Group: group, Due: now.Add(time.Duration(i) * 100 * time.Microsecond)}
		}
		results, err := r.ScheduleBatch(t.Context(), requests)
		rig.Want(t, "ScheduleBatch", err, nil)
		for _, res := range results {
			rig.Want(t, "Schedule", res.Err, nil)
		}
		// Others move members meanwhile, within the group.
		var movers sync.WaitGroup
		movers.Go(func() {
			for i := 0; i < members; i += 7 {
				_, err := r.Reschedule(t.Context(), requests[i].ID, Move{Delay: rig.Ptr(time.Millisecond)})
				if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrDelivering) {
					t.Errorf("Reschedule: %v", err)
				}
			}
		})
		c, err := r.CancelGroup(t.Context(), group)
		rig.Want(t, "CancelGroup", err, nil)
		mu.Lock()
		seen := 0
		for i := range requests {
			seen += min(1, began[requests[i].ID])
		}
		for _, id := range c.Delivering {
			if ended[id] == 0 && began[id] == 0 {
				seen++ // its handler is about to be called
			}
		}
		mu.Unlock()
		if c.Cancelled+seen != members {
			t.Errorf("round %d: of %d, %d were cancelled, %d delivered or being so", round, members, c.Cancelled, seen)
		}
		total += c.Cancelled
		movers.Wait()
	}
	for r.Stats().Total.Pending+r.Stats().Total.Ready+r.Stats().Total.Delivering > 0 || r.Stats().Ledger.Queued > 0 {
		<-time.After(time.Millisecond)
	}
	mu.Lock()
	defer mu.Unlock()
	if total+len(began) != rounds*members || int(r.Counts("x").Cancelled) != total {
		t.Errorf("of %d, %d were cancelled and %d delivered; the counter says %d", rounds*members, total, len(began), r.Counts("x").Cancelled)
	}
	for id, n := range began {
		if n != 1 {
			t.Errorf("%s was delivered %d times", id, n)
		}
	}
	t.Logf("%d cancelled, %d delivered", total, len(began))
	r.CheckConsistency()
}
