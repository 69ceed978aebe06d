package diskledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lapsehq/lapse/recovery"
)

// A load is the work that compaction has not done yet.
type load struct {
	sublevels int32  // of level 0: how many tables may have to be searched for a key
	debt      uint64 // bytes that are still to be rewritten
}

// At most, new tasks are refused; from enough on they are accepted again. At L0StopWritesThreshold
// sublevels Pebble stops every write, acknowledgements among them; what is accepted in the 100 ms
// until the next check is a few sublevels. Pebble does not bound the debt: it is space on the disk
// and time of a start, and a store that keeps up has some hundred MiB of it.
var (
	most   = load{sublevels: 40, debt: 8 << 30}
	enough = load{sublevels: 20, debt: 4 << 30}
)

// A pressure knows whether compaction is so far behind that new tasks must wait.
type pressure struct {
	mu  sync.Mutex // guards err
	err error      // the answer since the last check
}

func (p *pressure) condition() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// note checks the store.
func (p *pressure) note(now, most, enough load) {
	p.mu.Lock()
	defer p.mu.Unlock()
	bound := most
	if p.err != nil {
		bound = enough
	}
	if now.sublevels < bound.sublevels && now.debt < bound.debt {
		p.err = nil
		return
	}
	p.err = fmt.Errorf("%w: %d sublevels of at most %d, %d MiB to be compacted of at most %d",
		recovery.ErrBehind, now.sublevels, most.sublevels, now.debt>>20, most.debt>>20)
}

func loadOf(db *pebble.DB) load {
	m := db.Metrics()
	return load{m.Levels[0].Sublevels, m.Compact.EstimatedDebt}
}

// flushWithin bounds the flush at Close: of the journal and of up to two memtables.
const flushWithin = 5 * time.Second

var errFlushLate = errors.New("the store was not flushed in time")

// flush writes everything to tables, so that the next start has no journal to read. If that takes
// longer, the fence is cut: nothing is lost, since the journal has everything. No call may be under
// way.
func (e *engine) flush(within time.Duration) error {
	ended := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil { // behind a fence that is cut
				ended <- fmt.Errorf("flushing the store: %v", r)
			}
		}()
		ended <- e.settle(context.Background())
	}()
	late := time.NewTimer(within)
	defer late.Stop()
	select {
	case err := <-ended:
		return err
	case <-late.C:
		e.fence.cut(errFlushLate)
		return errFlushLate
	}
}
