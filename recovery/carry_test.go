package recovery_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
)

// inBubble calls test with a committer whose ledger is prompt, and a context with a deadline.
func inBubble(t *testing.T, test func(d *desk, ctx context.Context)) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(cfg *recovery.CommitterConfig[string]) { cfg.Terms.Prompt = true })
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		test(d, ctx)
	})
}

// submitCarry fails the test unless the caller has to carry, or does not have to.
func (d *desk) submitCarry(shard int, id string, want bool) {
	d.Helper()
	if got := d.committer.SubmitCarry(shard, creation(id, 1), id); got != want {
		d.Errorf("SubmitCarry(%s) = %v", id, got)
	}
}

func TestCarry(t *testing.T) {
	inBubble(t, func(d *desk, ctx context.Context) {
		d.submitCarry(0, "a", true)
		d.submit(0, "b")
		d.submitCarry(0, "c", false) // a is under way already
		d.submitCarry(1, "d", false) // so that many callers make large batches
		synctest.Wait()
		d.want("1 ok: d")
		d.committer.Carry(ctx, 0)
		d.want("1 ok: d", "0 ok: a b c")
		d.submitCarry(1, "e", true)
		d.committer.Carry(ctx, 1)
		d.want("1 ok: d", "0 ok: a b c", "1 ok: e")
	})
}

// What gathers while a caller writes is written by the lane, after that.
func TestCarriesOneBatch(t *testing.T) {
	inBubble(t, func(d *desk, ctx context.Context) {
		reached, release := d.ledger.Hold(ledgertest.Apply)
		d.submitCarry(0, "a", true)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			d.committer.Carry(ctx, 0)
		}()
		<-reached
		d.submit(0, "b")
		d.submitCarry(0, "c", false)
		time.Sleep(time.Second)
		if calls, stall := d.ledger.Calls(ledgertest.Apply), d.committer.Stalled(0); calls != 1 || stall != time.Second {
			d.Errorf("Apply was called %d times, Stalled = %v; want once, for 1s", calls, stall)
		}
		release()
		<-ended
		synctest.Wait()
		d.want("0 ok: a", "0 ok: b c")
	})
}

// A change is written by the lane when its caller cannot wait for long, or will never stop waiting.
func TestCarryWithoutTime(t *testing.T) {
	inBubble(t, func(d *desk, ctx context.Context) {
		_, release := d.ledger.Hold(ledgertest.Apply)
		d.submitCarry(0, "a", true)
		d.committer.Carry(context.Background(), 0)
		release()
		synctest.Wait()
		time.Sleep(1500 * time.Millisecond)
		_, release = d.ledger.Hold(ledgertest.Apply)
		d.submitCarry(0, "b", true)
		d.committer.Carry(ctx, 0)
		release()
		synctest.Wait()
		d.want("0 ok: a", "0 ok: b")
	})
}

// A caller returns at its deadline, and its batch is repeated. That it is cancelled does not matter
// to the batch.
func TestCarryUntilTheDeadline(t *testing.T) {
	inBubble(t, func(d *desk, ctx context.Context) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		time.AfterFunc(time.Second, cancel)
		_, release := d.ledger.Hold(ledgertest.Apply)
		began := time.Now()
		d.submitCarry(0, "a", true)
		d.committer.Carry(ctx, 0)
		if took := time.Since(began); took != 2*time.Second {
			d.Errorf("Carry returns after %v", took)
		}
		d.want()
		d.submitCarry(0, "b", false) // it must not overtake
		release()
		for d.committer.Stats().Queued > 0 {
			time.Sleep(time.Millisecond)
		}
		d.want("0 ok: a", "0 ok: b")
	})
}

// A batch that was not answered is repeated by the lane, and is written once.
func TestCarriedBatchIsRepeated(t *testing.T) {
	inBubble(t, func(d *desk, ctx context.Context) {
		d.ledger.Inject(ledgertest.Fault{Op: ledgertest.Apply, After: true})
		d.submitCarry(0, "a", true)
		d.committer.Carry(ctx, 0)
		d.want()
		for d.committer.Stats().Queued > 0 {
			time.Sleep(time.Millisecond)
		}
		d.want("0 ok: a")
		if s := d.committer.Stats(); s.Repeats != 1 || s.Commits != 1 || s.Stall != 0 {
			d.Errorf("Stats = %+v, want 1 repeat, 1 commit", s)
		}
		d.submitCarry(0, "b", true)
		d.committer.Carry(ctx, 0)
		d.want("0 ok: a", "0 ok: b")
	})
}

func TestCarryOfALostShard(t *testing.T) {
	inBubble(t, func(d *desk, ctx context.Context) {
		d.ledger.Inject(ledgertest.Fault{Op: ledgertest.Apply, Err: fmt.Errorf("taken: %w", recovery.ErrLost)})
		d.submitCarry(0, "a", true)
		d.committer.Carry(ctx, 0)
		synctest.Wait()
		d.want("0 lost: a")
		d.submitCarry(0, "b", false)
		synctest.Wait()
		d.want("0 lost: a", "0 lost: b")
	})
}

// Close waits for a caller that writes, or is about to; when it gives up, the caller returns.
func TestCloseDuringCarry(t *testing.T) {
	for name, test := range map[string]struct {
		patience time.Duration
		want     string
	}{
		"waits":    {time.Minute, "0 ok: a b"},
		"gives up": {time.Second, "0 closed: a b"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(d *desk, ctx context.Context) {
				_, release := d.ledger.Hold(ledgertest.Apply)
				d.submitCarry(0, "a", true)
				closed := make(chan struct{})
				closing, cancel := context.WithTimeout(d.Context(), test.patience)
				defer cancel()
				go func() {
					defer close(closed)
					_ = d.committer.Close(closing)
				}()
				synctest.Wait()
				d.submit(0, "b")
				time.AfterFunc(1900*time.Millisecond, release)
				d.committer.Carry(ctx, 0)
				<-closed
				d.want(test.want)
			})
		})
	}
}

// A ledger whose Apply may hang is not written by callers.
func TestOnlyPromptLedgersAreCarried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		d.submitCarry(0, "a", false)
		synctest.Wait()
		d.want("0 ok: a")
	})
}

// broken is a ledger that panics.
type broken struct{ recovery.Ledger }

func (broken) Apply(context.Context, int, *recovery.Batch) error { panic("a broken ledger") }

// A panic of Apply ends the process although a server recovers those of the callers.
func TestCarriedPanicEndsTheProcess(t *testing.T) {
	const inChild = "LAPSE_TEST_CARRIED_PANIC"
	if os.Getenv(inChild) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), inChild+"=1")
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "panic: a broken ledger") {
			t.Errorf("%v:\n%s", err, out)
		}
		return
	}
	c := recovery.NewCommitter(recovery.CommitterConfig[int]{
		Ledger: broken{}, Terms: recovery.Terms{Shards: 1, MaxChanges: 1, MaxBytes: 1, Prompt: true}, Log: quiet(),
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	defer func() { _ = recover() }()
	if c.SubmitCarry(0, creation("a", 1), 1) {
		c.Carry(ctx, 0)
	}
}
