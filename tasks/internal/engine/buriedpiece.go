package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine/deadindex"
	"github.com/lapsehq/lapse/tasks/internal/engine/minutes"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A buriedPiece is some ids at the place of the dead that are locked, so that their records can be
// read while no other caller changes them.
type buriedPiece struct {
	*Engine
	ids       []string          // in the order of the call
	locked    map[string]uint32 // slots of those of which no write has begun
	forgotten int               // how many terms were forgotten by then
	missed    bool              // another caller was about to change one of them
	refused   error             // why no more writes begin
	c         *PendingWrite     // has the write of an id at the position of the id
	sent      []int             // these positions
	late      error             // of the wait for these writes
}

// lockBuried locks those of the ids that are at the place of the dead. If waits, it waits until
// changes of them that are under way are over: only then is it known whether they stay there.
// Otherwise it passes over those.
func (s *Engine) lockBuried(ctx context.Context, ids []string, waits bool) (*buriedPiece, error) {
	p := &buriedPiece{Engine: s, locked: make(map[string]uint32, len(ids))}
	for waited := 0; ; waited++ {
		busy, err := p.lock(ids, waits)
		if busy == nil {
			return p, err
		}
		if err := s.WaitBusy(ctx, busy, waited); err != nil {
			return nil, err
		}
	}
}

// lock locks the ids, or none if one of them has to be waited for, or two callers would wait for
// each other. Then busy is closed when that one is at rest.
func (p *buriedPiece) lock(ids []string, waits bool) (busy <-chan struct{}, err error) {
	p.mu.Lock()
	defer p.unlock()
	if err := p.openLocked(); err != nil {
		return nil, err
	}
	if busy = p.busyLocked(ids); busy != nil && waits {
		return busy, nil
	}
	for _, id := range ids {
		key := []byte(id)
		if _, at := p.LookupLocked(key); at.Buried() {
			p.ids, p.locked[id] = append(p.ids, id), p.Store.EnterChecking(key, 0)
		}
	}
	p.missed, p.forgotten, p.c = busy != nil, p.Shards.forgotten, NewPendingWrite(len(p.ids))
	return nil, nil
}

// openLocked returns nil if dead tasks may be changed in every shard that this process holds. It
// asks about all shards, since it is not known yet which ones the tasks are in.
func (p *buriedPiece) openLocked() error {
	switch {
	case p.Ended:
		return task.ErrClosed
	case p.Unsure():
		return ErrUnsure
	case !isClosed(p.Reading.deadRead):
		return errDeadUnread
	}
	for shard, h := range p.Shards.List {
		if !h.takes() {
			continue
		}
		if err := p.writableLocked(shard); err != nil {
			return err
		}
	}
	return nil
}

// busyLocked returns a channel that is closed when the first of the ids that another caller
// is taking from among the dead is at rest; nil if there is none.
func (p *buriedPiece) busyLocked(ids []string) <-chan struct{} {
	for _, id := range ids {
		key := []byte(id)
		hash := p.Store.Hash(key)
		if n, known := p.Store.FindHashed(hash, key); known && p.Store.Slot(n).State.Busy() && p.OutsideLocked(hash).Buried() {
			return p.WatchLocked(n)
		}
	}
	return nil
}

// change reads the records, unlocks the ids of which visit has begun no write, and waits for the
// others. It does not return the error of that wait, which late has then.
func (p *buriedPiece) change(ctx context.Context, visit func(i int, e recovery.Entry) error) error {
	seen := make([]bool, len(p.ids))
	err := p.Ledger.GetDead(ctx, p.ids, func(i int, e recovery.Entry) {
		seen[i] = true
		p.refused = cmp.Or(visit(i, e), p.refused)
	})
	if err != nil {
		err = fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	}
	var unseen []string
	for i, id := range p.ids {
		if !seen[i] {
			unseen = append(unseen, id)
		}
	}
	unburied, _, err := p.finish(ctx, unseen, err)
	switch {
	case err != nil:
	case p.refused != nil:
		err = p.refused
	case unburied > 0:
		err = errUnburied
	}
	p.late = p.Await(ctx, p.c)
	return err
}

// write has begin begin a write of a task under the lock, if its id is still locked and no other
// write was refused. begin is given the slot.
func (p *buriedPiece) write(i int, e *recovery.Entry, begin func(n uint32) error) error {
	p.mu.Lock()
	defer p.unlock()
	n, still := p.locked[p.ids[i]]
	switch {
	case !still || p.refused != nil:
		return nil
	case !p.OwnedLocked(e.Shard).takes() || p.forgotten != p.Shards.forgotten:
		return ErrNotHeld // since it was read, and the number may stand for another shard
	}
	return begin(n)
}

// admitLocked is AdmitLocked for a record that becomes pending. The ids that are locked do not
// count as pending.
func (p *buriedPiece) admitLocked(shard, size int) error {
	if err := p.AdmitLocked(shard, 0, size); err != nil {
		return err
	}
	if others := p.Store.Len() - len(p.locked); others >= p.Config.MaxPending {
		return fmt.Errorf("%w: %d tasks are pending", task.ErrOverloaded, others)
	}
	return nil
}

