package rig

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/record"
)

// Forgetful is a storage that loses writes when a test says so.
type Forgetful struct {
	Watcher recovery.Watcher
	Lose    func(b *recovery.Batch) // loses a write before it is answered; may be nil
	Gate    chan struct{}           // keeps Apply waiting until it is closed; may be nil
	// before and after are called with the first scan; either may be nil. An error of before
	// breaks it.
	Before  func() error
	After   func()
	scanned bool
}

func (f *Forgetful) apply(b *recovery.Batch, apply func() error) error {
	if f.Gate != nil {
		<-f.Gate
	}
	err := apply()
	if lose := f.Lose; lose != nil && err == nil {
		f.Lose = nil
		lose(b)
	}
	return err
}

func (f *Forgetful) scan(scan func() error) error {
	first := !f.scanned
	f.scanned = true
	if first && f.Before != nil {
		if err := f.Before(); err != nil {
			return err
		}
	}
	err := scan()
	if first && f.After != nil {
		f.After()
	}
	return err
}

// A ForgetfulLedger is the storage of one node alone.
type ForgetfulLedger struct {
	*memledger.Ledger
	F *Forgetful
}

// Watch implements recovery.Ledger, with the losses of the test.
func (l ForgetfulLedger) Watch(w recovery.Watcher) { l.F.Watcher = w }

// Apply implements recovery.Ledger, with the losses of the test.
func (l ForgetfulLedger) Apply(ctx context.Context, shard int, b *recovery.Batch) error {
	return l.F.apply(b, func() error { return l.Ledger.Apply(ctx, shard, b) })
}

// Scan implements recovery.Ledger, with the losses of the test.
func (l ForgetfulLedger) Scan(ctx context.Context, page func([]recovery.Entry) error) error {
	return l.F.scan(func() error { return l.Ledger.Scan(ctx, page) })
}

// ScanShard implements recovery.Rewinder.
func (l ForgetfulLedger) ScanShard(ctx context.Context, shard int, page func([]recovery.Entry) error) error {
	return l.Ledger.Scan(ctx, func(all []recovery.Entry) error {
		return page(slices.DeleteFunc(slices.Clone(all), func(e recovery.Entry) bool { return e.Shard != shard }))
	})
}

// A forgetfulMember is that of one of several nodes.
type forgetfulMember struct {
	*memfleet.Member
	f *Forgetful
}

func (m forgetfulMember) Watch(w recovery.Watcher) {
	m.f.Watcher = w
	m.Member.Watch(w)
}

func (m forgetfulMember) Apply(ctx context.Context, shard int, b *recovery.Batch) error {
	return m.f.apply(b, func() error { return m.Member.Apply(ctx, shard, b) })
}

func (m forgetfulMember) Scan(ctx context.Context, page func([]recovery.Entry) error) error {
	return m.f.scan(func() error { return m.Member.Scan(ctx, page) })
}

// A RewindRig is a node with one shard, whose storage loses writes: alone, or beside another
// node that shares the ledger and talks to it over the relay. Its Scheduler is that node.
type RewindRig struct {
	*tasks.Scheduler
	t       *testing.T
	Asked   *tasks.Scheduler // is asked about its tasks: the other node, or itself
	Storage *Forgetful
	Ledger  recovery.Ledger // on the storage
	Log     *Logged
}

// RewoundBubble runs a test with fake time for one node and for a fleet. prepare, which may be nil,
// comes before the node is opened.
func RewoundBubble(t *testing.T, prepare func(r *RewindRig), test func(t *testing.T, r *RewindRig)) {
	t.Helper()
	run := func(t *testing.T, r *RewindRig, ledger recovery.Ledger) {
		r.t, r.Ledger, r.Log = t, ledger, &Logged{}
		if prepare != nil {
			prepare(r)
		}
		var err error
		r.Scheduler, err = tasks.Open(t.Context(), ledger, tasks.Config{Node: "a", Log: slog.New(slog.NewTextHandler(r.Log, nil))})
		Want(t, "Open", err, nil)
		defer r.Close(context.Background())
		if r.Asked == nil {
			r.Asked = r.Scheduler
		}
		synctest.Wait()
		test(t, r)
		Want(t, "check", consistent(r.Engine(), ledger), nil)
	}
	t.Run("one", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := &RewindRig{Storage: &Forgetful{}}
			run(t, r, ForgetfulLedger{memledger.New(memledger.Nominating()), r.Storage})
		})
	})
	t.Run("fleet", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, fleet := &RewindRig{Storage: &Forgetful{}}, memfleet.New()
			var err error
			r.Asked, err = tasks.Open(t.Context(), fleet.Join("b", 1), tasks.Config{Node: "b", Log: slog.New(slog.DiscardHandler)})
			Want(t, "Open", err, nil)
			defer r.Asked.Close(context.Background())
			Pass(3 * time.Second) // all ids are in the directory by then
			run(t, r, forgetfulMember{fleet.Join("a", 1), r.Storage})
		})
	})
}

// Loses has the storage lose, or bring back, records behind the node's back.
func (r *RewindRig) Loses(loss *recovery.Batch) {
	r.t.Helper()
	switch l := r.Ledger.(type) {
	case ForgetfulLedger:
		Want(r.t, "Apply", l.Ledger.Apply(r.t.Context(), 0, loss), nil)
	case forgetfulMember:
		Want(r.t, "Apply", l.Member.Apply(r.t.Context(), 0, loss), nil)
	}
}

// Strayed is a record of a finished task that the storage brings back.
func Strayed(id string, due int64) recovery.Change {
	rec := record.Fields{Flags: record.ChosenID, Revision: 1, Due: due, Next: due, Topic: []byte("x")}
	return recovery.Change{ID: []byte(id), To: recovery.Spot{Place: recovery.Pending, At: due}, Data: rec.Append(nil)}
}

// Held are the records in the storage, by id, with the times at which they are registered.
func (r *RewindRig) Held() map[string]int64 {
	r.t.Helper()
	held := map[string]int64{}
	Want(r.t, "ScanShard", r.Ledger.(recovery.Rewinder).ScanShard(r.t.Context(), 0, func(page []recovery.Entry) error {
		for _, e := range page {
			held[string(e.ID)] = e.Spot.At
		}
		return nil
	}), nil)
	return held
}

// WantGone wants no node to know these ids, and the storage not to have them.
func (r *RewindRig) WantGone(ids ...string) {
	r.t.Helper()
	held := r.Held()
	for _, id := range ids {
		if _, there := held[id]; there {
			r.t.Errorf("%s is still in the ledger", id)
		}
		for _, s := range []*tasks.Scheduler{r.Scheduler, r.Asked} {
			_, err := s.Get(r.t.Context(), id)
			Want(r.t, "Get "+id, err, tasks.ErrNotFound)
		}
	}
}
