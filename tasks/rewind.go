package tasks

import (
	"bytes"
	"context"
	"errors"
	"math"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// rewound makes a shard equal to memory again, in the background.
func (s *engine) rewound(r recovery.Rewinder, shard int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.ownedLocked(shard)
	if s.ended || h != nil && !h.mine() {
		return
	}
	s.sweep.rewinds++
	s.cluster.rewoundLocked()
	s.background.Go(func() {
		select {
		case <-s.opened:
		case <-s.ctx.Done():
			return
		}
		s.background.Go(s.restoreSettings)
		h, end := s.beginRestoring(shard)
		if h == nil {
			return
		}
		defer end()
		written := s.rewrite(shard, h)
		// While replay runs, what memory does not know may be what it has not read yet.
		deleted := 0
		err := s.waitReplayed(s.ctx)
		if err == nil {
			deleted, err = s.deleteUnknown(r, shard, h)
		}
		if err == nil {
			err = s.compareDeadOf(shard, h, true)
		}
		// The ledger confirms these writes later, or refuses them if the shard is lost meanwhile.
		log := s.cfg.Log.With("node", s.cfg.Node, "shard", shard, "writing", written, "deleting", deleted)
		if err != nil {
			log.Error("the ledger had lost confirmed writes; the shard may have records that memory does not know", "error", err)
			return
		}
		log.Error("the ledger had lost confirmed writes; the shard is being made equal to memory")
	})
}

// beginRestoring keeps a shard here until end is called. If it is just draining, that must
// come off first, or be taken back. It returns nil if the shard is not this process's.
func (s *engine) beginRestoring(shard int) (h *ownedShard, end func()) {
	s.mu.Lock()
	h = s.ownedLocked(shard)
	if h.mine() {
		h.reconciles++
	}
	s.unlock()
	for {
		s.mu.Lock()
		mine, waits := h.mine(), h.mine() && h.stage == draining
		s.unlock()
		switch {
		case !mine, waits && !s.rest(busyPauseMax):
			return nil, nil
		case !waits:
			return h, func() { s.mu.Lock(); h.reconciles--; s.unlock() }
		}
	}
}

// queueAtMost bounds what waits for the committer while a shard is written anew.
const queueAtMost = 20_000

// rewrite writes every task of a shard that is at rest. The others have a write under
// way, which says the same; but the ledger may have confirmed it before the loss, and
// memory not have heard of that yet, so it is written once more before it counts.
func (s *engine) rewrite(shard int, h *ownedShard) (written int) {
	for from := 0; s.breathe(); from += atOnce {
		s.mu.Lock()
		if !h.mine() {
			s.unlock()
			break
		}
		total := int(s.store.Slots())
		for n := from; n < min(from+atOnce, total); n++ {
			sl := s.store.Slot(uint32(n))
			switch {
			case s.movingTo(uint32(n), sl, shard):
				sl.Flags |= store.Doubtful
			case int(sl.Shard) != shard:
			case sl.Flags&store.Writing != 0:
				sl.Flags |= store.Doubtful
			case atRest(sl):
				s.writeLocked(write{slot: uint32(n), op: opRecord})
				written++
			}
		}
		s.unlock()
		if from+atOnce >= total {
			break
		}
	}
	return written
}

// breathe waits until the committer has room. It reports false when Close has begun.
func (s *engine) breathe() bool {
	for s.committer.Stats().Queued > queueAtMost {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-s.closing:
			return false
		}
	}
	return !s.isClosing()
}

// openPause is the time between two looks at ids of which it is not decided yet what they are.
const openPause = 50 * time.Millisecond

// deleteUnknown deletes the pending records of a shard that memory does not know:
// tasks that are finished, and that the loss has brought back. Those that memory
// knows to be dead are buried again. An id that is being created or looked up is looked at
// again once that is over: if the creation is given up, the record is an unknown record.
func (s *engine) deleteUnknown(r recovery.Rewinder, shard int, h *ownedShard) (deleted int, err error) {
	for {
		deleted = 0
		var open []recovery.Ref
		err = r.ScanShard(s.ctx, shard, func(page []recovery.Entry) error {
			if !s.breathe() {
				return ErrClosed
			}
			n, undecided, err := s.deletePage(shard, h, page)
			deleted, open = deleted+n, append(open, undecided...)
			return err
		})
		for err == nil && len(open) > 0 {
			if !s.rest(openPause) {
				return deleted, ErrClosed
			}
			var page []recovery.Entry
			if err = s.ledger.Get(s.ctx, shard, open, func(_ int, e recovery.Entry) {
				page = append(page, recovery.Entry{ID: bytes.Clone(e.ID), Spot: e.Spot})
			}); err == nil {
				var n int
				n, open, err = s.deletePage(shard, h, page)
				deleted += n
			}
		}
		if err == nil || errors.Is(err, recovery.ErrLost) || errors.Is(err, recovery.ErrClosed) || errors.Is(err, ErrClosed) {
			return deleted, err
		}
		wait, cancel := context.WithTimeout(s.ctx, time.Second)
		<-wait.Done()
		cancel()
		if s.isClosing() {
			return deleted, err
		}
	}
}

