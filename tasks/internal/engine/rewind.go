package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

var errDeadLost = task.KindOf(task.ErrReplaying, "the ledger has lost writes, and the dead are being written again; retry")

// Rewound makes a shard equal to memory again, in the background.
func (s *Engine) Rewound(r recovery.Rewinder, shard int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.OwnedLocked(shard)
	if s.Ended || h != nil && !h.mine() {
		return
	}
	s.Figures.Rewinds++
	s.Shards.restoring++
	if h != nil {
		h.reconciles++ // from now on: a hand-over that is under way looks for it
	}
	s.Cluster.RewoundLocked()
	s.Life.Background.Go(func() {
		defer s.restored(h)
		select {
		case <-s.Life.Opened:
		case <-s.Life.Context.Done():
			return
		}
		s.Life.Background.Go(s.restoreSettings)
		x, end := s.beginRestoring(shard)
		if x == nil {
			return
		}
		defer end()
		// What was read ahead is in no ledger any more, perhaps.
		if h := x.Term; h.ahead != nil && !s.Life.Outlast(h.read) {
			return
		}
		written := x.rewrite()
		// While replay runs, memory may not have read a record yet that it does not know.
		deleted := 0
		err := s.waitReplayed(s.Life.Context)
		if err == nil {
			err = x.insist(func() (err error) { deleted, err = x.DeleteUnknown(r); return err })
		}
		if err == nil {
			err = x.insist(func() error { return x.compareDead(true) })
		}
		// The ledger confirms these writes later, or refuses them if the shard is lost meanwhile.
		log := s.Config.Log.With("node", s.Config.Node, "shard", shard, "writing", written, "deleting", deleted)
		if err != nil {
			log.Error("the ledger had lost confirmed writes; the shard may have records that memory does not know", "error", err)
			return
		}
		log.Error("the ledger had lost confirmed writes; the shard is being made equal to memory")
	})
}

// A Restoration makes what the ledger has of a shard equal to memory, as long as the term lasts.
type Restoration struct {
	*Engine
	Shard int
	Term  *OwnedShard
}

// insist does what the restoration of a shard needs of the ledger until it succeeds. Readiness says
// what it waits for. It gives up when the shard is lost or Close has begun.
func (s *Restoration) insist(do func() error) error {
	what := fmt.Sprint("restoration of shard ", s.Shard)
	defer s.Waits.Clear(what)
	for {
		err := do()
		if err == nil || errors.Is(err, recovery.ErrLost) || errors.Is(err, recovery.ErrClosed) || errors.Is(err, task.ErrClosed) || s.IsClosing() {
			return err
		}
		s.Waits.Set(what, err.Error())
		s.Life.Rest(time.Second)
	}
}

func (s *Engine) restored(h *OwnedShard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Shards.restoring--
	if h != nil {
		h.reconciles--
	}
}

// Restoring reports whether a shard is being made equal to memory. Until then the ledger does not
// list all of the dead, see ListDead.
func (s *Engine) Restoring() bool {
	_, under := s.restorations()
	return under
}

// restorations returns how often a shard has had to be made equal to memory, and whether that is
// under way.
func (s *Engine) restorations() (begun int64, under bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Figures.Rewinds, s.Shards.restoring > 0
}

// awaitDead waits, as long as Within allows, until no shard is being made equal to memory. It
// returns how often that has begun. Errors: ErrReplaying, ErrClosed; why ctx was cancelled.
func (s *Engine) awaitDead(ctx context.Context) (begun int64, err error) {
	wait, cancel := s.Within(ctx)
	defer cancel()
	begun, under := s.restorations()
	for ; under; begun, under = s.restorations() {
		if err := s.RestWithin(wait, openPause); err != nil {
			if errors.Is(err, task.ErrClosed) || errors.Is(ctx.Err(), context.Canceled) {
				return 0, err
			}
			return 0, errDeadLost
		}
	}
	return begun, nil
}

// restoredSince returns errDeadLost if another shard has had to be made equal to memory since
// awaitDead: what was read of the dead may lack some.
func (s *Engine) restoredSince(begun int64) error {
	if again, under := s.restorations(); under || again != begun {
		return errDeadLost
	}
	return nil
}

// ListDead visits the dead tasks of a label behind a place, for a caller that needs all of them. It
// waits while the ledger does not list those that it has lost. Errors: ErrReplaying,
// ErrUnavailable, ErrClosed; why ctx was cancelled.
func (s *Engine) ListDead(ctx context.Context, label string, after recovery.Ref, visit func(recovery.Entry) bool) error {
	begun, err := s.awaitDead(ctx)
	if err != nil {
		return err
	}
	if err := s.Ledger.ListDead(ctx, label, after, visit); err != nil {
		return fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	}
	return s.restoredSince(begun)
}

