package diskledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lapsehq/lapse/recovery"
)

const (
	// spaceEvery is how often the free space of the disk is read: often enough that a fast disk
	// cannot use up what is kept free in between.
	spaceEvery = 100 * time.Millisecond
	// shrinkEvery is the pause between two attempts to free space, and worthShrinking how many
	// bytes make one worth its writing.
	shrinkEvery    = 10 * time.Second
	worthShrinking = 8 << 20
	// worthFlushing is how many deletions make a flush of their own worth its writing, once fewer
	// than a tenth of them have come within shrinkEvery.
	worthFlushing = 10_000
	// mostCompacted is how many bytes a store may have to be compacted as a whole. While that is
	// done, nothing else is compacted.
	mostCompacted = 256 << 20
	// reserveShare is by what Options.MinFree is divided for the room that the ends of tasks
	// may not use up either.
	reserveShare = 4
)

// A space watches the free space of the disk.
type space struct {
	floor uint64 // in bytes; 0 means that it is not watched

	mu    sync.Mutex // guards everything below
	asked time.Time
	err   error // the answer since
}

// A removals counts the records that were deleted. Their space is free only after the segment with
// the deletions was retired, which happens when enough has been written: after a purge, never.
type removals struct {
	total atomic.Int64

	// The rest is tend's alone.
	seen, flushed int64 // of the total, at the last look and at the last flush
	flushedBefore bool  // the last look asked for a flush
}

// look reports whether a flush is worth it: many records were deleted since the last one, but few
// since the last look. While many are, the memtable fills and is flushed anyway. The next look with
// few deletions asks for what Pebble has not compacted until then.
func (r *removals) look() (flush, compact bool) {
	total := r.total.Load()
	lately, since := total-r.seen, total-r.flushed
	r.seen = total
	switch {
	case lately >= worthFlushing/10:
		return false, false
	case since >= worthFlushing:
		r.flushed, r.flushedBefore = total, true
		return true, false
	}
	compact, r.flushedBefore = r.flushedBefore, false
	return false, compact
}

// Condition implements recovery.Conditioner. It reads the free space at most ten times a second.
// Once there is too little room, there must be a sixteenth more than Options.MinFree before it
// returns nil again. Below a quarter of Options.MinFree it returns recovery.ErrReserveUsed beside
// ErrFull: the rest is for deletions, and for the compaction that they need to free space. A full
// disk that has broken the store counts as well, until the store is open again. Two causes are not
// ErrFull: a directory that was removed or replaced since Adopt, and compaction that is too far
// behind.
func (l *Ledger) Condition() error {
	if err := l.gone(); err != nil {
		return err
	}
	l.mu.Lock()
	outage := l.outage
	l.mu.Unlock()
	if outage != nil && vfs.IsNoSpaceError(outage) {
		return fmt.Errorf("%w: %s: %w", recovery.ErrFull, l.dir, outage)
	}
	if err := l.space.condition(time.Now(), func() (uint64, error) {
		usage, err := l.fs.GetDiskUsage(l.dir)
		return usage.AvailBytes, err
	}, l.dir); err != nil {
		return err
	}
	return l.pressure.condition()
}

// tend watches the disk until the engine's fence is cut or ctx ends: it logs when room runs low and
// when there is enough again. While it is low, and once after a purge, it has Pebble drop the space
// of finished tasks, which Pebble itself does only when enough has been written. It also checks how
// far compaction is behind.
func (l *Ledger) tend(ctx context.Context, e *engine) {
	ctx, cancel := context.WithCancel(ctx)
	var shrinking sync.WaitGroup
	var shrinks atomic.Bool
	start := func(work func()) {
		shrinks.Store(true)
		shrinking.Go(func() {
			defer shrinks.Store(false)
			work()
		})
	}
	defer shrinking.Wait()
	defer cancel()
	shrinking.Go(func() { e.keepYoung(ctx) })
	tick := time.NewTicker(spaceEvery)
	defer tick.Stop()
	looks := time.NewTicker(shrinkEvery)
	defer looks.Stop()
	var low error
	var next time.Time // of shrinking
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.fence.tripped:
			return
		case now := <-tick.C:
			l.pressure.note(loadOf(e.db), most, enough)
			err := l.Condition()
			level, text := refusal(err)
			if _, before := refusal(low); text != before {
				l.log.Log(ctx, level, text, "dir", l.dir, "error", err)
			}
			if low = err; errors.Is(err, recovery.ErrFull) && now.After(next) && !shrinks.Load() {
				next = now.Add(shrinkEvery)
				start(func() { l.shrink(ctx, e, now) })
			}
		case <-looks.C:
			if shrinks.Load() {
				continue
			}
			switch flush, compact := l.removed.look(); {
			case flush:
				start(func() { _ = e.settle(ctx) }) // an error cuts the fence
			case compact && mostlyDeleted(e.db.Metrics()):
				start(func() { l.compact(ctx, e, []byte{0}, []byte{0xFF}) })
			}
		}
	}
}

