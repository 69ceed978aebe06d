package engine_test

import (
	"context"
	"fmt"
	"sync/atomic"
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

// The audit writes again what the ledger has lost behind the node's back.
func TestAuditRepairs(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		for i := range 10 {
			r.Must(Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Hour})
		}
		d := r.One("out", "x")
		rig.Pass(2 * time.Second)
		for _, id := range []string{"t3", "t7", "out"} {
			spot, _ := r.Held(id)
			var b recovery.Batch
			b.Add(recovery.Change{ID: []byte(id), From: spot})
			rig.Want(t, "Apply", r.Mem.Apply(t.Context(), 0, &b), nil)
			r.InLedger(id, recovery.Nowhere)
		}
		rig.Pass(2 * time.Second)
		if s := r.Stats(); s.AuditRepaired != 3 || s.AuditChecked == 0 || !r.Log.Has("missing in the ledger") {
			t.Errorf("repaired %d, checked %d", s.AuditRepaired, s.AuditChecked)
		}
		r.CheckConsistency()
		r.Ack(d)
		rig.Pass(time.Minute)
		if s := r.Stats(); s.AuditRepaired != 3 {
			t.Errorf("repaired %d in the end", s.AuditRepaired)
		}
	})
}

// A ledger that cannot be read does not end the sweep.
func TestSweepOutlivesErrors(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		d := r.One("t", "x")
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Get, Times: -1})
		rig.Pass(time.Minute)
		// its lease was returned
		rig.Want(t, "Ack", r.SettleOne(Verdict{Verb: Ack}, d).Err, ErrStale)
		if !r.Log.Has("the audit could not read") {
			t.Error("nothing in the log")
		}
		r.Faulty.Heal()
		checked := r.Stats().AuditChecked
		rig.Pass(2 * time.Second)
		if r.Stats().AuditChecked == checked {
			t.Error("the audit does not go on")
		}
	})
}

// forget has the ledger lose records behind the node's back.
func forget(r *rig.Rig, ids ...string) {
	r.T.Helper()
	for _, id := range ids {
		spot, _ := r.Held(id)
		n, _ := r.Engine().Store.Find([]byte(id))
		var b recovery.Batch
		b.Add(recovery.Change{ID: []byte(id), From: spot})
		rig.Want(r.T, "Apply", r.Mem.Apply(r.T.Context(), int(r.Engine().Store.Slot(n).Shard), &b), nil)
	}
}

// A full sweep compares everything with the ledger, where a slice in every period would
// need long to come round.
func TestFullAudit(t *testing.T) {
	for _, shards := range []int{1, 4} {
		t.Run(fmt.Sprint(shards), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const n = 20_000
				r := rig.New(t, Config{SweepAt: []string{"5 * * * *"}, SweepEvery: 30 * time.Second}, memledger.Shards(shards))
				synctest.Wait()
				requests := make([]Request, MaxBatch)
				for first := 0; first < n; first += MaxBatch {
					for i := range requests {
						requests[i] = Request{ID: fmt.Sprint("t", first+i), Topic: "x", Delay: 24 * time.Hour}
					}
					_, err := r.ScheduleBatch(t.Context(), requests)
					rig.Want(t, "ScheduleBatch", err, nil)
				}
				rig.Pass(4 * time.Minute)
				lost := []string{"t0", "t7777", "t12345", "t19999"}
				forget(r, lost...)
				// The ledger cannot be read at first: nothing is left out for that.
				r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Get, Times: 6})
				rig.Pass(5 * time.Minute)
				s := r.Stats()
				if s.AuditRepaired != int64(len(lost)) || s.FullSweeps != 1 || s.AuditChecked < n || s.Rescued != 0 {
					t.Errorf("%d full sweeps, %d checked, %d repaired", s.FullSweeps, s.AuditChecked, s.AuditRepaired)
				}
				for _, id := range lost {
					r.InLedger(id, recovery.Pending)
				}
				if s.FullSweepTook <= 0 || s.FullSweepTook > 5*time.Minute || s.FullSweepAt.Minute() != 5 {
					t.Errorf("it began at %v and took %v", s.FullSweepAt, s.FullSweepTook)
				}
				r.CheckConsistency()
				r.WantNoRescue()
			})
		})
	}
}

// A full sweep that the ledger does not let come to its end holds nothing else up: not
// the sweep, not Close. And it is told once.
func TestFullAuditWithoutLedger(t *testing.T) {
	rig.Bubble(t, Config{SweepAt: []string{"1 * * * *"}}, func(t *testing.T, r *rig.Rig) {
		for i := range 1000 {
			r.Must(Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: 24 * time.Hour})
		}
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Get, Times: -1})
		d := r.One("t", "y")
		rig.Pass(5 * time.Minute)
		// its lease was returned
		rig.Want(t, "Ack", r.SettleOne(Verdict{Verb: Ack}, d).Err, ErrStale)
		if n := r.Log.Count("the audit could not read"); n != 1 || r.Stats().FullSweeps != 0 {
			t.Errorf("told %d times", n)
		}
	})
}

