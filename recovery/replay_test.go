package recovery_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	"github.com/lapsehq/lapse/recovery/memledger"
)

// A notebook is a memory that knows ids and which of them are locked.
type notebook struct {
	t        *testing.T
	known    map[string]int64 // next
	locked   map[string]bool
	loads    int
	resolved []int // records of each piece
}

func newNotebook(t *testing.T) *notebook {
	return &notebook{t: t, known: map[string]int64{}, locked: map[string]bool{}}
}

func (n *notebook) Load(page []recovery.Entry) {
	n.loads++
	for _, e := range page {
		if e.Data == nil {
			n.t.Errorf("Load got %s without Data", e.ID)
		}
		if _, known := n.known[string(e.ID)]; !known {
			n.known[string(e.ID)] = e.Spot.At
		}
	}
}

func (n *notebook) Lock(page []recovery.Entry) []int {
	var positions []int
	for i, e := range page {
		id := string(e.ID)
		if e.Data != nil {
			n.t.Errorf("Lock got %s with Data", id)
		}
		if _, known := n.known[id]; !known && !n.locked[id] {
			n.locked[id] = true
			positions = append(positions, i)
		}
	}
	return positions
}

func (n *notebook) Resolve(page []recovery.Entry, found bool) {
	n.resolved = append(n.resolved, len(page))
	for _, e := range page {
		id := string(e.ID)
		if !n.locked[id] {
			n.t.Errorf("%s is resolved, but not locked", id)
		}
		delete(n.locked, id)
		if found {
			n.known[id] = e.Spot.At
		}
	}
}

// stocked is a ledger with n records, adopted anew.
func stocked(t *testing.T, n int, options ...memledger.Option) *ledgertest.Faulty {
	t.Helper()
	l := memledger.New(append(options, memledger.Strict())...)
	terms, err := l.Adopt(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		var b recovery.Batch
		c := creation(fmt.Sprint("task-", i), int64(i))
		b.Add(c)
		if err := l.Apply(t.Context(), terms.ShardOf(c.ID), &b); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	f := ledgertest.Wrap(l)
	if _, err := f.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestReplay(t *testing.T) {
	for name, options := range map[string][]memledger.Option{
		"with data":  {memledger.Shards(3)},
		"nominating": {memledger.Shards(3), memledger.Nominating()},
	} {
		t.Run(name, func(t *testing.T) {
			f, m := stocked(t, 500, options...), newNotebook(t)
			m.known["task-7"] = -1 // already in memory, and newer there
			var last recovery.Progress
			if err := recovery.Replay(t.Context(), f, m, func(p recovery.Progress) { last = p }); err != nil {
				t.Fatal(err)
			}
			if len(m.known) != 500 || m.known["task-7"] != -1 || len(m.locked) > 0 {
				t.Errorf("%d known, %d locked, task-7 at %d", len(m.known), len(m.locked), m.known["task-7"])
			}
			if !last.Done || last.Read < 500 {
				t.Errorf("the last report is %+v", last)
			}
		})
	}
}

// TestReplayResolvesManyAtOnce: records that were nominated come back many at a time, but not too
// many, and not too large: memory holds its lock for each piece.
func TestReplayResolvesManyAtOnce(t *testing.T) {
	const most = 256
	f, m := stocked(t, 4*most, memledger.Nominating()), newNotebook(t)
	if err := recovery.Replay(t.Context(), f, m, nil); err != nil {
		t.Fatal(err)
	}
	if len(m.known) != 4*most || slices.Max(m.resolved) > most || slices.Max(m.resolved) < most/8 {
		t.Errorf("%d known, resolved in pieces of %v", len(m.known), m.resolved)
	}
}

// TestReplayStartsAnew: a scan that breaks is repeated until one is complete. The first failure
// is reported, and the end.
func TestReplayStartsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, m := stocked(t, 500), newNotebook(t)
		f.Inject(ledgertest.Fault{Op: ledgertest.Scan, Times: 2})
		f.Inject(ledgertest.Fault{Op: ledgertest.Page, Nth: 3})
		f.Inject(ledgertest.Fault{Op: ledgertest.Get, Nth: 2, Times: 3, After: true})
		reports := 0
		if err := recovery.Replay(t.Context(), f, m, func(p recovery.Progress) {
			if reports++; p.Done && p.Read != 500 {
				t.Errorf("the complete scan read %d", p.Read)
			}
		}); err != nil {
			t.Fatal(err)
		}
		if len(m.known) != 500 || len(m.locked) > 0 || f.Calls(ledgertest.Scan) != 4 || reports != 2 {
			t.Errorf("%d known, %d locked after %d scans and %d reports",
				len(m.known), len(m.locked), f.Calls(ledgertest.Scan), reports)
		}
	})
}

