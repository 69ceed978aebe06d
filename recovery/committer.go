package recovery

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A CommitterConfig says what a Committer writes to and whom it tells.
type CommitterConfig[T any] struct {
	// Ledger and Terms: the adopted ledger and what its Adopt returned.
	Ledger Ledger
	Terms  Terms

	// Keep is asked once for each change, right before its batch is sent for
	// the first time. If it answers false, because the caller gave up, the
	// change is dropped and its tag comes back with ErrDropped. From the moment
	// it answers true the ledger decides the outcome. Nil keeps everything.
	Keep func(tag T) bool

	// Done reports the outcome of the changes with these tags, in the order in
	// which they were submitted. A shard's reports come one at a time, from its
	// lane's goroutine, so Done should be quick; it may Submit. The slice is
	// valid only during the call. The error is
	//   - nil: written, and durable as far as the ledger is;
	//   - ErrDropped: never sent, because Keep refused it (a call of its own);
	//   - ErrFull: creations that the ledger has refused for want of room, and
	//     that will not be written (a call of its own);
	//   - ErrLost: not written, and nothing of this shard will be any more;
	//   - ErrClosed: the committer or the ledger was closed first. The outcome
	//     is open if the batch was under way, and it was not written otherwise.
	Done func(shard int, tags []T, err error)

	// Backoff spaces the repeats of a batch that was not answered.
	Backoff Backoff

	// Patience is for how long a server may answer no batch at all until it is known not
	// to answer, see Down; one that is slow as a rule is given more. 0 means 100 ms.
	Patience time.Duration

	// Log is told when a batch begins to fail and when the ledger answers
	// again. Nil means slog.Default().
	Log *slog.Logger
}

// A Committer is the only writer of a ledger. Each shard has a lane of its own:
// a goroutine that sends whatever has gathered while the batch before was under
// way. There is no timer, so a lone caller waits for nobody; and a batch that
// was not answered is repeated unchanged for as long as it takes, so nothing
// overtakes it. Lanes take turns if the ledger's Terms say how many may send at
// once; one that pauses before it repeats a batch gives its turn to others.
//
// The queue is not bounded here: the caller bounds what it submits and watches
// Stats. A panic of Ledger.Apply is not recovered and ends the process: going on
// without knowing what was written would be worse.
type Committer[T any] struct {
	cfg     CommitterConfig[T]
	turns   chan struct{} // holds a token for each lane that has its turn; nil: all have
	outages *outages
	ctx     context.Context // ends when Close gives up

	began time.Time
	heard atomic.Int64 // when a shard was answered for the last time, in nanoseconds since began

	opening sync.Mutex // held while lanes are added, and while Close ends them
	lanes   atomic.Pointer[[]*lane[T]]

	giveUp  context.CancelCauseFunc // ends Apply and the waits between repeats
	closing atomic.Bool             // Close was called
	closed  chan struct{}           // closed when Close has done its work
	err     error                   // of Close; read after closed
}

// CommitterStats are totals since the start, over all shards.
type CommitterStats struct {
	Commits      int64         // batches that were answered
	Changes      int64         // changes in them
	Repeats      int64         // batches sent again because they were not answered
	Queued       int           // changes submitted and not answered yet
	LargestBatch int           // changes in the largest batch so far
	Stall        time.Duration // the longest current Stalled of a shard
}

// NewCommitter starts the lanes of an adopted ledger.
func NewCommitter[T any](cfg CommitterConfig[T]) *Committer[T] {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	c := &Committer[T]{
		cfg:    cfg,
		ctx:    ctx,
		giveUp: cancel,
		closed: make(chan struct{}),
		began:  time.Now(),
	}
	c.outages = newOutages(cfg.Patience, cfg.Terms.Server, cfg.Log)
	if cfg.Terms.AtOnce > 0 {
		c.turns = make(chan struct{}, cfg.Terms.AtOnce)
	}
	lanes := make([]*lane[T], cfg.Terms.Shards)
	for i := range lanes {
		lanes[i] = c.newLane(i, CommitterStats{})
	}
	c.lanes.Store(&lanes)
	return c
}