// deletePage deletes the unknown records of a page, and buries the dead among them again.
// It returns those of which it is not decided yet what they are.
func (s *engine) deletePage(shard int, h *ownedShard, page []recovery.Entry) (deleted int, open []recovery.Ref, err error) {
	deleted, dead, open, err := s.deleteSome(shard, h, page)
	if err == nil && len(dead) > 0 {
		_, err = s.buryAgain(shard, h, dead)
	}
	return deleted, open, err
}

// deleteSome deletes the unknown records of a page, and returns the dead among them,
// and those that are being created or looked up.
func (s *engine) deleteSome(shard int, h *ownedShard, page []recovery.Entry) (deleted int, dead, open []recovery.Ref, err error) {
	s.mu.Lock()
	defer s.unlock()
	switch {
	case s.ended:
		return 0, nil, nil, ErrClosed
	case !h.mine():
		return 0, nil, nil, recovery.ErrLost
	}
	for i := range page {
		id, ref := page[i].ID, recovery.Ref{ID: string(page[i].ID), Next: page[i].Spot.At}
		n, known := s.store.Find(id)
		switch {
		case known && s.store.Slot(n).State.Undecided():
			open = append(open, ref)
		case known, s.illegibleLocked(id):
		case s.buriedLocked(id):
			dead = append(dead, ref)
		default:
			n, sl := s.store.Enter(id, nil)
			sl.Shard, sl.Stored = uint16(shard), page[i].Spot.At
			s.setLocked(sl, store.Finishing)
			s.writeLocked(write{slot: n, op: opFinish})
			deleted++
		}
	}
	return deleted, dead, open, nil
}

// buryAgain buries tasks whose burial is among what was lost: memory has kept
// nothing of them but that they are dead, so their older records must do. It returns how many
// burials it has begun.
//
// The ids are locked while their records are read: a burial that ends between the read and its
// answer leaves a dead record, and a second one would add another member to the ledger's index.
func (s *engine) buryAgain(shard int, h *ownedShard, dead []recovery.Ref) (begun int, err error) {
	locked, refs := s.lockDead(h, dead)
	if len(refs) == 0 {
		return 0, nil
	}
	err = s.ledger.Get(s.ctx, shard, refs, func(i int, e recovery.Entry) {
		f, err := record.Decode(e.Data)
		if err != nil {
			return // it is kept where it is
		}
		s.mu.Lock()
		defer s.unlock()
		n, still := locked[refs[i].ID]
		if !still || s.ended || !h.mine() || !s.buriedLocked(e.ID) {
			return
		}
		delete(locked, refs[i].ID)
		died := s.now()
		f.State, f.Next = record.Dead, died
		f.Flags &^= record.Claimed | record.HasLease
		f.LastError = []byte("dead; the ledger has lost why")
		s.scratch = f.Append(s.scratch[:0])
		s.store.Rewrite(n, s.scratch)
		sl := s.store.Slot(n)
		sl.Topic, sl.Shard, sl.Stored, sl.State = s.keptTopic(f.Topic).number, uint16(shard), e.Spot.At, store.Vacant
		s.setLocked(sl, store.Burying)
		// The confirmation counts it again. It may have been who was dead the longest.
		s.removeDeadLocked(s.byNumber[sl.Topic], shard, e.ID, math.MinInt64)
		s.writeLocked(write{slot: n, op: opBury, at: died})
		begun++
	})
	s.mu.Lock()
	defer s.unlock()
	for _, n := range locked {
		s.uncheckLocked(n)
	}
	return begun, err
}

// lockDead locks those of the ids that are dead by memory, and of which nothing else is under
// way, and returns their slots and references.
func (s *engine) lockDead(h *ownedShard, dead []recovery.Ref) (locked map[string]uint32, refs []recovery.Ref) {
	locked = make(map[string]uint32, len(dead))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || !h.mine() {
		return nil, nil
	}
	for _, ref := range dead {
		key := []byte(ref.ID)
		if _, known := s.store.Find(key); !known && s.buriedLocked(key) {
			locked[ref.ID] = s.checkLocked(key, 0)
			refs = append(refs, ref)
		}
	}
	return locked, refs
}