// refusal is the log line when Condition begins to return err.
func refusal(err error) (slog.Level, string) {
	switch {
	case err == nil:
		return slog.LevelInfo, "the ledger takes new tasks again"
	case errors.Is(err, recovery.ErrReserveUsed):
		return slog.LevelError, "the disk is almost full; ends of tasks that leave a record wait in memory, and new tasks are refused"
	case errors.Is(err, recovery.ErrFull):
		return slog.LevelWarn, "the disk runs low; new tasks are refused"
	case errors.Is(err, recovery.ErrBehind):
		return slog.LevelWarn, "compaction is behind; new tasks are refused until it has caught up"
	}
	return slog.LevelError, "the ledger's directory is gone, and what is written there would be lost: new tasks are refused"
}

// shrink compacts the records due before now, most of which are finished. It leaves later records
// where they are: rewriting them would need the room that is missing.
func (l *Ledger) shrink(ctx context.Context, e *engine, now time.Time) {
	from, to := []byte{kindPending}, appendPending(nil, now.UnixMilli(), "")
	if size, err := e.db.EstimateDiskUsage(from, to); err != nil || size < worthShrinking {
		_ = e.settle(ctx) // an error cuts the fence
		return
	}
	l.compact(ctx, e, from, to)
}

func (l *Ledger) compact(ctx context.Context, e *engine, from, to []byte) {
	if err := e.db.Compact(ctx, from, to, false); err != nil && ctx.Err() == nil {
		l.log.Warn("compacting the store", "dir", l.dir, "error", err)
	}
}

// mostlyDeleted reports whether a compaction of everything frees at least a quarter, as Pebble
// estimates it, and takes no more than seconds. By itself Pebble leaves up to Options.LBaseMaxBytes
// as they are; a store that is larger than mostCompacted it compacts when enough is deleted.
func mostlyDeleted(m *pebble.Metrics) bool {
	gone, size := m.Table.Garbage.PointDeletionsBytesEstimate, uint64(max(0, m.Total().TablesSize))
	return gone >= worthShrinking && gone >= size/4 && size <= mostCompacted
}

func (s *space) condition(now time.Time, free func() (uint64, error), dir string) error {
	if s.floor == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.asked.IsZero() && now.Sub(s.asked) < spaceEvery {
		return s.err
	}
	s.asked = now
	enough, reserve := s.floor, s.floor/reserveShare
	if s.err != nil {
		enough += s.floor / 16
	}
	if errors.Is(s.err, recovery.ErrReserveUsed) {
		reserve += reserve / 16
	}
	switch bytes, err := free(); {
	case err != nil:
		// An unreadable figure is no reason to refuse: a failing write will show.
		s.err = nil
	case bytes < reserve:
		s.err = fmt.Errorf("%w: %w: the disk of %s has %d MiB left, of which %d are kept free",
			recovery.ErrFull, recovery.ErrReserveUsed, dir, bytes>>20, s.floor>>20)
	case bytes < enough:
		s.err = fmt.Errorf("%w: the disk of %s has %d MiB left, of which %d are kept free",
			recovery.ErrFull, dir, bytes>>20, s.floor>>20)
	default:
		s.err = nil
	}
	return s.err
}