// What is with the ledger already, or on its way there, is not asked for; and a
// sample of large records is a small one.
func TestSamples(t *testing.T) {
	rig.Bubble(t, Config{SweepEvery: time.Minute}, func(t *testing.T, r *rig.Rig) {
		for i := range 100 {
			r.Must(Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Hour, Payload: make([]byte, 60<<10)})
		}
		_, release := r.Faulty.Hold(ledgertest.Apply)
		go func() { _ = r.Cancel(t.Context(), "t0") }()
		synctest.Wait()
		a, seen := r.Engine().NewAuditee(true), map[string]bool{}
		a.Repairs = engine.NewPendingWrite(0)
		for !a.Over() {
			a.Begin()
			refs := a.Sample(0, engine.AuditSlice)
			if len(refs) > engine.AuditBytes/(60<<10)+1 {
				t.Errorf("%d records at once", len(refs))
			}
			for _, ref := range refs {
				seen[ref.ID] = true
			}
		}
		if len(seen) != 99 || seen["t0"] {
			t.Errorf("%d sampled, the busy one among them: %v", len(seen), seen["t0"])
		}
		a.Begin()
		if refs := a.Sample(0, engine.AuditSlice); len(refs) != 0 {
			t.Errorf("%d more at the end", len(refs))
		}
		// A repair looks again: neither what is busy now nor what has moved is written.
		moved := recovery.Ref{ID: "t1", Next: 1}
		if n := a.Repair(0, []recovery.Ref{{ID: "t0"}, moved, {ID: "nobody"}}); n != 0 {
			t.Errorf("%d repaired", n)
		}
		release()
	})
}

// A round reads a bounded number of bytes of all shards, and the next one begins with the
// shards that it did not come to.
func TestAuditRoundIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, shards = 60 << 10, 16
		r := rig.New(t, Config{SweepEvery: time.Minute}, memledger.Shards(shards))
		synctest.Wait()
		for i := range 320 {
			r.Must(Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Hour, Payload: make([]byte, size)})
		}
		a, seen := r.Engine().NewAuditee(true), map[string]bool{}
		for rounds := 0; !a.Over() && rounds < 30; rounds++ {
			bytes := 0
			for _, shard := range a.Begin() {
				for _, ref := range a.Sample(shard, engine.AuditSlice) {
					seen[ref.ID], bytes = true, bytes+size
				}
			}
			if bytes > engine.AuditRound+size {
				t.Errorf("%d bytes in one round", bytes)
			}
		}
		if len(seen) != 320 {
			t.Errorf("%d sampled", len(seen))
		}
	})
}

// A slow ledger takes its time for every read.
type slowReads struct {
	*ledgertest.Faulty
	takes atomic.Int64 // a time.Duration
}

func (l *slowReads) Get(ctx context.Context, shard int, refs []recovery.Ref, found func(int, recovery.Entry)) error {
	select {
	case <-time.After(time.Duration(l.takes.Load())):
		return l.Faulty.Get(ctx, shard, refs, found)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Where reading all shards takes longer than an answer may take, the last ones are audited
// as well.
func TestAuditOfASlowLedger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memledger.New(memledger.Shards(8))
		ledger := &slowReads{Faulty: ledgertest.Wrap(mem)}
		s, err := Open(t.Context(), ledger, Config{})
		rig.Want(t, "Open", err, nil)
		defer func() { rig.Want(t, "Close", s.Close(context.Background()), nil) }()
		synctest.Wait()
		for i := range 80 {
			_, err := s.Schedule(t.Context(), Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Hour})
			rig.Want(t, "Schedule", err, nil)
		}
		for i := range 80 { // the ledger loses all of them
			rig.Mutex(rig.Engine(s)).Lock()
			n, _ := rig.Engine(s).Store.Find(fmt.Append(nil, "t", i))
			sl := rig.Engine(s).Store.Slot(n)
			shard, spot := int(sl.Shard), recovery.Spot{Place: recovery.Pending, At: sl.Stored}
			rig.Mutex(rig.Engine(s)).Unlock()
			var b recovery.Batch
			b.Add(recovery.Change{ID: fmt.Append(nil, "t", i), From: spot})
			rig.Want(t, "Apply", mem.Apply(t.Context(), shard, &b), nil)
		}
		ledger.takes.Store(int64(1500 * time.Millisecond))
		rig.Pass(time.Minute)
		if n := s.Stats().AuditRepaired; n != 80 {
			t.Errorf("%d of 80 were repaired", n)
		}
	})
}

// A repair that is refused, because others have taken the shard over, is not called one.
func TestAuditClaimsNoRefusedRepair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, Config{})
		synctest.Wait()
		r.Must(Request{ID: "t", Topic: "x", Delay: time.Hour})
		rig.Pass(2 * time.Second)
		spot, _ := r.Held("t")
		var b recovery.Batch
		b.Add(recovery.Change{ID: []byte("t"), From: spot})
		rig.Want(t, "Apply", r.Mem.Apply(t.Context(), 0, &b), nil)
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Err: recovery.ErrLost, Times: -1})
		rig.Pass(2 * time.Second)
		if s := r.Stats(); s.AuditRepaired != 0 || !r.Log.Has("missing=1 repaired=0") {
			t.Errorf("%d claimed", s.AuditRepaired)
		}
	})
}