// beginRestoring keeps a shard here until end is called. If it is just draining, that must
// come off first, or be taken back. It returns nil if the shard is not this process's.
func (s *Engine) beginRestoring(shard int) (x *Restoration, end func()) {
	s.mu.Lock()
	h := s.OwnedLocked(shard)
	if h.mine() {
		h.reconciles++
	}
	s.unlock()
	for {
		s.mu.Lock()
		mine, waits := h.mine(), h.mine() && h.stage == draining
		s.unlock()
		switch {
		case !mine, waits && !s.Life.Rest(busyPauseMax):
			return nil, nil
		case !waits:
			return &Restoration{s, shard, h}, func() { s.mu.Lock(); h.reconciles--; s.unlock() }
		}
	}
}

// QueueAtMost bounds how many writes wait for the committer while a shard is written anew.
const QueueAtMost = 20_000

// rewrite writes every task of a shard that is at rest. The others have a write under
// way, which says the same; but the ledger may have confirmed it before the loss, and
// memory not have heard of that yet, so it is written once more before it counts.
func (s *Restoration) rewrite() (written int) {
	w := s.walk(Pick{}, "")
	for !w.over && s.Breathe() {
		if w.step(func(n uint32, sl *store.Slot) (cost int) {
			switch {
			case !s.Term.mine():
				w.over = true
				return AtOnce
			case s.movingTo(n, sl, s.Shard):
				sl.Flags |= store.Doubtful
			case int(sl.Shard) != s.Shard:
			case sl.Flags&store.Writing != 0:
				sl.Flags |= store.Doubtful
			case AtRest(sl):
				s.writeLocked(Write{slot: n, op: opRecord})
				written++
				return 1
			}
			return 0
		}) != nil {
			break
		}
	}
	return written
}

// Breathe waits until the committer has room. It reports false when Close has begun.
func (s *Engine) Breathe() bool {
	for s.Committer.Stats().Queued > QueueAtMost {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-s.Life.Closing:
			return false
		}
	}
	return !s.IsClosing()
}

// openPause is the time between two looks at ids of which it is not decided yet what they are.
const openPause = 50 * time.Millisecond

// DeleteUnknown deletes the pending records of a shard that memory does not know:
// tasks that are finished, and that the loss has brought back. Those that memory
// knows to be dead are buried again. An id that is being created or looked up is looked at
// again once that is over: if the creation is given up, the record is an unknown record. So is that
// of an id that memory has in another shard, unless it is newer.
func (s *Restoration) DeleteUnknown(r recovery.Rewinder) (deleted int, err error) {
	var open []recovery.Ref
	err = r.ScanShard(s.Life.Context, s.Shard, func(page []recovery.Entry) error {
		if !s.Breathe() {
			return task.ErrClosed
		}
		n, undecided, err := s.deletePage(page)
		deleted, open = deleted+n, append(open, undecided...)
		return err
	})
	for err == nil && len(open) > 0 {
		if !s.Life.Rest(openPause) {
			return deleted, task.ErrClosed
		}
		var page []recovery.Entry
		if err = s.Ledger.Get(s.Life.Context, s.Shard, open, func(_ int, e recovery.Entry) {
			page = append(page, recovery.Entry{ID: bytes.Clone(e.ID), Spot: e.Spot})
		}); err == nil {
			var n int
			n, open, err = s.deletePage(page)
			deleted += n
		}
	}
	return deleted, err
}

// deletePage deletes the unknown records of a page, and buries the dead among them again.
// It returns the records on which it cannot decide yet.
func (s *Restoration) deletePage(page []recovery.Entry) (deleted int, open []recovery.Ref, err error) {
	deleted, dead, open, seconds, err := s.deleteSome(page)
	if err == nil && len(dead) > 0 {
		_, err = s.BuryAgain(dead)
	}
	if err == nil && len(seconds) > 0 { // before the shard may change hands
		s.resolveSecondRecords(seconds)
	}
	return deleted, open, err
}

// deleteSome deletes the unknown records of a page, and returns the dead among them, those that are
// being created or looked up, and those whose ids memory has in other shards.
func (s *Restoration) deleteSome(page []recovery.Entry) (deleted int, dead, open []recovery.Ref, seconds []secondRecord, err error) {
	s.mu.Lock()
	defer s.unlock()
	switch {
	case s.Ended:
		return 0, nil, nil, nil, task.ErrClosed
	case !s.Term.mine():
		return 0, nil, nil, nil, recovery.ErrLost
	}
	for i := range page {
		id, ref := page[i].ID, recovery.Ref{ID: string(page[i].ID), Next: page[i].Spot.At}
		n, at := s.LookupLocked(id)
		switch {
		case at == InMemory && s.Store.Slot(n).State.Undecided():
			open = append(open, ref)
		case at == InMemory:
			seconds = s.secondRecordOfLocked(s.Store.Slot(n), &recovery.Entry{Shard: s.Shard, ID: id, Spot: page[i].Spot}, seconds)
		case at == Illegible:
		case at.Buried():
			dead = append(dead, ref)
		default:
			n, sl := s.Store.Enter(id, nil)
			sl.Shard, sl.Stored = uint16(s.Shard), page[i].Spot.At
			s.SetLocked(sl, store.Finishing)
			s.writeLocked(Write{slot: n, op: opFinish})
			deleted++
		}
	}
	return deleted, dead, open, seconds, nil
}