// TestReplayDropsWhatHasGone: a page read before a delete brings no record back.
func TestReplayDropsWhatHasGone(t *testing.T) {
	f, m := stocked(t, 50, memledger.Nominating()), newNotebook(t)
	reached, release := f.Hold(ledgertest.Get)
	ended := make(chan error, 1)
	go func() { ended <- recovery.Replay(t.Context(), f, m, nil) }()
	<-reached
	for i := range 50 {
		var b recovery.Batch
		b.Add(recovery.Change{ID: fmt.Append(nil, "task-", i), From: pending(int64(i))})
		if err := f.Apply(t.Context(), 0, &b); err != nil {
			t.Fatal(err)
		}
	}
	release()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if len(m.known) > 0 || len(m.locked) > 0 {
		t.Errorf("%d records came back, %d are locked", len(m.known), len(m.locked))
	}
}

// TestReplayGivesUp: in the end nothing stays locked, whatever the reason.
func TestReplayGivesUp(t *testing.T) {
	stop := errors.New("shutting down")
	for name, c := range map[string]struct {
		fault ledgertest.Fault
		want  error
	}{
		"ctx ends during scans": {ledgertest.Fault{Op: ledgertest.Scan, Times: -1}, stop},
		"ctx ends during reads": {ledgertest.Fault{Op: ledgertest.Get, Times: -1}, stop},
		"the ledger is closed":  {ledgertest.Fault{Op: ledgertest.Get, Err: recovery.ErrClosed}, recovery.ErrClosed},
		"a shard is lost":       {ledgertest.Fault{Op: ledgertest.Get, Err: recovery.ErrLost}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, m := stocked(t, 200, memledger.Nominating()), newNotebook(t)
				f.Inject(c.fault)
				ctx, cancel := context.WithCancelCause(t.Context())
				defer time.AfterFunc(time.Minute, func() { cancel(stop) }).Stop()
				if err := recovery.Replay(ctx, f, m, nil); !errors.Is(err, c.want) {
					t.Errorf("Replay: %v, want %v", err, c.want)
				}
				if len(m.locked) > 0 {
					t.Errorf("%d ids stay locked", len(m.locked))
				}
			})
		})
	}
}

// An auditee samples given records and notes what it shall repair.
type auditee struct {
	samples map[int][]recovery.Ref
	missing map[int][]recovery.Ref
	again   []int
}

func (a *auditee) Again(shard int) { a.again = append(a.again, shard) }

func (a *auditee) Sample(shard, n int) []recovery.Ref {
	s := a.samples[shard]
	return s[:min(n, len(s))]
}

func (a *auditee) Repair(shard int, missing []recovery.Ref) int {
	a.missing[shard] = missing
	return len(missing) - 1 // one has moved meanwhile
}

func TestAudit(t *testing.T) {
	f := stocked(t, 4)
	ref := func(id string, next int64) recovery.Ref { return recovery.Ref{ID: id, Next: next} }
	a := &auditee{
		samples: map[int][]recovery.Ref{
			0: {ref("task-0", 0), ref("lost-1", 9), ref("task-3", 3), ref("lost-2", 9), ref("beyond-n", 9)},
		},
		missing: map[int][]recovery.Ref{},
	}
	checked, repaired, err := recovery.Audit(t.Context(), f, a, []int{0}, 4, time.Second)
	if err != nil || checked != 4 || repaired != 1 {
		t.Errorf("Audit = %d, %d, %v, want 4 checked, 1 repaired", checked, repaired, err)
	}
	if want := []recovery.Ref{ref("lost-1", 9), ref("lost-2", 9)}; !slices.Equal(a.missing[0], want) {
		t.Errorf("missing: %v, want %v", a.missing[0], want)
	}
}