// beginLocked begins the write that takes a task from among the dead, and has its record from then
// on. at is its time, if it becomes pending.
func (p *buriedPiece) beginLocked(w Write, t *Topic, e *recovery.Entry, rec []byte, at int64) {
	sl := p.Store.Slot(w.slot)
	sl.Topic, sl.Shard, sl.Stored, sl.State = t.Number, uint16(e.Shard), e.Spot.At, store.Vacant
	p.Store.Rewrite(w.slot, rec)
	if w.op == opRequeue {
		sl.Next, w.minute = at, uint32(minutes.MinuteOf(record.Due(e.Data)))
		p.SetLocked(sl, store.Requeuing)
		p.Dead.Requeued.Add(p.ids[w.index]) // before the ledger can show that it is not dead
	} else {
		p.SetLocked(sl, store.Finishing) // which, unlike cancelling, is not shown as pending
	}
	delete(p.locked, p.ids[w.index])
	p.sent = append(p.sent, w.index)
	p.c.add(w.index, w.slot)
	w.pending = p.c
	p.writeLocked(w)
}

// findLost asks the ledger for ids that are locked, and returns those that memory takes for dead
// and of which the ledger has no dead record.
func (p *buriedPiece) findLost(ctx context.Context, ids []string) (map[Restoration][]lostBurial, error) {
	checker, ok := p.Ledger.(recovery.DeadChecker)
	if !ok || len(ids) == 0 {
		return nil, nil
	}
	buried, lost := make(map[Restoration][]string), make(map[Restoration][]lostBurial)
	p.mu.Lock()
	for _, id := range ids {
		hash := p.Store.Hash([]byte(id))
		for n, h := range p.Shards.List {
			if !h.mine() {
				continue
			}
			if _, dead := h.dead[hash]; dead {
				in := Restoration{p.Engine, n, h}
				buried[in] = append(buried[in], id)
				break
			}
		}
	}
	p.mu.Unlock()
	for in, ids := range buried {
		has, err := checker.HasDead(ctx, in.Shard, ids)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", task.ErrUnavailable, err)
		}
		var missing []lostBurial
		var refs []recovery.Ref
		for i, id := range ids {
			if !has[i] {
				missing, refs = append(missing, lostBurial{id: id}), append(refs, recovery.Ref{ID: id})
			}
		}
		if len(refs) == 0 {
			continue
		}
		// A task that is pending in the ledger is not gone: the ledger has lost the burial.
		if err := p.Ledger.Get(ctx, in.Shard, refs, func(i int, e recovery.Entry) {
			missing[i].pending, missing[i].isPending = e.Spot.At, true
		}); err != nil {
			return nil, fmt.Errorf("%w: %w", task.ErrUnavailable, err)
		}
		lost[in] = missing
	}
	return lost, nil
}

// finish unlocks what is locked. Without an error so far it asks the ledger for the ids of which it
// has shown no record, and writes lost burials again. It returns how many the ledger has lost and
// memory has not forgotten, and how many of these the ledger has confirmed anew.
func (p *buriedPiece) finish(ctx context.Context, unseen []string, failed error) (unburied, rewritten int, err error) {
	var lost map[Restoration][]lostBurial
	if err = failed; err == nil {
		lost, err = p.findLost(ctx, unseen)
	}
	for in, locked := range p.release(lost) {
		unburied += len(lost[in])
		done, err := in.reburyAndWait(ctx, locked, lost[in])
		if rewritten += done; err != nil && !p.IsClosing() {
			p.Config.Log.Warn("dead tasks cannot be written again at the moment", "node", p.Config.Node, "shard", in.Shard, "tasks", len(locked), "error", err)
		}
	}
	return unburied, rewritten, err
}

// release unlocks the ids, and says that no more writes begin. It removes those from lost that
// memory forgets. One that can be written again stays: memory has its record, or the ledger still
// has it as pending. release returns these locked: unlocked in between, another comparison could
// take them, and the caller would not know when they are written. One whose shard is being restored
// stays as well.
func (p *buriedPiece) release(lost map[Restoration][]lostBurial) map[Restoration]map[string]uint32 {
	again, topics := make(map[Restoration]map[string]uint32), make(deadindex.Lost)
	p.mu.Lock()
	defer p.unlock()
	for in, some := range lost {
		again[in] = make(map[string]uint32)
		lost[in] = slices.DeleteFunc(some, func(l lostBurial) (forgotten bool) {
			hash := p.Store.Hash([]byte(l.id))
			if _, has := p.Dead.Burials.Find(hash); !has && !l.isPending {
				return in.Term.reconciles == 0 && p.forgetDeadLocked(in.Term, hash, topics)
			}
			if n, ours := p.locked[l.id]; ours {
				again[in][l.id] = n
				delete(p.locked, l.id)
			}
			return false
		})
		p.doubtDeadLocked() // others may be lost as well
	}
	topics.Tell(p.Config.Log, p.Config.Node)
	for _, n := range p.locked {
		p.UncheckLocked(n)
	}
	p.c.complete()
	return again
}
