package recovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/internal/latency"
)

// maxSpares is how many used gatherings a lane keeps. With the one that is
// being filled and the one that is being sent, it is the memory that a lane
// needs under steady load.
const maxSpares = 2

// A gathering is a batch with the tags of its changes.
type gathering[T any] struct {
	batch Batch
	tags  []T
}

// An attempt is a batch that was sent once, or was not to be sent any more.
type attempt[T any] struct {
	*gathering[T]
	err    error   // of the sending; why nothing was sent if final
	server *server // that owes the answer; nil: nothing was sent
	began  time.Time
	open   bool // a caller has sent it, and the lane repeats it
}

// A writer is what writes a lane's batches at the moment.
type writer uint8

const (
	noWriter writer = iota
	ownWriter
	carrier // a caller, see Committer.Carry
)

// A lane writes the batches of one shard, one after another.
type lane[T any] struct {
	cfg   *CommitterConfig[T]
	shard int
	ctx   context.Context // ends when Close gives up
	log   *slog.Logger

	onAnswer func(at time.Time) // called when the ledger has answered a batch
	outages  *outages           // of all lanes
	took     *latency.Histogram
	failing  atomic.Bool   // the batch under way was repeated and is older than the server's limit
	turns    chan struct{} // holds a token for each lane that has its turn; nil: all have
	writing  *atomic.Int32 // how many lanes have a writer
	wake     chan struct{} // holds one token when there may be something for run to do
	ended    chan struct{} // closed when run has returned

	current attempt[T] // used by the writer alone

	mu        sync.Mutex // guards everything below
	writer    writer
	queue     []*gathering[T] // oldest first; all but the last are full, or precede another kind
	spares    []*gathering[T]
	closing   bool      // run ends when the queue is empty
	over      bool      // run has ended: later submissions are answered by answerLate
	final     error     // ErrLost or ErrClosed: why nothing is written any more
	since     time.Time // when the batch under way began to wait for its turn; zero when none is
	late      bool      // answerLate is running
	abandoned int       // changes answered with ErrClosed because Close gave up
	stats     CommitterStats

	dropped []T // of the batch being filtered; used by the writer alone
}

func newLane[T any](ctx context.Context, shard int, stats CommitterStats, cfg *CommitterConfig[T], turns chan struct{}, writing *atomic.Int32, outages *outages, took *latency.Histogram, onAnswer func(at time.Time)) *lane[T] {
	l := &lane[T]{
		cfg:      cfg,
		shard:    shard,
		ctx:      ctx,
		log:      cfg.Log.With("shard", shard),
		onAnswer: onAnswer, outages: outages, took: took,
		turns: turns, writing: writing,
		wake:  make(chan struct{}, 1),
		ended: make(chan struct{}),
		stats: stats,
	}
	go l.run()
	return l
}

// submit queues changes. It reports whether the caller has to call carry, which it must want.
func (l *lane[T]) submit(changes []Change, tags []T, carry bool) bool {
	size := 0
	for i := range changes {
		size += len(changes[i].ID) + len(changes[i].Data)
	}
	l.mu.Lock()
	g := l.gatheringLocked(len(changes), size, changes[0].Mark.Number != 0)
	for i := range changes {
		g.batch.Add(changes[i])
	}
	g.tags = append(g.tags, tags...)
	l.stats.Queued += len(changes)
	if l.over && !l.late {
		l.late = true
		go l.answerLate()
	}
	carry = carry && l.carriesLocked()
	taken := l.writer == carrier
	l.mu.Unlock()
	if !taken {
		l.signal()
	}
	return carry
}

// gatheringLocked returns the gathering that has room for n more changes of together size bytes,
// with a mark or without.
func (l *lane[T]) gatheringLocked(n, size int, marked bool) *gathering[T] {
	t := &l.cfg.Terms
	if last := len(l.queue) - 1; last >= 0 {
		g := l.queue[last]
		if g.batch.Len()+n <= t.MaxChanges && g.batch.Bytes()+size <= t.MaxBytes && g.batch.marked(marked) {
			return g
		}
	}
	var g *gathering[T]
	if n := len(l.spares); n > 0 {
		g, l.spares = l.spares[n-1], l.spares[:n-1]
	} else {
		g = new(gathering[T])
	}
	l.queue = append(l.queue, g)
	return g
}

