package tasks

import (
	"context"
	"fmt"
	"slices"

	"github.com/lapsehq/lapse/recovery"
)

// A search is an id that is looked up in the ledger.
type search struct {
	id     string
	absent bool  // the ledger does not have it
	err    error // why it is not known: ErrReplaying, ErrUnavailable, ErrClosed

	slot, gen uint32
	begun     bool // the slot was locked for it
	found     bool
}

// seek is seekAll for one id.
func (s *Scheduler) seek(ctx context.Context, id string) (absent bool, err error) {
	one := []search{{id: id}}
	s.seekAll(ctx, one)
	return one[0].absent, one[0].err
}

// seekAll makes sure that ids which replay has not reached are known, if they exist:
// by asking the ledger for all of them together, or, where it cannot find a record by id
// alone, by waiting for the end of replay. An id that the ledger does not have is absent:
// only this process could add it, so from then on what memory does not know does not exist.
func (s *Scheduler) seekAll(ctx context.Context, searches []search) {
	finder, ok := s.ledger.(recovery.Finder)
	if !ok {
		err := s.waitReplayed(ctx)
		for i := range searches {
			searches[i].err = err
		}
		return
	}
	forgotten := s.beginSearches(searches)
	var asked []*search
	var ids []string
	for i := range searches {
		if f := &searches[i]; f.begun {
			asked, ids = append(asked, f), append(ids, f.id)
		}
	}
	err := recovery.FindMany(ctx, finder, ids, func(i int, e recovery.Entry) {
		known := s.learnTopicsOf(ctx, []recovery.Entry{e})
		s.mu.Lock()
		defer s.unlock()
		f := asked[i]
		f.found = true
		// Its shard may have left since, and the number stand for another one.
		refused := !s.holdingLocked(e.Shard).takes() || forgotten != s.tenures.forgotten
		switch {
		case refused:
			f.err = errNotHeld
		case !known:
			f.err, refused = errSettingsUnread, true
		}
		if s.searchesLocked(f) {
			s.resolveLocked(f.slot, e, !refused)
		}
	})
	for part := range slices.Chunk(asked, atOnce) {
		s.endSearches(part, err)
	}
}

// beginSearches locks the ids that memory does not know. It returns how many shards had
// been forgotten before.
func (s *Scheduler) beginSearches(searches []search) (forgotten int) {
	s.mu.Lock()
	forgotten = s.tenures.forgotten
	s.unlock()
	for part := range slices.Chunk(searches, atOnce) {
		s.mu.Lock()
		for i := range part {
			f := &part[i]
			if _, known := s.book.find([]byte(f.id)); known || s.isReplayed() {
				continue
			}
			f.slot = s.checkLocked([]byte(f.id), sought)
			f.gen, f.begun = s.book.slot(f.slot).gen, true
		}
		s.unlock()
	}
	return forgotten
}

// searchesLocked reports whether the id is still locked for this search. Replay may come
// across the id meanwhile: then the lock is, or was, its too.
func (s *Scheduler) searchesLocked(f *search) bool {
	sl := s.book.slot(f.slot)
	return sl.state == checking && sl.gen == f.gen
}

// endSearches takes the locks of ids back that were not found.
func (s *Scheduler) endSearches(searches []*search, err error) {
	s.mu.Lock()
	defer s.unlock()
	for _, f := range searches {
		if f.found {
			continue
		}
		absent := s.searchesLocked(f)
		if absent && s.book.slot(f.slot).flags&nominated == 0 {
			s.uncheckLocked(f.slot)
		}
		switch {
		case err != nil:
			f.err = fmt.Errorf("%w: %w", ErrUnavailable, err)
		case absent && s.opensLocked():
			f.err = errDeadUnread
		default:
			f.absent = absent
		}
	}
}

// An absence says that the ledger was asked for an id and does not have it, in any of
// the shards that were held then.
type absence struct {
	sure   bool
	gained int64 // of the shards, how many had been gained before
}

func (s *Scheduler) absenceLocked(sure bool) absence { return absence{sure, s.tenures.gained} }

// lookFor is lookForAll for one id.
func (s *Scheduler) lookFor(ctx context.Context, id string) (absence, error) {
	one := []search{{id: id}}
	a := s.lookForAll(ctx, one)
	if one[0].err != nil || !one[0].absent {
		return absence{}, one[0].err
	}
	return a, nil
}

// lookForAll is seekAll for creations. It returns what is to be noted of those that are absent.
func (s *Scheduler) lookForAll(ctx context.Context, searches []search) absence {
	s.mu.Lock()
	a := s.absenceLocked(true)
	s.unlock()
	s.seekAll(ctx, searches)
	return a
}
