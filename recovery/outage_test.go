package recovery_test

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
)

// A server is down once it has answered no batch for longer than its limit, for all of its shards,
// and up again with its first answer.
func TestDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		wantDown := func(want bool) {
			t.Helper()
			synctest.Wait()
			for shard := range 2 {
				if got := d.committer.Down(shard); got != want {
					t.Errorf("shard %d counts as down: %v", shard, got)
				}
			}
		}
		_, release := d.ledger.Hold(ledgertest.Apply)
		time.Sleep(time.Hour)
		wantDown(false) // nothing was sent to it
		told := d.committer.NextDown()
		d.submit(0, "a")
		time.Sleep(99 * time.Millisecond)
		wantDown(false)
		time.Sleep(time.Millisecond)
		wantDown(true)
		<-told
		time.Sleep(time.Hour)
		wantDown(true)
		release()
		wantDown(false)
	})
}

// A ledger without servers, such as a disk, is not told as a server without a name.
func TestDownWithoutServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		d := newDesk(t, func(cfg *recovery.CommitterConfig[string]) { cfg.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		_, release := d.ledger.Hold(ledgertest.Apply)
		d.submit(0, "a")
		time.Sleep(time.Second)
		release()
		synctest.Wait()
		for _, line := range []string{"the ledger has not recorded a batch yet", "the ledger records batches again"} {
			if !strings.Contains(log.String(), line) || strings.Contains(log.String(), "server") {
				t.Errorf("the log does not say %q, or speaks of a server:\n%s", line, log.String())
			}
		}
	})
}

// A shard whose batch is repeated stays down until that is answered, though other shards of its
// server are answered again.
func TestDownBehindOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(cfg *recovery.CommitterConfig[string]) {
			cfg.Backoff = recovery.Backoff{Min: 200 * time.Millisecond, Max: time.Hour}
		})
		d.ledger.Inject(ledgertest.Fault{Op: ledgertest.Apply, Times: 3})
		d.submit(0, "a")
		time.Sleep(time.Second) // it pauses for long now
		d.submit(1, "b")
		synctest.Wait()
		if !d.committer.Down(0) || d.committer.Down(1) {
			t.Errorf("down: %v, %v", d.committer.Down(0), d.committer.Down(1))
		}
		time.Sleep(time.Hour)
		if d.committer.AnyDown() {
			t.Error("all were answered")
		}
	})
}

// A server that is usually slow is not down because of that; and a single slow answer does not make
// a server usually slow.
func TestDownOfASlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		downs := 0
		write := func(took time.Duration) {
			t.Helper()
			_, release := d.ledger.Hold(ledgertest.Apply)
			d.submit(0, "a"+strconv.Itoa(d.ledger.Calls(ledgertest.Apply)))
			time.Sleep(took)
			if synctest.Wait(); d.committer.Down(0) {
				downs++
			}
			release()
			synctest.Wait()
		}
		for range 20 {
			write(time.Millisecond)
		}
		write(3 * time.Second)
		write(300 * time.Millisecond)
		if downs != 2 {
			t.Errorf("%d of 2 that were far too slow", downs)
		}
		downs = 0
		for range 100 {
			write(150 * time.Millisecond)
		}
		if downs > 5 {
			t.Errorf("%d of 100 that took as long as always", downs)
		}
	})
}

// With servers of their own, shards are down one by one. Addresses that are not in use any
// more are forgotten.
func TestDownByServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		moved := 0
		d := newDesk(t, func(cfg *recovery.CommitterConfig[string]) {
			cfg.Terms.Server = func(shard int) string { return fmt.Sprint(shard, " at ", moved) }
		})
		for moved = range 200 {
			d.submit(0, "a"+strconv.Itoa(moved))
			synctest.Wait()
		}
		_, release := d.ledger.Hold(ledgertest.Apply)
		d.submit(0, "stuck")
		time.Sleep(time.Second)
		if !d.committer.Down(0) || d.committer.Down(1) {
			t.Errorf("down: %v, %v", d.committer.Down(0), d.committer.Down(1))
		}
		moved++ // a failover
		if d.committer.Down(0) {
			t.Error("the server that has taken over was not asked yet")
		}
		release()
		synctest.Wait()
		if d.committer.AnyDown() {
			t.Error("all were answered")
		}
	})
}
