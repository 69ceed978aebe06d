package tasks

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// An idLoad is an id that is looked up in the ledger.
type idLoad struct {
	id     string
	absent bool  // the ledger does not have it
	err    error // why it is not known: ErrReplaying, ErrUnavailable, ErrClosed

	slot, gen uint32
	begun     bool // the slot was locked for it
	found     bool
}

// loadByID is loadAllByID for one id.
func (s *engine) loadByID(ctx context.Context, id string) (absent bool, err error) {
	one := []idLoad{{id: id}}
	s.loadAllByID(ctx, one)
	return one[0].absent, one[0].err
}

// loadAllByID makes sure that ids which replay has not reached are known, if they exist:
// by asking the ledger for all of them together, or, where it cannot find a record by id
// alone, by waiting for the end of replay. An id that the ledger does not have is absent:
// only this process could add it, so from then on what memory does not know does not exist.
func (s *engine) loadAllByID(ctx context.Context, loads []idLoad) {
	finder, ok := s.ledger.(recovery.Finder)
	if !ok {
		err := s.waitReplayed(ctx)
		for i := range loads {
			loads[i].err = err
		}
		return
	}
	forgotten := s.beginLoads(loads)
	var asked []*idLoad
	var ids []string
	for i := range loads {
		if f := &loads[i]; f.begun {
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
		refused := !s.ownedLocked(e.Shard).takes() || forgotten != s.shardCounts.forgotten
		switch {
		case refused:
			f.err = errNotHeld
		case !known:
			f.err, refused = errSettingsUnread, true
		}
		if s.loadsLocked(f) {
			s.resolveLocked(f.slot, e, !refused)
		}
	})
	for part := range slices.Chunk(asked, atOnce) {
		s.endLoads(part, err)
	}
}

// beginLoads locks the ids that memory does not know. It returns how many shards had
// been forgotten before.
func (s *engine) beginLoads(loads []idLoad) (forgotten int) {
	s.mu.Lock()
	forgotten = s.shardCounts.forgotten
	s.unlock()
	for part := range slices.Chunk(loads, atOnce) {
		s.mu.Lock()
		for i := range part {
			f := &part[i]
			if _, known := s.store.Find([]byte(f.id)); known || s.isReplayed() {
				continue
			}
			f.slot = s.checkLocked([]byte(f.id), store.Sought)
			f.gen, f.begun = s.store.Slot(f.slot).Gen, true
		}
		s.unlock()
	}
	return forgotten
}

// loadsLocked reports whether the id is still locked for this load. Replay may come
// across the id meanwhile: then the lock is, or was, its too.
func (s *engine) loadsLocked(f *idLoad) bool {
	sl := s.store.Slot(f.slot)
	return sl.State == store.Checking && sl.Gen == f.gen
}

// endLoads takes the locks of ids back that were not found.
func (s *engine) endLoads(loads []*idLoad, err error) {
	s.mu.Lock()
	defer s.unlock()
	for _, f := range loads {
		if f.found {
			continue
		}
		absent := s.loadsLocked(f)
		if absent && s.store.Slot(f.slot).Flags&store.Nominated == 0 {
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

// A notFoundProof says that the ledger was asked for an id and does not have it, in any of
// the shards that were held then.
type notFoundProof struct {
	sure     bool
	acquired int64 // of the shards, how many had been gained before
}

func (s *engine) notFoundProofLocked(sure bool) notFoundProof {
	return notFoundProof{sure, s.shardCounts.acquired}
}

// proveNotFound is proveAllNotFound for one id.
func (s *engine) proveNotFound(ctx context.Context, id string) (notFoundProof, error) {
	one := []idLoad{{id: id}}
	a := s.proveAllNotFound(ctx, one)
	if one[0].err != nil || !one[0].absent {
		return notFoundProof{}, one[0].err
	}
	return a, nil
}

// proveAllNotFound is loadAllByID for creations. It returns the proof that counts for those that
// are absent.
func (s *engine) proveAllNotFound(ctx context.Context, loads []idLoad) notFoundProof {
	s.mu.Lock()
	a := s.notFoundProofLocked(true)
	s.unlock()
	s.loadAllByID(ctx, loads)
	return a
}

// A flight computes something for all callers that wait for it at the same time. One
// computation runs at a time; those who come while it runs share the next one, so that each
// gets what was computed after it had called.
type flight[T any] struct {
	mu            sync.Mutex  // guards what follows
	running, next *landing[T] // the last computation that has begun, and the one after it
}

// A landing is the result of one computation.
type landing[T any] struct {
	done  chan struct{}
	value T
}

// do returns the result of compute, called by this caller or by another one. The result is
// shared: it must not be changed.
func (f *flight[T]) do(compute func() T) T {
	f.mu.Lock()
	if l := f.next; l != nil {
		f.mu.Unlock()
		<-l.done
		return l.value
	}
	l := &landing[T]{done: make(chan struct{})}
	before := f.running
	f.next = l
	f.mu.Unlock()
	if before != nil {
		<-before.done
	}
	f.mu.Lock()
	f.running, f.next = l, nil
	f.mu.Unlock()
	defer close(l.done)
	l.value = compute()
	return l.value
}
