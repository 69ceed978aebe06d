package respapi_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/memledger"
)

// A stuckLedger answers writes once it is released.
type stuckLedger struct {
	*memledger.Ledger
	stuck *atomic.Pointer[chan struct{}] // nil: it answers
}

func (l stuckLedger) Apply(ctx context.Context, shard int, b *recovery.Batch) error {
	if c := l.stuck.Load(); c != nil {
		<-*c
	}
	return l.Ledger.Apply(ctx, shard, b)
}

// hold has the ledger not answer from now on, until free is called. What was answered before has
// arrived by then.
func (l stuckLedger) hold() (free func()) {
	synctest.Wait()
	c := make(chan struct{})
	l.stuck.Store(&c)
	return func() { l.stuck.Store(nil); close(c) }
}

// inStuckBubble is inBubble on a stuckLedger, with a connection that owes answers.
func inStuckBubble(t *testing.T, f func(t *testing.T, r *rig, w *wire, ledger stuckLedger)) {
	t.Helper()
	ledger := stuckLedger{memledger.New(), new(atomic.Pointer[chan struct{}])}
	inBubbleOn(t, func() recovery.Ledger { return ledger }, func(t *testing.T, r *rig, w *wire) {
		w.ask("+OK", "SET", "a", "1", "EX", "1000")
		f(t, r, w, ledger)
	})
}

// A command that comes while the answer to a SET is owed comes after it.
func TestCommandsWaitForTheAnswerThatIsOwed(t *testing.T) {
	inStuckBubble(t, func(t *testing.T, r *rig, w *wire, ledger stuckLedger) {
		for _, set := range [][]string{{"SET", "a", "2", "EX", "1000"}, {"SETEX", "a", "1000", "3"}, {"PSETEX", "a", "1000000", "4"}} {
			free := ledger.hold()
			w.command(set...)
			synctest.Wait()
			w.send("GET a\r\nPING\r\n")
			synctest.Wait()
			free()
			value := set[2]
			if set[0] != "SET" {
				value = set[3]
			}
			if got, want := w.answer()+" "+w.answer()+" "+w.answer(), "+OK "+value+" +PONG"; got != want {
				t.Errorf("%s: the answers are %s, want %s", set[0], got, want)
			}
		}
		if took := r.took()["set"]; took.Total() != 2 {
			t.Errorf("%d SETs are counted", took.Total())
		}
	})
}

// The answer to a SET does not wait for a ledger that is silent for longer than
// Config.AnswerWithin, whatever came before on the connection.
func TestAnswersThatAreOwedComeInTime(t *testing.T) {
	inStuckBubble(t, func(t *testing.T, r *rig, w *wire, ledger stuckLedger) {
		within := r.scheduler.Admin().AnswerWithin()
		time.Sleep(within / 3) // the timer of the first SET runs
		for range 3 {
			free, begun := ledger.hold(), time.Now()
			w.command("SET", "a", "2", "EX", "1000")
			answer := w.answer()
			if took := time.Since(begun); !strings.HasPrefix(answer, "-UNKNOWN") || took != within {
				t.Errorf("after %v the answer is %s, want UNKNOWN after %v", took, answer, within)
			}
			free()
			synctest.Wait()
			w.ask("2", "GET", "a")
			time.Sleep(within / 2)
			w.ask("+OK", "SET", "a", "3", "EX", "1000")
		}
	})
}

// A SET that the ledger does not answer does not keep the server from its end.
func TestServerEndsWhileAnAnswerIsOwed(t *testing.T) {
	inStuckBubble(t, func(t *testing.T, r *rig, w *wire, ledger stuckLedger) {
		free := ledger.hold()
		w.command("SET", "a", "2", "EX", "1000")
		synctest.Wait()
		begun := time.Now()
		ended := make(chan error)
		go func() { ended <- r.server.Close(context.Background()) }()
		if answer := w.answer(); !strings.HasPrefix(answer, "-UNKNOWN") || time.Since(begun) != 0 {
			t.Errorf("after %v the answer is %s", time.Since(begun), answer)
		}
		free()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// The client of a SET may leave before its answer.
func TestClientLeavesWhileAnAnswerIsOwed(t *testing.T) {
	inStuckBubble(t, func(t *testing.T, r *rig, w *wire, ledger stuckLedger) {
		free := ledger.hold()
		w.command("SET", "a", "2", "EX", "1000")
		synctest.Wait()
		w.nc.Close()
		synctest.Wait()
		free()
		synctest.Wait()
		if now, _ := r.server.Connections(); now != 0 {
			t.Errorf("%d connections are left", now)
		}
	})
}
