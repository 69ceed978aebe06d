package recovery

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/internal/latency"
)

// A CommitterConfig says what a Committer writes to, and which functions it calls.
type CommitterConfig[T any] struct {
	// Ledger and Terms: the adopted ledger and what its Adopt returned.
	Ledger Ledger
	Terms  Terms

	// Keep is called once for each change, right before its batch is sent for the first time.
	// If it returns false, because the caller gave up, the change is dropped and its tag comes
	// back with ErrDropped. Once it has returned true, the ledger decides the outcome. Nil
	// keeps all changes.
	Keep func(tag T) bool

	// Done reports the outcome of the changes with these tags, in the order in
	// which they were submitted. A shard's reports come one at a time, from its
	// lane's goroutine or that of a caller of Carry, so Done should be quick; it
	// may Submit. The slice is valid only during the call. The error is
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

	// Patience is for how long a server may answer no batch at all before it counts as down,
	// see Down; a server that is usually slow gets longer. 0 means 100 ms.
	Patience time.Duration

	// Log gets a line when a batch begins to fail and one when the ledger answers again. Nil
	// means slog.Default().
	Log *slog.Logger
}

// A Committer is the only writer of a ledger. Each shard has a lane of its own: a goroutine
// that sends whatever has gathered while the previous batch was under way. There is no timer,
// so a single caller does not wait for others, and it may send its batch itself: see Carry.
// A batch that was not answered is repeated unchanged for as long as it takes, so nothing
// overtakes it. If the ledger's Terms limit how many lanes may send at once, lanes take turns;
// a lane that pauses before it repeats a batch gives its turn to another.
//
// The queue is not bounded here: the caller bounds what it submits and watches Stats. A panic
// of Ledger.Apply is not recovered and ends the process, because what was written would be
// unknown.
type Committer[T any] struct {
	cfg     CommitterConfig[T]
	turns   chan struct{} // holds a token for each lane that has its turn; nil: all have
	writing atomic.Int32  // how many lanes have a writer
	outages *outages
	took    latency.Histogram // batches of all lanes
	ctx     context.Context   // ends when Close gives up

	began    time.Time
	answered atomic.Int64 // when a shard was answered for the last time, in nanoseconds since began

	opening sync.Mutex // held while lanes are added, and while Close ends them
	lanes   atomic.Pointer[[]*lane[T]]

	giveUp  context.CancelCauseFunc // ends Apply and the waits between repeats
	closing atomic.Bool             // Close was called
	closed  chan struct{}           // closed when Close has done its work
	err     error                   // of Close; read after closed
}

// CommitterStats are totals since the start, over all shards.
type CommitterStats struct {
	// Commits counts batches that were answered, Changes the changes in them.
	Commits int64 `json:"commits,omitzero" http:"ledger.commits" metric:"ledger_commits_total" help:"Batches of changes of this node that the ledger has confirmed since its start."`
	Changes int64 `json:"changes,omitzero" http:"ledger.changes" doc:"Puts, buries and deletes in those commits." metric:"ledger_changes_total" help:"Changes of tasks in the batches that the ledger has confirmed to this node since its start: records put, buried and deleted."`
	// Repeats counts batches that were sent again because they were not answered.
	Repeats int64 `json:"repeats,omitzero" http:"ledger.repeats" doc:"Commits sent again." metric:"ledger_repeats_total" help:"Batches that this node has sent again since its start, because the ledger had not answered them. Any increase: the ledger or the network fails."`
	// Queued counts changes that were submitted and not answered yet.
	Queued int `json:"queued,omitzero" http:"ledger.queued" doc:"Changes that wait now." metric:"ledger_queued" help:"Changes of tasks of this node that wait for the ledger, now, those being written included. It grows while the ledger is slow or away."`
	// LargestBatch is how many changes the largest batch has had.
	LargestBatch int `json:"largest_batch,omitzero" fleet:"max"`
	// Stall is the longest current Stalled of a shard.
	Stall time.Duration `json:"stall,omitzero" fleet:"max"`
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
	answered := func(at time.Time) { c.answered.Store(int64(at.Sub(c.began))) }
	return newLane(c.ctx, shard, stats, &c.cfg, c.turns, &c.writing, c.outages, &c.took, answered)
}

// Open begins to write a shard that was acquired later, or another shard under a number that
// was used before: then all changes of the former shard must have been answered.
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
// After the shard was lost or the committer closed, Done is still called, with ErrLost or
// ErrClosed, so that no caller waits for ever. It is called from another goroutine than the
// caller's.
func (c *Committer[T]) Submit(shard int, ch Change, tag T) {
	(*c.lanes.Load())[shard].submit([]Change{ch}, []T{tag}, false)
}

// SubmitTogether is Submit for changes of different ids that are written in one batch: all of them
// or none. There are exceptions of which Done tells: those that Keep drops, and creations that the
// ledger refuses with ErrFull. None of them has a mark. They are reported in their order.
func (c *Committer[T]) SubmitTogether(shard int, changes []Change, tags []T) {
	(*c.lanes.Load())[shard].submit(changes, tags, false)
}

// Stalled is for how long the shard's current batch has been under way,
// including its wait for a turn and its repeats. It is 0 when nothing is under way.
func (c *Committer[T]) Stalled(shard int) time.Duration {
	return (*c.lanes.Load())[shard].stalled()
}

// Silent reports whether the ledger has answered no shard at all for longer than d, though at
// least one shard has waited for that long.
func (c *Committer[T]) Silent(d time.Duration) bool {
	if time.Since(c.began)-time.Duration(c.answered.Load()) <= d {
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

// Took returns how long batches took that were answered, from the first sending to the answer,
// repeats included.
func (c *Committer[T]) Took() latency.Counts { return c.took.Counts() }

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
