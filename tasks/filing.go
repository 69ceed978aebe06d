package tasks

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/cespare/xxhash/v2"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
)

// Ids that callers choose do not tell where their tasks are, and two nodes may be asked
// for the same one at the same time. So such an id is filed, in a directory that the
// nodes share, before its task is created: whoever has filed it creates the task, and the
// others ask that node.
//
//	absent -> filing*   the slot is entered, so that others wait here
//	filing -> creating  filed under the home of the task's shard
//	filing -> absent    it is filed elsewhere, or the directory has not answered
//
// A filing outlives its task, by removeAfter or, after a crash, for longer. Where an id
// is filed under a home that is held here, and no task is known, it is replaced by one with
// another nonce; so whoever is about to take the old one out leaves the new one alone.
//
// Ids that tell their home are never filed: their tasks are always kept there.

// filesLocked tells that the id of a planned task has to be filed.
func (s *Scheduler) filesLocked(p *plan) bool {
	return s.shared != nil && p.chosen && p.home == 0 && !s.singleNodeLocked()
}

// A reservation is a slot whose id is being filed.
type reservation struct {
	n, gen uint32
	index  int // of its request, in a batch
	id     string
	want   recovery.Filing
	stale  staleFiling
	err    error // nil: filed. errStale, *elsewhere, ErrUnavailable otherwise
}

// A staleFiling is what stands in the directory for an id whose task is gone: the shard is
// held here, so that it would be known, or by nobody. The zero staleFiling stands
// for nothing.
type staleFiling struct {
	recovery.Filing
	vacant bool // nobody holds the shard
}

func (s *Scheduler) reservedLocked(n uint32, p *plan, index int) *reservation {
	sl := s.book.slot(n)
	return &reservation{
		n: n, gen: sl.gen, index: index, id: p.id, stale: p.stale,
		want: s.filingLocked(sl),
	}
}

// filingLocked is how the id of a task in memory is filed. The nonce follows from what
// the record keeps for good, so that it need not be remembered.
func (s *Scheduler) filingLocked(sl *slot) recovery.Filing {
	return filingOf(s.homeLocked(sl), s.book.id(sl), record.Created(s.book.record(sl)))
}

// directoryEntryLocked returns the directory entry of a task in memory. It reports false
// if the task has none: Lapse made the id, the id tells its shard, or memory has no record
// of the task, as of one that is being looked up and of one that lost writes have brought
// back (see deleteSome): nothing is known of such a task but its id.
func (s *Scheduler) directoryEntryLocked(sl *slot) (recovery.Filing, bool) {
	if !s.book.chosen(sl) {
		return recovery.Filing{}, false
	}
	f := s.filingLocked(sl)
	return f, !tells(s.book.id(sl), f.Home)
}

func filingOf(home recovery.Home, id []byte, created int64) recovery.Filing {
	sum := xxhash.Sum64(id) ^ uint64(created)*0x9e3779b97f4a7c15
	return recovery.Filing{Home: home, Nonce: uint32(sum>>32 ^ sum)}
}

// filedAtOnce is how many ids are filed with one call of the directory.
const filedAtOnce = 10_000

// file files the ids of reservations, with one question to the directory for all of them.
//
// The directory may turn out to have lost entries when it answers. Then other nodes may have
// tasks with these ids that it does not name: all are asked, and what was filed for an id that
// one of them has is taken out again.
func (s *Scheduler) file(ctx context.Context, rs []*reservation) {
	doubts := s.shared.ledger.Standing().Doubts
	s.fileOnce(ctx, rs)
	for now := s.shared.ledger.Standing().Doubts; now != doubts; now = s.shared.ledger.Standing().Doubts {
		doubts = now
		filed := slices.DeleteFunc(slices.Clone(rs), func(r *reservation) bool { return r.err != nil })
		s.fileOnce(ctx, rs)
		var out []recovery.Refiling
		for _, r := range filed {
			if r.err != nil {
				out = append(out, recovery.Refiling{ID: r.id, Old: r.want})
			}
		}
		if len(out) == 0 {
			continue
		}
		if _, err := s.shared.ledger.File(ctx, out); err != nil {
			s.mu.Lock()
			for _, change := range out {
				s.shared.leftover.push(leftover{change.ID, change.Old, s.elapsed()})
			}
			s.mu.Unlock()
		}
	}
}

