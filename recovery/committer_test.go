package recovery_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/memledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// A desk is a committer over a faulty ledger in memory, and its reports.
type desk struct {
	*testing.T
	ledger    *ledgertest.Faulty
	committer *recovery.Committer[string]

	mu      sync.Mutex // guards reports
	reports []string   // "error: tag tag", one a call of Done
}

func newDesk(t *testing.T, change func(*recovery.CommitterConfig[string])) *desk {
	d := &desk{T: t, ledger: ledgertest.Wrap(memledger.New(memledger.Strict(), memledger.Shards(2)))}
	terms, err := d.ledger.Adopt(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cfg := recovery.CommitterConfig[string]{Ledger: d.ledger, Terms: terms, Done: d.done, Log: quiet()}
	if change != nil {
		change(&cfg)
	}
	d.committer = recovery.NewCommitter(cfg)
	t.Cleanup(func() { _ = d.committer.Close(context.Background()) })
	return d
}

func (d *desk) done(shard int, tags []string, err error) {
	outcome := "ok"
	for known, name := range map[error]string{
		recovery.ErrDropped: "dropped", recovery.ErrFull: "full", recovery.ErrLost: "lost", recovery.ErrClosed: "closed",
	} {
		if errors.Is(err, known) {
			outcome, err = name, nil
		}
	}
	if err != nil {
		d.Errorf("Done(%v): %v", tags, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reports = append(d.reports, fmt.Sprintf("%d %s: %s", shard, outcome, strings.Join(tags, " ")))
}

func (d *desk) submit(shard int, ids ...string) {
	for _, id := range ids {
		d.committer.Submit(shard, creation(id, 1), id)
	}
}

// want compares the reports so far, in order.
func (d *desk) want(reports ...string) {
	d.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(d.reports, reports) {
		d.Errorf("reports: %q, want %q", d.reports, reports)
	}
}

func TestNaturalBatching(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		reached, release := d.ledger.Hold(ledgertest.Apply)
		d.submit(0, "first")
		<-reached
		d.submit(0, "a", "b", "c")
		d.submit(1, "other-shard")
		time.Sleep(time.Second) // of the bubble's clock
		if got := d.committer.Stalled(0); got != time.Second {
			t.Errorf("Stalled = %v, want 1s", got)
		}
		if s := d.committer.Stats(); s.Queued != 5 || s.Stall != time.Second {
			t.Errorf("Stats = %+v, want 5 queued and a stall of 1s", s)
		}
		release()
		synctest.Wait()
		slices.Sort(d.reports)
		d.want("0 ok: a b c", "0 ok: first", "1 ok: other-shard")
		want := recovery.CommitterStats{Commits: 3, Changes: 5, LargestBatch: 3}
		if s := d.committer.Stats(); s != want {
			t.Errorf("Stats = %+v, want %+v", s, want)
		}
	})
}

func TestBatchBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(cfg *recovery.CommitterConfig[string]) {
			cfg.Terms.MaxChanges, cfg.Terms.MaxBytes = 3, 100
		})
		reached, release := d.ledger.Hold(ledgertest.Apply)
		d.submit(0, "first")
		<-reached
		d.submit(0, "a", "b", "c", "d")
		d.submit(0, strings.Repeat("L", 100)) // larger than a batch may be
		d.submit(0, "e")
		release()
		synctest.Wait()
		d.want("0 ok: first", "0 ok: a b c", "0 ok: d", "0 ok: "+strings.Repeat("L", 100), "0 ok: e")
	})
}

// TestRepeat: a batch is repeated unchanged, with growing pauses, and nothing
// overtakes it.
func TestRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		for n := range 8 {
			d.ledger.Inject(ledgertest.Fault{Op: ledgertest.Apply, After: n%2 == 0})
		}
		began := time.Now()
		d.submit(0, "a")
		synctest.Wait()
		d.submit(0, "b", "c")
		for d.committer.Stats().Queued > 0 {
			time.Sleep(time.Millisecond)
		}
		d.want("0 ok: a", "0 ok: b c")
		if s := d.committer.Stats(); s.Repeats != 8 || s.Commits != 2 {
			t.Errorf("Stats = %+v, want 8 repeats and 2 commits", s)
		}
		// 10, 20, 40, ... 640 and 1000 ms, each up to a fifth shorter
		if took := time.Since(began); took < 1800*time.Millisecond || took > 2300*time.Millisecond {
			t.Errorf("8 repeats took %v of pauses", took)
		}
	})
}

