package recovery_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
)

// newOpenDesk is a desk whose ledger has more shards than it grants at first.
func newOpenDesk(t *testing.T) *desk {
	return newDesk(t, func(cfg *recovery.CommitterConfig[string]) { cfg.Terms.Shards = 1 })
}

// A shard that is acquired later is written like the others.
func TestOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newOpenDesk(t)
		d.submit(0, "a")
		d.committer.Open(1)
		d.submit(1, "b")
		synctest.Wait()
		if s := d.committer.Stats(); s.Changes != 2 || s.Queued != 0 {
			t.Errorf("Stats = %+v", s)
		}
	})
}

// A number that was used before is written again, though its former shard was lost, and
// the totals still grow.
func TestOpenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newOpenDesk(t)
		d.submit(0, "a")
		synctest.Wait()
		d.ledger.Inject(ledgertest.Fault{Op: ledgertest.Apply, Err: recovery.ErrLost})
		d.submit(0, "b")
		synctest.Wait()
		d.submit(0, "c")
		synctest.Wait()
		d.committer.Open(0)
		d.submit(0, "d")
		synctest.Wait()
		d.want("0 ok: a", "0 lost: b", "0 lost: c", "0 ok: d")
		if s := d.committer.Stats(); s.Changes != 2 || s.Commits != 2 {
			t.Errorf("Stats = %+v", s)
		}
	})
}

func TestQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		reached, release := d.ledger.Hold(ledgertest.Apply)
		d.submit(0, "a")
		<-reached
		d.submit(0, "b", "c")
		for shard, want := range []int{3, 0} {
			if n := d.committer.Queued(shard); n != want {
				t.Errorf("Queued(%d) = %d, want %d", shard, n, want)
			}
		}
		release()
		synctest.Wait()
		if n := d.committer.Queued(0); n != 0 {
			t.Errorf("Queued = %d", n)
		}
	})
}

// A shard that is acquired while the committer is being closed, or afterwards, is not written any
// more, and Submit reports that.
func TestOpenAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newOpenDesk(t)
		if err := d.committer.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		d.committer.Open(1)
		d.submit(1, "late")
		synctest.Wait()
		d.want("1 closed: late")
	})
}

// Changes that are submitted together are in one batch, whatever is queued before them.
func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(cfg *recovery.CommitterConfig[string]) {
			cfg.Terms.MaxChanges, cfg.Terms.MaxBytes = 3, 100
		})
		pair := func(one, two string) {
			d.committer.SubmitTogether(0, []recovery.Change{creation(one, 1), creation(two, 1)}, []string{one, two})
		}
		reached, release := d.ledger.Hold(ledgertest.Apply)
		d.submit(0, "first")
		<-reached
		d.submit(0, "a", "b")
		pair("c", "d")
		pair("e", strings.Repeat("L", 100))
		d.submit(0, "f")
		pair("g", "h")
		pair("i", "j")
		release()
		synctest.Wait()
		d.want("0 ok: first", "0 ok: a b", "0 ok: c d", "0 ok: e "+strings.Repeat("L", 100), "0 ok: f g h", "0 ok: i j")
		if s := d.committer.Stats(); s.Queued != 0 || s.Changes != 12 {
			t.Errorf("Stats = %+v", s)
		}
	})
}