func (l *lane[T]) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run is the lane's goroutine.
func (l *lane[T]) run() {
	defer close(l.ended)
	for range l.wake {
		// Callers that the last batch has just answered are about to submit
		// again. Letting them run first makes one batch of them all, instead
		// of one for the first of them and one for the rest.
		runtime.Gosched()
		for l.runOnce() {
			runtime.Gosched()
		}
		if l.end() {
			return
		}
	}
}

// runOnce writes one batch, and reports whether there was one. What is submitted
// while the lane waits for its turn still joins it.
func (l *lane[T]) runOnce() bool {
	if !l.begin() {
		return false
	}
	l.beginTurn()
	if !l.current.open {
		l.send(l.ctx)
	}
	l.finish()
	return true
}

// begin reports whether there is something to write, from now on.
func (l *lane[T]) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.writer == carrier:
		return false
	case len(l.queue) == 0 && !l.current.open:
		l.passLocked(noWriter)
		return false
	}
	l.passLocked(ownWriter)
	l.since = time.Now()
	return true
}

// passLocked says what writes from now on.
func (l *lane[T]) passLocked(to writer) {
	switch {
	case l.writer == noWriter && to != noWriter:
		l.writing.Add(1)
	case l.writer != noWriter && to == noWriter:
		l.writing.Add(-1)
	}
	l.writer = to
}

func (l *lane[T]) beginTurn() {
	if l.turns != nil {
		l.turns <- struct{}{}
	}
}

func (l *lane[T]) endTurn() {
	if l.turns != nil {
		<-l.turns
	}
}

// take removes the oldest gathering from the queue, which is not empty.
func (l *lane[T]) take() (*gathering[T], error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.queue[0]
	n := copy(l.queue, l.queue[1:])
	l.queue[n] = nil
	l.queue = l.queue[:n]
	if l.final == nil && l.ctx.Err() != nil {
		l.final = ErrClosed
	}
	return g, l.final
}

// filter drops the changes whose callers have given up.
func (l *lane[T]) filter(g *gathering[T]) {
	if l.cfg.Keep != nil {
		l.drop(g, func(i int) bool { return l.cfg.Keep(g.tags[i]) }, ErrDropped)
	}
}

// drop takes changes out of a gathering and reports them with err.
func (l *lane[T]) drop(g *gathering[T], keep func(i int) bool, err error) {
	kept := 0
	g.batch.Retain(func(i int) bool {
		if !keep(i) {
			l.dropped = append(l.dropped, g.tags[i])
			return false
		}
		g.tags[kept] = g.tags[i]
		kept++
		return true
	})
	if len(l.dropped) == 0 {
		return
	}
	clear(g.tags[kept:])
	g.tags = g.tags[:kept]
	l.report(l.dropped, err)
	clear(l.dropped)
	l.dropped = l.dropped[:0]
}

// send sends the oldest gathering once.
func (l *lane[T]) send(ctx context.Context) {
	g, final := l.take()
	l.current = attempt[T]{gathering: g, err: final}
	if final != nil {
		return
	}
	if l.filter(g); g.batch.Len() == 0 {
		return
	}
	l.current.began = time.Now()
	l.current.server = l.outages.begin(l.shard, l.current.began)
	l.current.err = l.cfg.Ledger.Apply(ctx, l.shard, &g.batch)
}

// finish repeats the current batch until it is answered, and reports the outcome.
func (l *lane[T]) finish() {
	a := &l.current
	g, err := a.gathering, a.err
	if a.server != nil {
		err = l.repeat(a)
	}
	*a = attempt[T]{}
	l.endTurn()
	l.mu.Lock()
	l.since = time.Time{}
	l.mu.Unlock()
	if errors.Is(err, ErrFull) {
		l.drop(g, func(i int) bool { c := g.batch.At(i); return !c.Creation() }, err)
		err = nil
	}
	l.answer(g, err)
}