func (c *Committer[T]) newLane(shard int, stats CommitterStats) *lane[T] {
	heard := func() { c.heard.Store(int64(time.Since(c.began))) }
	return newLane(c.ctx, shard, stats, &c.cfg, c.turns, c.outages, heard)
}

// Open begins to write a shard that was gained since, or another one under a number
// that was used before: then all changes of the former must have been answered.
func (c *Committer[T]) Open(shard int) {
	c.opening.Lock()
	defer c.opening.Unlock()
	lanes := slices.Clone(*c.lanes.Load())
	for len(lanes) <= shard {
		lanes = append(lanes, nil)
	}
	var stats CommitterStats // of the number, so that the totals only grow
	if former := lanes[shard]; former != nil {
		former.beginClose()
		<-former.ended
		former.addTo(&stats)
	}
	lanes[shard] = c.newLane(shard, stats)
	if c.closing.Load() {
		lanes[shard].beginClose()
	}
	c.lanes.Store(&lanes)
}

// Submit queues a change of a shard and returns at once: it never waits for the
// ledger. It copies the change. An id must not be submitted again before Done
// was called for its previous change, so that a batch holds an id once.
//
// After the shard was lost or the committer closed, Done is still called, with
// ErrLost or ErrClosed, and from another goroutine than the caller's, so that
// nobody waits for ever.
func (c *Committer[T]) Submit(shard int, ch Change, tag T) {
	(*c.lanes.Load())[shard].submit(ch, tag)
}

// Stalled is for how long the shard's current batch has been under way,
// including its wait for a turn and its repeats. It is 0 when nothing is under way.
func (c *Committer[T]) Stalled(shard int) time.Duration {
	return (*c.lanes.Load())[shard].stalled()
}

// Silent tells whether the ledger has answered no shard at all for longer than d, though
// one has waited for so long.
func (c *Committer[T]) Silent(d time.Duration) bool {
	if time.Since(c.began)-time.Duration(c.heard.Load()) <= d {
		return false
	}
	return slices.ContainsFunc(*c.lanes.Load(), func(l *lane[T]) bool { return l != nil && l.stalled() > d })
}

// Queued is how many changes of a shard were submitted and not answered yet.
func (c *Committer[T]) Queued(shard int) int {
	var s CommitterStats
	(*c.lanes.Load())[shard].addTo(&s)
	return s.Queued
}

// Stats returns the totals.
func (c *Committer[T]) Stats() CommitterStats {
	var s CommitterStats
	for _, l := range *c.lanes.Load() {
		if l != nil {
			l.addTo(&s)
		}
	}
	return s
}

// Close takes no new changes and writes what is queued. When ctx ends first, it
// gives up the rest, whose tags come back with ErrClosed, and returns an error
// that says so. It returns after the last call of Done for what was submitted
// before; Apply must therefore return soon after its context has ended. Close
// is idempotent: later calls wait for the first and return the same.
func (c *Committer[T]) Close(ctx context.Context) error {
	if c.closing.CompareAndSwap(false, true) {
		c.err = c.close(ctx)
		close(c.closed)
	}
	<-c.closed
	return c.err
}

func (c *Committer[T]) close(ctx context.Context) error {
	c.opening.Lock()
	defer c.opening.Unlock()
	lanes := slices.DeleteFunc(slices.Clone(*c.lanes.Load()), func(l *lane[T]) bool { return l == nil })
	for _, l := range lanes {
		l.beginClose()
	}
	stop := context.AfterFunc(ctx, func() { c.giveUp(ErrClosed) })
	defer stop()
	var errs []error
	for _, l := range lanes {
		<-l.ended
		errs = append(errs, l.unwritten())
	}
	c.giveUp(ErrClosed)
	return errors.Join(errs...)
}