func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := map[string]int{}
		d := newDesk(t, func(cfg *recovery.CommitterConfig[string]) {
			cfg.Keep = func(id string) bool { asked[id]++; return !strings.HasPrefix(id, "gone") }
		})
		d.ledger.Inject(ledgertest.Fault{Op: ledgertest.Apply, Times: 3})
		reached, release := d.ledger.Hold(ledgertest.Apply)
		d.submit(0, "first")
		<-reached
		d.submit(0, "gone-1", "a", "gone-2", "b")
		release()
		time.Sleep(time.Minute)
		d.submit(0, "gone-3")
		synctest.Wait()
		d.want("0 ok: first", "0 dropped: gone-1 gone-2", "0 ok: a b", "0 dropped: gone-3")
		for id, times := range asked {
			if times != 1 {
				t.Errorf("Keep was asked %d times for %s", times, id)
			}
		}
		if calls := d.ledger.Calls(ledgertest.Apply); calls != 5 {
			t.Errorf("Apply was called %d times, want 5: an empty batch is not sent", calls)
		}
	})
}

// TestFull: a ledger without room refuses creations and delays nothing else.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		d.submit(0, "a", "b")
		synctest.Wait()
		d.ledger.SetFull(true)
		d.ledger.Inject(ledgertest.Fault{Op: ledgertest.Apply}) // and does not answer at first
		reached, release := d.ledger.Hold(ledgertest.Apply)
		d.submit(0, "c")
		<-reached
		d.submit(0, "d")
		d.committer.Submit(0, recovery.Change{ID: []byte("a"), From: pending(1)}, "a-done")
		d.submit(0, "e")
		moved := creation("b", 2)
		moved.From = pending(1)
		d.committer.Submit(0, moved, "b-moved")
		release()
		time.Sleep(time.Second)
		d.ledger.SetFull(false)
		d.submit(0, "d")
		synctest.Wait()
		d.want("0 ok: a b", "0 full: c", "0 full: d e", "0 ok: a-done b-moved", "0 ok: d")
		if got := d.committer.Stats(); got.Queued != 0 || got.Stall != 0 {
			t.Errorf("something is left: %+v", got)
		}
		var held []string
		refs := []recovery.Ref{{ID: "a", Next: 1}, {ID: "b", Next: 2}, {ID: "c", Next: 1}, {ID: "d", Next: 1}, {ID: "e", Next: 1}}
		if err := d.ledger.Get(t.Context(), 0, refs, func(_ int, e recovery.Entry) {
			held = append(held, fmt.Sprint(string(e.ID), e.Spot.At))
		}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(held, []string{"b2", "d1"}) {
			t.Errorf("the ledger holds %v", held)
		}
	})
}

// Lanes take turns: so many send at once as the ledger allows. Changes that come meanwhile join the
// batch that waits, and a lane that must repeat its batch delays no other.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(cfg *recovery.CommitterConfig[string]) { cfg.Terms.AtOnce = 1 })
		reached, release := d.ledger.Hold(ledgertest.Apply)
		d.submit(0, "a")
		<-reached
		d.submit(1, "b")
		synctest.Wait()
		d.submit(1, "c") // joins b
		time.Sleep(time.Second)
		if n := d.ledger.Calls(ledgertest.Apply); n != 1 {
			t.Errorf("%d batches are under way", n)
		}
		if got := d.committer.Stalled(1); got != time.Second {
			t.Errorf("a lane that waits for its turn counts as stalled for %s", got)
		}
		release()
		synctest.Wait()
		d.want("0 ok: a", "1 ok: b c")
		if got := d.committer.Stalled(1); got != 0 {
			t.Errorf("a lane without work counts as stalled for %s", got)
		}

		d.ledger.Inject(ledgertest.Fault{Op: ledgertest.Apply})
		d.submit(0, "d")
		synctest.Wait() // it has failed, and pauses
		d.submit(1, "e")
		time.Sleep(time.Minute)
		d.want("0 ok: a", "1 ok: b c", "1 ok: e", "0 ok: d")
	})
}

// A ledger is silent when it answers no shard at all, not when one shard waits.
func TestSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(cfg *recovery.CommitterConfig[string]) {
			cfg.Backoff = recovery.Backoff{Min: time.Hour, Max: time.Hour}
		})
		silent := func(want bool) {
			t.Helper()
			if got := d.committer.Silent(time.Second); got != want {
				t.Errorf("the ledger counts as silent: %v", got)
			}
		}
		time.Sleep(time.Minute)
		silent(false) // nothing was sent to it
		d.ledger.Inject(ledgertest.Fault{Op: ledgertest.Apply})
		d.submit(0, "a")
		time.Sleep(time.Second)
		silent(false)
		time.Sleep(time.Millisecond)
		silent(true)
		d.submit(1, "b")
		time.Sleep(time.Second)
		silent(false) // a still waits, and b was answered
		time.Sleep(time.Millisecond)
		silent(true)
		d.submit(1, "c")
		synctest.Wait()
		silent(false)
	})
}

func TestLostShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		d.ledger.Inject(ledgertest.Fault{Op: ledgertest.Apply, Err: fmt.Errorf("taken: %w", recovery.ErrLost)})
		reached, release := d.ledger.Hold(ledgertest.Apply)
		d.submit(0, "a")
		<-reached
		d.submit(0, "b")
		release()
		synctest.Wait()
		d.submit(0, "c")
		d.submit(1, "other-shard")
		synctest.Wait()
		slices.Sort(d.reports)
		d.want("0 lost: a", "0 lost: b", "0 lost: c", "1 ok: other-shard")
		if calls := d.ledger.Calls(ledgertest.Apply); calls != 2 {
			t.Errorf("Apply was called %d times, want 2: nothing is sent for a lost shard", calls)
		}
	})
}

func TestCloseWritesWhatIsQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		reached, release := d.ledger.Hold(ledgertest.Apply)
		d.submit(0, "a")
		<-reached
		d.submit(0, "b")
		closed := make(chan error, 2)
		for range cap(closed) {
			go func() { closed <- d.committer.Close(t.Context()) }()
		}
		synctest.Wait()
		release()
		for range cap(closed) {
			if err := <-closed; err != nil {
				t.Errorf("Close: %v", err)
			}
		}
		d.want("0 ok: a", "0 ok: b")
		d.submit(0, "too-late")
		d.submit(1, "too-late")
		synctest.Wait()
		slices.Sort(d.reports)
		d.want("0 closed: too-late", "0 ok: a", "0 ok: b", "1 closed: too-late")
	})
}

func TestCloseGivesUp(t *testing.T) {
	for name, fault := range map[string]func(*ledgertest.Faulty){
		"while the ledger is silent": func(f *ledgertest.Faulty) { f.Hold(ledgertest.Apply) },
		"while the ledger fails":     func(f *ledgertest.Faulty) { f.Down() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDesk(t, nil)
				fault(d.ledger)
				d.submit(0, "a")
				synctest.Wait()
				d.submit(0, "b")
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				began := time.Now()
				err := d.committer.Close(ctx)
				if !errors.Is(err, recovery.ErrClosed) || time.Since(began) != 5*time.Second {
					t.Errorf("Close after %v: %v, want ErrClosed after 5s", time.Since(began), err)
				}
				d.want("0 closed: a", "0 closed: b")
				if again := d.committer.Close(t.Context()); again == nil || again.Error() != err.Error() {
					t.Errorf("Close again: %v, want %v", again, err)
				}
			})
		})
	}
}

// TestDoneMaySubmit: Done may submit the next change of the same record.
func TestDoneMaySubmit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d *desk
		rounds := 0
		d = newDesk(t, func(cfg *recovery.CommitterConfig[string]) {
			cfg.Done = func(_ int, tags []string, err error) {
				if rounds++; err == nil && rounds < 10 {
					c := creation(tags[0], int64(rounds+1))
					c.From = pending(int64(rounds))
					d.committer.Submit(0, c, tags[0])
				}
			}
		})
		d.submit(0, "a")
		synctest.Wait()
		if rounds != 10 {
			t.Errorf("%d rounds, want 10", rounds)
		}
	})
}

func TestWarmPathAllocatesNothing(t *testing.T) {
	answered := make(chan struct{})
	c := recovery.NewCommitter(recovery.CommitterConfig[int]{
		Ledger: null{},
		Terms:  recovery.Terms{Shards: 1, MaxChanges: 100, MaxBytes: 1 << 20},
		Keep:   func(int) bool { return true },
		Done:   func(int, []int, error) { answered <- struct{}{} },
		Log:    quiet(),
	})
	defer c.Close(t.Context())
	change := creation("a", 1)
	if n := testing.AllocsPerRun(1000, func() {
		c.Submit(0, change, 1)
		<-answered
	}); n != 0 {
		t.Errorf("%v allocations a change", n)
	}
}

// null is a ledger that answers at once and keeps nothing.
type null struct{ recovery.Ledger }

func (null) Apply(context.Context, int, *recovery.Batch) error { return nil }

// BenchmarkCommitter is the cost of the committer alone, with 64 callers.
func BenchmarkCommitter(b *testing.B) {
	c := recovery.NewCommitter(recovery.CommitterConfig[chan struct{}]{
		Ledger: null{},
		Terms:  recovery.Terms{Shards: 1, MaxChanges: 1024, MaxBytes: 1 << 20},
		Done: func(_ int, tags []chan struct{}, _ error) {
			for _, answered := range tags {
				answered <- struct{}{}
			}
		},
		Log: quiet(),
	})
	defer c.Close(b.Context())
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		answered := make(chan struct{}, 1)
		change := recovery.Change{ID: []byte("0123456789abcdef"), To: pending(1), Data: make([]byte, 250)}
		for pb.Next() {
			c.Submit(0, change, answered)
			<-answered
		}
	})
	b.ReportMetric(float64(c.Stats().Changes)/float64(c.Stats().Commits), "changes/batch")
}