// fileOnce is file, as far as the directory has lost nothing.
func (s *Scheduler) fileOnce(ctx context.Context, rs []*reservation) {
	ids := make([]string, len(rs))
	for i, r := range rs {
		ids[i] = r.id
	}
	has, err := s.askUnindexed(ctx, ids)
	if err != nil {
		for _, r := range rs {
			r.err = err
		}
		return
	}
	var ask []*reservation
	for i, r := range rs {
		if r.err = nil; has[i] != "" {
			r.err = &elsewhere{node: has[i]}
			continue
		}
		ask = append(ask, r)
	}
	for part := range slices.Chunk(ask, filedAtOnce) {
		s.filePart(ctx, part)
	}
}

func (s *Scheduler) filePart(ctx context.Context, rs []*reservation) {
	changes := make([]recovery.Refiling, len(rs))
	for i, r := range rs {
		changes[i] = recovery.Refiling{ID: r.id, Old: r.stale.Filing, New: r.want}
	}
	now, err := s.shared.ledger.File(ctx, changes)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, r := range rs {
			r.err = fmt.Errorf("%w: directory of ids: %w", ErrUnavailable, err)
			s.shared.leftover.push(leftover{r.id, r.want, s.elapsed()}) // which may have landed
		}
		return
	}
	for i, r := range rs {
		switch {
		case now[i] == r.want:
		case now[i].Home == 0:
			r.stale, r.err = staleFiling{}, errStale // it was: somebody has taken it out
		default:
			r.err = s.filedBefore(ctx, r, now[i])
		}
	}
}

// filedBefore is told that an id is filed already. It is errStale if that is under a home
// that is held here, or by nobody.
func (s *Scheduler) filedBefore(ctx context.Context, r *reservation, now recovery.Filing) error {
	h, err := s.locate(ctx, now.Home, false)
	switch {
	case err != nil:
		return err
	case h.Node == "":
		r.stale = staleFiling{now, true}
		return errStale
	case h.Shard < 0:
		return &elsewhere{home: now.Home}
	case s.tenure(now.Home) == nil:
		return errNotHeld // it is just coming or going
	}
	r.stale = staleFiling{Filing: now}
	return errStale
}

// fulfilLocked creates the task of a reservation, or gives its slot up. Errors: those of
// the reservation, errNotHeld and ErrClosed.
func (s *Scheduler) fulfilLocked(r *reservation, c *call) error {
	sl := s.book.slot(r.n)
	err := r.err
	if sl.gen != r.gen {
		if err == nil {
			s.shared.leftover.push(leftover{r.id, r.want, s.elapsed()})
		}
		return errGaining // replay has come across the id, see withdrawLocked
	}
	switch {
	case err != nil:
	case s.ended:
		err = ErrClosed
	case !s.holdingLocked(int(sl.shard)).takes():
		err = errNotHeld
	default:
		s.startLocked(r.n, sl, c, r.index)
		return nil
	}
	if r.err == nil {
		s.shared.leftover.push(leftover{r.id, r.want, s.elapsed()})
	}
	s.withdrawLocked(r.n, sl)
	return err
}

// withdrawLocked gives the slot of a reservation up.
func (s *Scheduler) withdrawLocked(n uint32, sl *slot) {
	s.arriving--
	s.leaveLocked(n, sl)
	s.releaseLocked(n)
}

