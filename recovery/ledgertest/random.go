package ledgertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// seedVariable repeats a random test: its value is the seed that was printed.
const seedVariable = "LEDGERTEST_SEED"

func seed(f *fixture) uint64 {
	s := rand.Uint64()
	if set := os.Getenv(seedVariable); set != "" {
		parsed, err := strconv.ParseUint(set, 10, 64)
		if err != nil {
			f.Fatalf("%s: %v", seedVariable, err)
		}
		s = parsed
	}
	f.Logf("%s=%d", seedVariable, s)
	return s
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// A walk submits random changes through a committer to a ledger that fails at random, and knows at
// every moment what each record may be.
type walk struct {
	*fixture
	rng *rand.Rand

	mu     sync.Mutex // guards everything below, and the model
	idle   *sync.Cond // broadcast when an id is no longer in flight
	flying map[string]recovery.Change
	open   map[string]recovery.Change // given up: carried out or not
}

// testRandom runs a few lives of a process, each of which ends in a close, in a
// close that gives up, or in a crash.
func testRandom(f *fixture) {
	w := &walk{fixture: f, rng: rand.New(rand.NewPCG(seed(f), 0))}
	w.idle = sync.NewCond(&w.mu)
	for range 6 {
		w.live(150)
	}
}

// live is one life: some changes, an end, and a check of what is left.
func (w *walk) live(changes int) {
	w.Helper()
	w.flying, w.open = map[string]recovery.Change{}, map[string]recovery.Change{}
	faulty := Wrap(w.ledger)
	terms := w.terms
	terms.MaxChanges = min(terms.MaxChanges, 1+w.rng.IntN(20))
	committer := recovery.NewCommitter(recovery.CommitterConfig[string]{
		Ledger:  faulty,
		Terms:   terms,
		Done:    w.done,
		Backoff: recovery.Backoff{Min: time.Microsecond, Max: time.Millisecond},
		Log:     quiet(),
	})
	for range changes {
		if w.rng.IntN(10) == 0 {
			faulty.Inject(Fault{Op: Apply, Times: 1 + w.rng.IntN(3), After: w.rng.IntN(2) == 0})
		}
		c := w.next()
		committer.Submit(w.terms.ShardOf(c.ID), c, string(c.ID))
	}
	ctx, giveUp := context.WithCancel(w.ctx())
	defer giveUp()
	if w.rng.IntN(2) == 0 {
		faulty.Inject(Fault{Op: Apply, Times: -1, After: w.rng.IntN(2) == 0})
		giveUp()
	}
	if err := committer.Close(ctx); err != nil && !errors.Is(err, recovery.ErrClosed) {
		w.Fatalf("Close: %v", err)
	}
	if w.rng.IntN(2) == 0 {
		w.crash()
	} else {
		w.restart()
	}
	w.settle(w.read(w.ledger))
}

// next makes a change of a record that is not in flight, one of the seven kinds.
func (w *walk) next() recovery.Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		id := fmt.Sprint("task-", w.rng.IntN(40))
		if _, busy := w.flying[id]; busy {
			if len(w.flying) > 30 {
				w.idle.Wait()
			}
			continue
		}
		to := pending(noon + int64(w.rng.IntN(20)))
		switch r := w.rng.IntN(10); w.model[id].spot.Place {
		case recovery.Pending:
			if r < 4 {
				to = recovery.Spot{}
			} else if r < 7 {
				to = dead(fmt.Sprint("topic-", w.rng.IntN(3)), noon+int64(w.rng.IntN(20)))
			}
		case recovery.Dead:
			if r < 5 {
				to = recovery.Spot{}
			}
		case recovery.Nowhere:
			if r < 2 {
				to = dead(fmt.Sprint("topic-", w.rng.IntN(3)), noon+int64(w.rng.IntN(20)))
			}
		}
		c := w.change(id, to, fmt.Sprint("v", w.rng.Uint32()))
		w.flying[id] = c
		return c
	}
}

func (w *walk) done(_ int, ids []string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		switch c := w.flying[id]; {
		case err == nil:
			w.model.apply(c)
		case errors.Is(err, recovery.ErrClosed):
			w.open[id] = c
		default:
			w.Errorf("Done(%s): %v", id, err)
		}
		delete(w.flying, id)
	}
	w.idle.Broadcast()
}

// settle lets the ledger decide the changes whose outcome was open; all others must be as
// confirmed.
func (w *walk) settle(got model) {
	w.Helper()
	for id := range w.flying {
		w.Errorf("%s was never answered", id)
	}
	for id, c := range w.open {
		carriedOut := record{c.To, string(c.Data)}
		if has, ok := got[id]; ok && has == carriedOut || !ok && c.To.Place == recovery.Nowhere {
			w.model.apply(c)
		}
	}
	if diff := w.model.diff(got); diff != "" {
		w.Fatalf("after a life:\n%s", diff)
	}
}
