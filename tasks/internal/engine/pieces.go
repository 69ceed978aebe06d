package engine

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// shardsAtOnce is of how many acquired shards the tasks are read at once.
const shardsAtOnce = 1

// PieceBytes bounds the records that one hold of the lock takes into memory. A single record may be
// larger.
const PieceBytes = 256 << 10

const (
	// restAfter is for how long a shard is loaded before the load rests for as long: a timer of the
	// runtime is no finer. restMost bounds one rest.
	restAfter, restMost = time.Millisecond, 20 * time.Millisecond
)

// pieces are the holds of Engine.mu by work that grows with the tasks: a shard that is read, or
// that leaves memory. Tests look at them.
type pieces struct {
	tasks atomic.Int64 // that were dealt with
	most  atomic.Int64 // that one hold has dealt with
	took  atomic.Int64 // nanoseconds since the last rest
}

// rest returns how long to rest after a piece that took some time; mostly 0.
func (p *pieces) rest(took time.Duration) time.Duration {
	sum := p.took.Add(int64(took))
	if sum < int64(restAfter) {
		return 0
	}
	p.took.Add(-sum)
	return min(time.Duration(sum), restMost)
}

// note counts the tasks of one hold.
func (p *pieces) note(tasks int) {
	p.tasks.Add(int64(tasks))
	for most := p.most.Load(); int64(tasks) > most && !p.most.CompareAndSwap(most, int64(tasks)); most = p.most.Load() {
	}
}

// Pieces returns with how many tasks such work has dealt since Open, and with how many at most
// during one hold of the lock.
func (s *Engine) Pieces() (tasks, most int64) {
	return s.Life.pieces.tasks.Load(), s.Life.pieces.most.Load()
}

// InPieces calls do, under the lock, for one piece of a page after the other. In between, others
// get the lock, and the processor: the runtime would interrupt this goroutine only after 10 ms, and
// so late would be a task that is due then. Once the node delivers, half of the time is rest. What
// a piece has waited for lock and processor counts as time that it took, so a busy machine gets
// more rest. Without it, the machine often suspends a thread that holds the lock.
func (s *Engine) InPieces(page []recovery.Entry, do func(piece []recovery.Entry)) {
	for len(page) > 0 {
		n, bytes := 0, 0
		for n < min(AtOnce, len(page)) && (n == 0 || bytes+len(page[n].Data) <= PieceBytes) {
			bytes += len(page[n].Data)
			n++
		}
		began := time.Now()
		s.hold(page[:n], do)
		runtime.Gosched()
		if took := time.Since(began); s.IsFirstReplayed() {
			time.Sleep(s.Life.pieces.rest(took))
		}
		page = page[n:]
	}
}

func (s *Engine) hold(piece []recovery.Entry, do func(piece []recovery.Entry)) {
	s.mu.Lock()
	defer s.unlock()
	s.Life.pieces.note(len(piece))
	do(piece)
}