// askUnindexed asks the nodes whose ids may not all be filed whether they have some. It
// returns the node that has each; empty if none has. Errors: ErrUnavailable when one of
// them, or this node, cannot tell.
func (s *Scheduler) askUnindexed(ctx context.Context, ids []string) ([]string, error) {
	found := make([]string, len(ids))
	nodes, err := s.unindexed(ctx)
	if err != nil || len(nodes) == 0 {
		return found, err
	}
	var mu sync.Mutex // guards found and err
	var group sync.WaitGroup
	for _, node := range nodes {
		group.Go(func() {
			for from := 0; from < len(ids); from += hasAtOnce {
				part := ids[from:min(from+hasAtOnce, len(ids))]
				a, e := ask(ctx, s, node, hasQuestion, hasAsk{IDs: part})
				mu.Lock()
				if e != nil {
					err = e
				}
				for i, has := range a.Has[:min(len(a.Has), len(part))] {
					if has {
						found[from+i] = node
					}
				}
				mu.Unlock()
				if e != nil {
					return
				}
			}
		})
	}
	group.Wait()
	if err != nil {
		err = final(err)
	}
	return found, err
}

const hasAtOnce = 2000

// unindexed names the other nodes that have to be asked for ids that are not filed. One
// that is dead cannot be asked: while it holds anything, nobody can say what it has. Whoever
// has adopted it all is among those that may not have filed their ids.
func (s *Scheduler) unindexed(ctx context.Context) ([]string, error) {
	names, err := s.shared.ledger.Unindexed(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	if s.gaining() {
		return nil, errGaining
	}
	nodes, err := s.shared.ledger.Peers(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	for _, n := range nodes {
		if !n.Self && !n.Live && slices.Contains(names, n.Name) {
			return nil, fmt.Errorf("%w: node %s, which may have the task, gives no sign of life", errOwnerSilent, n.Name)
		}
	}
	return names, nil
}

func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// assertedAtOnce is how many ids of a slice of the audit are compared with the directory.
const assertedAtOnce = 256

// sampleLocked takes a task into what is compared with the directory.
func (a *auditee) sampleLocked(sl *slot) {
	if a.s.shared == nil || !a.s.shared.multiNode || len(a.sampled) >= assertedAtOnce {
		return
	}
	if change, ok := a.s.refilingLocked(sl); ok {
		a.sampled = append(a.sampled, change)
	}
}

// assertSampled compares ids of tasks in memory with the directory. If one is missing, the
// directory has lost something, and nobody knows what else: the audit samples no dead task.
// So all ids of this node are registered anew, and until then the other nodes ask it.
func (s *Scheduler) assertSampled(ctx context.Context, sampled []recovery.Refiling) {
	if len(sampled) == 0 {
		return
	}
	ids := make([]string, len(sampled))
	for i := range sampled {
		ids[i] = sampled[i].ID
	}
	now, err := s.shared.ledger.Look(ctx, ids)
	if err == nil {
		err = s.assert(ctx, s.misplaced(sampled, now))
	}
	if err != nil && !s.isClosing() {
		s.cfg.Log.Warn("the audit could not reach the directory of ids", "node", s.cfg.Node, "error", err)
	}
}

// misplaced returns the samples that the directory has under another home, and has all ids
// registered anew if one is missing. What has left memory since does not count.
func (s *Scheduler) misplaced(sampled []recovery.Refiling, now []recovery.Filing) (other []recovery.Refiling) {
	s.mu.Lock()
	defer s.mu.Unlock()
	missing := 0
	for i, f := range now {
		n, known := s.book.find([]byte(sampled[i].ID))
		if !known || f == sampled[i].New {
			continue
		}
		if still, ok := s.refilingLocked(s.book.slot(n)); !ok || still != sampled[i] {
			continue
		}
		if f.Home == 0 {
			missing++
		} else {
			other = append(other, sampled[i])
		}
	}
	if missing > 0 && s.shared.indexing == s.shared.indexed {
		s.cfg.Log.Error("the directory of ids has lost some; all of this node are registered anew", "node", s.cfg.Node)
		s.reindexLocked()
	}
	return other
}