// TestAuditReadsOtherShards: a shard that cannot be read does not keep the others from being
// audited.
func TestAuditReadsOtherShards(t *testing.T) {
	f := stocked(t, 0, memledger.Shards(3))
	f.Inject(ledgertest.Fault{Op: ledgertest.Get, Nth: 2})
	a := &auditee{samples: map[int][]recovery.Ref{}, missing: map[int][]recovery.Ref{}}
	for shard := range 3 {
		a.samples[shard] = []recovery.Ref{{ID: "lost"}, {ID: "lost-too"}}
	}
	checked, repaired, err := recovery.Audit(t.Context(), f, a, []int{0, 1, 2}, 10, time.Second)
	if !errors.Is(err, ledgertest.ErrInjected) || checked != 4 || repaired != 2 || a.missing[1] != nil {
		t.Errorf("Audit = %d, %d, %v; missing %v", checked, repaired, err, a.missing)
	}
	if !slices.Equal(a.again, []int{1}) {
		t.Errorf("%v are sampled again", a.again)
	}
}

// A hanging ledger does not answer about one shard.
type hanging struct {
	recovery.Ledger
	shard int
}

func (l hanging) Get(ctx context.Context, shard int, refs []recovery.Ref, found func(int, recovery.Entry)) error {
	if shard == l.shard {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return l.Ledger.Get(ctx, shard, refs, found)
}

// Each shard has a deadline of its own, so that one without an answer leaves time for the others.
func TestAuditOfAHangingShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := hanging{stocked(t, 0, memledger.Shards(3)), 0}
		a := &auditee{samples: map[int][]recovery.Ref{}, missing: map[int][]recovery.Ref{}}
		for shard := range 3 {
			a.samples[shard] = []recovery.Ref{{ID: "lost"}, {ID: "lost-too"}}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		checked, repaired, err := recovery.Audit(ctx, f, a, []int{0, 1, 2}, 10, 10*time.Second)
		if !errors.Is(err, context.DeadlineExceeded) || checked != 4 || repaired != 2 || !slices.Equal(a.again, []int{0}) {
			t.Errorf("Audit = %d, %d, %v; %v are sampled again", checked, repaired, err, a.again)
		}
	})
}

// Replaying one shard reads what is pending there, and ends when the shard is lost.
func TestReplayShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := memfleet.New()
		a, b := f.Join("a", 2), f.Join("b", 1)
		for _, m := range []*memfleet.Member{a, b} {
			if _, err := m.Adopt(t.Context()); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = m.Close() }()
		}
		for shard := range 2 {
			var batch recovery.Batch
			batch.Add(creation(fmt.Sprint("in ", shard), 1))
			if err := a.Apply(t.Context(), shard, &batch); err != nil {
				t.Fatal(err)
			}
		}
		n := newNotebook(t)
		if err := recovery.ReplayShard(t.Context(), a, 1, n, nil); err != nil {
			t.Fatal(err)
		}
		if _, ok := n.known["in 1"]; !ok || len(n.known) != 1 || len(n.locked) != 0 {
			t.Errorf("%v known, %v locked", n.known, n.locked)
		}
		b.AdoptFrom(a)
		if err := recovery.ReplayShard(t.Context(), a, 1, n, nil); !errors.Is(err, recovery.ErrLost) {
			t.Errorf("ReplayShard of a lost shard = %v", err)
		}
		// A node that is cut off tries again.
		b.Cut(true)
		time.AfterFunc(time.Minute, func() { b.Cut(false) })
		n = newNotebook(t)
		if err := recovery.ReplayShard(t.Context(), b, 1, n, nil); err != nil || len(n.known) != 1 {
			t.Errorf("%v known, %v", n.known, err)
		}
	})
}