// repeat sends a batch again until it is answered. Its error is nil, ErrFull or final.
func (l *lane[T]) repeat(a *attempt[T]) error {
	sent, now := a.began, time.Now()
	err := a.err
	repeats := 0
	for !answered(err) && !errors.Is(err, ErrLost) && !errors.Is(err, ErrClosed) {
		if repeats == 0 {
			l.log.Warn("the ledger did not answer a batch; repeating it", "changes", a.batch.Len(), "error", err)
		}
		if now.Sub(a.began) > l.outages.patience && l.failing.CompareAndSwap(false, true) {
			l.outages.announce()
		}
		l.endTurn()
		cause := l.cfg.Backoff.Wait(l.ctx, repeats)
		l.beginTurn()
		if cause != nil {
			err = ErrClosed
			break
		}
		repeats++
		sent = time.Now()
		err = l.cfg.Ledger.Apply(l.ctx, l.shard, &a.batch)
		now = time.Now()
	}
	l.outages.end(a.server, sent, now, !errors.Is(err, ErrClosed))
	if l.failing.CompareAndSwap(true, false) {
		l.outages.down.Add(-1)
	}
	if !errors.Is(err, ErrClosed) {
		l.onAnswer(now)
	}
	if answered(err) {
		l.took.Observe(now.Sub(a.began), 1)
	}
	if answered(err) && repeats > 0 {
		l.log.Info("the ledger answers again", "repeats", repeats, "after", now.Sub(a.began))
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats.Repeats += int64(repeats)
	if answered(err) {
		l.stats.Commits++
		l.stats.Changes += int64(a.batch.Len())
		l.stats.LargestBatch = max(l.stats.LargestBatch, a.batch.Len())
	} else {
		l.final = err
	}
	return err
}

// answered reports whether Apply has written what it will ever write of a batch.
func answered(err error) bool { return err == nil || errors.Is(err, ErrFull) }

// answer reports the outcome of a gathering and keeps its memory.
func (l *lane[T]) answer(g *gathering[T], err error) {
	l.report(g.tags, err)
	// A change beyond the bound of a batch leaves a buffer too large to keep.
	tooLarge := cap(g.batch.buf) > 2*l.cfg.Terms.MaxBytes
	g.batch.Reset()
	clear(g.tags)
	g.tags = g.tags[:0]

	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.spares) < maxSpares && !tooLarge {
		l.spares = append(l.spares, g)
	}
}

func (l *lane[T]) report(tags []T, err error) {
	if len(tags) == 0 {
		return
	}
	l.mu.Lock()
	l.stats.Queued -= len(tags)
	if errors.Is(err, ErrClosed) {
		l.abandoned += len(tags)
	}
	l.mu.Unlock()
	l.cfg.Done(l.shard, tags, err)
}

// beginClose lets run end as soon as the queue is empty.
func (l *lane[T]) beginClose() {
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	l.signal()
}

// end reports whether run shall end, and if so hands over to answerLate.
func (l *lane[T]) end() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closing || len(l.queue) > 0 || l.writer != noWriter {
		return false
	}
	l.over = true
	if l.final == nil {
		l.final = ErrClosed
	}
	return true
}

// answerLate refuses what was submitted after run had ended.
func (l *lane[T]) answerLate() {
	for {
		for l.runOnce() {
		}
		l.mu.Lock()
		if len(l.queue) == 0 {
			l.late = false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
	}
}

// unwritten is the error of Close.
func (l *lane[T]) unwritten() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.abandoned == 0 {
		return nil
	}
	return fmt.Errorf("shard %d: %d changes were given up: %w", l.shard, l.abandoned, ErrClosed)
}

func (l *lane[T]) stalled() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since.IsZero() {
		return 0
	}
	return time.Since(l.since)
}

// addTo adds the lane's totals to those of the committer.
func (l *lane[T]) addTo(s *CommitterStats) {
	stall := l.stalled()
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Commits += l.stats.Commits
	s.Changes += l.stats.Changes
	s.Repeats += l.stats.Repeats
	s.Queued += l.stats.Queued
	s.LargestBatch = max(s.LargestBatch, l.stats.LargestBatch)
	s.Stall = max(s.Stall, stall)
}
