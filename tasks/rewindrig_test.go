package tasks_test

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
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/record"
)

// Forgetful is a storage that loses writes when a test says so.
type forgetful struct {
	watcher recovery.Watcher
	lose    func(b *recovery.Batch) // loses a write before it is answered; may be nil
	gate    chan struct{}           // keeps Apply waiting until it is closed; may be nil
	// before and after are called with the first scan; either may be nil. An error of before
	// breaks it.
	before  func() error
	after   func()
	scanned bool
}

func (f *forgetful) apply(b *recovery.Batch, apply func() error) error {
	if f.gate != nil {
		<-f.gate
	}
	err := apply()
	if lose := f.lose; lose != nil && err == nil {
		f.lose = nil
		lose(b)
	}
	return err
}

func (f *forgetful) scan(scan func() error) error {
	first := !f.scanned
	f.scanned = true
	if first && f.before != nil {
		if err := f.before(); err != nil {
			return err
		}
	}
	err := scan()
	if first && f.after != nil {
		f.after()
	}
	return err
}

// A forgetfulLedger is the storage of one node alone.
type forgetfulLedger struct {
	*memledger.Ledger
	f *forgetful
}

func (l forgetfulLedger) Watch(w recovery.Watcher) { l.f.watcher = w }

func (l forgetfulLedger) Apply(ctx context.Context, shard int, b *recovery.Batch) error {
	return l.f.apply(b, func() error { return l.Ledger.Apply(ctx, shard, b) })
}

func (l forgetfulLedger) Scan(ctx context.Context, page func([]recovery.Entry) error) error {
	return l.f.scan(func() error { return l.Ledger.Scan(ctx, page) })
}

func (l forgetfulLedger) ScanShard(ctx context.Context, shard int, page func([]recovery.Entry) error) error {
	return l.Ledger.Scan(ctx, func(all []recovery.Entry) error {
		return page(slices.DeleteFunc(slices.Clone(all), func(e recovery.Entry) bool { return e.Shard != shard }))
	})
}

// A forgetfulMember is that of one of several nodes.
type forgetfulMember struct {
	*memfleet.Member
	f *forgetful
}

func (m forgetfulMember) Watch(w recovery.Watcher) {
	m.f.watcher = w
	m.Member.Watch(w)
}

func (m forgetfulMember) Apply(ctx context.Context, shard int, b *recovery.Batch) error {
	return m.f.apply(b, func() error { return m.Member.Apply(ctx, shard, b) })
}

func (m forgetfulMember) Scan(ctx context.Context, page func([]recovery.Entry) error) error {
	return m.f.scan(func() error { return m.Member.Scan(ctx, page) })
}

// A rewindRig is a node with one shard, whose storage loses writes: alone, or beside another
// node that shares the ledger and talks to it over the relay. Its Scheduler is that node.
type rewindRig struct {
	*Scheduler
	t       *testing.T
	asked   *Scheduler // is asked about its tasks: the other node, or itself
	storage *forgetful
	ledger  recovery.Ledger // on the storage
	log     *logged
}

// rewoundBubble runs a test with fake time for one node and for a fleet. prepare, which may be nil,
// comes before the node is opened.
func rewoundBubble(t *testing.T, prepare func(r *rewindRig), test func(t *testing.T, r *rewindRig)) {
	t.Helper()
	run := func(t *testing.T, r *rewindRig, ledger recovery.Ledger) {
		r.t, r.ledger, r.log = t, ledger, &logged{}
		if prepare != nil {
			prepare(r)
		}
		var err error
		r.Scheduler, err = Open(t.Context(), ledger, Config{Node: "a", Log: slog.New(slog.NewTextHandler(r.log, nil))})
		want(t, "Open", err, nil)
		defer r.Close(context.Background())
		if r.asked == nil {
			r.asked = r.Scheduler
		}
		synctest.Wait()
		test(t, r)
		want(t, "check", consistent(r.Engine(), ledger), nil)
	}
	t.Run("one", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := &rewindRig{storage: &forgetful{}}
			run(t, r, forgetfulLedger{memledger.New(memledger.Nominating()), r.storage})
		})
	})
	t.Run("fleet", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, fleet := &rewindRig{storage: &forgetful{}}, memfleet.New()
			var err error
			r.asked, err = Open(t.Context(), fleet.Join("b", 1), Config{Node: "b", Log: slog.New(slog.DiscardHandler)})
			want(t, "Open", err, nil)
			defer r.asked.Close(context.Background())
			pass(3 * time.Second) // all ids are in the directory by then
			run(t, r, forgetfulMember{fleet.Join("a", 1), r.storage})
		})
	})
}

// loses has the storage lose, or bring back, records behind the node's back.
func (r *rewindRig) loses(loss *recovery.Batch) {
	r.t.Helper()
	switch l := r.ledger.(type) {
	case forgetfulLedger:
		want(r.t, "Apply", l.Ledger.Apply(r.t.Context(), 0, loss), nil)
	case forgetfulMember:
		want(r.t, "Apply", l.Member.Apply(r.t.Context(), 0, loss), nil)
	}
}

// strayed is a record of a finished task that the storage brings back.
func strayed(id string, due int64) recovery.Change {
	rec := record.Fields{Flags: record.ChosenID, Revision: 1, Due: due, Next: due, Topic: []byte("x")}
	return recovery.Change{ID: []byte(id), To: recovery.Spot{Place: recovery.Pending, At: due}, Data: rec.Append(nil)}
}

// held are the records in the storage, by id, with the times at which they are registered.
func (r *rewindRig) held() map[string]int64 {
	r.t.Helper()
	held := map[string]int64{}
	want(r.t, "ScanShard", r.ledger.(recovery.Rewinder).ScanShard(r.t.Context(), 0, func(page []recovery.Entry) error {
		for _, e := range page {
			held[string(e.ID)] = e.Spot.At
		}
		return nil
	}), nil)
	return held
}

// wantGone wants no node to know these ids, and the storage not to have them.
func (r *rewindRig) wantGone(ids ...string) {
	r.t.Helper()
	held := r.held()
	for _, id := range ids {
		if _, there := held[id]; there {
			r.t.Errorf("%s is still in the ledger", id)
		}
		for _, s := range []*Scheduler{r.Scheduler, r.asked} {
			_, err := s.Get(r.t.Context(), id)
			want(r.t, "Get "+id, err, ErrNotFound)
		}
	}
}
