package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// An IDLoad is an id that is looked up in the ledger.
type IDLoad struct {
	ID     string
	Absent bool  // the ledger does not have it
	Err    error // why it is not known: ErrReplaying, ErrUnavailable, ErrClosed

	slot, gen uint32
	begun     bool // the slot was locked for it
	Found     bool
}

// loadByID is LoadAllByID for one id.
func (s *Engine) loadByID(ctx context.Context, id string) (absent bool, err error) {
	one := []IDLoad{{ID: id}}
	s.LoadAllByID(ctx, one)
	return one[0].Absent, one[0].Err
}

// LoadAllByID makes sure that memory knows the tasks with these ids that exist, also if replay has
// not reached them. It reads all of them from the ledger at once, or waits for the end of replay if
// the ledger cannot find a record by its id. An id that the ledger does not have is absent: only
// this process could add it, so from then on it does not exist unless memory knows it.
func (s *Engine) LoadAllByID(ctx context.Context, loads []IDLoad) {
	finder, ok := s.Ledger.(recovery.Finder)
	if !ok {
		err := s.waitReplayed(ctx)
		for i := range loads {
			loads[i].Err = err
		}
		return
	}
	forgotten := s.beginLoads(loads)
	var asked []*IDLoad
	var ids []string
	for i := range loads {
		if f := &loads[i]; f.begun {
			asked, ids = append(asked, f), append(ids, f.ID)
		}
	}
	err := recovery.FindMany(ctx, finder, ids, func(i int, e recovery.Entry) {
		known := s.learnTopicsOf(ctx, []recovery.Entry{e})
		s.Mu.Lock()
		defer s.Unlock()
		f := asked[i]
		f.Found = true
		// Its shard may have left since, and the number stand for another one.
		refused := !s.OwnedLocked(e.Shard).Takes() || forgotten != s.Shards.Counts.forgotten
		switch {
		case refused:
			f.Err = ErrNotHeld
		case !known:
			f.Err, refused = errSettingsUnread, true
		}
		if s.loadsLocked(f) {
			s.resolveLocked(f.slot, e, !refused)
		}
	})
	for part := range slices.Chunk(asked, AtOnce) {
		s.endLoads(part, err)
	}
}

// beginLoads locks the ids that memory does not know. It returns how many shards had
// been forgotten before.
func (s *Engine) beginLoads(loads []IDLoad) (forgotten int) {
	s.Mu.Lock()
	forgotten = s.Shards.Counts.forgotten
	s.Unlock()
	for part := range slices.Chunk(loads, AtOnce) {
		s.Mu.Lock()
		for i := range part {
			f := &part[i]
			if _, known := s.Store.Find([]byte(f.ID)); known || s.IsReplayed() {
				continue
			}
			f.slot = s.CheckLocked([]byte(f.ID), store.Sought)
			f.gen, f.begun = s.Store.Slot(f.slot).Gen, true
		}
		s.Unlock()
	}
	return forgotten
}

// loadsLocked reports whether the id is still locked for this load. Replay may come
// across the id meanwhile: then the lock is, or was, its too.
func (s *Engine) loadsLocked(f *IDLoad) bool {
	sl := s.Store.Slot(f.slot)
	return sl.State == store.Checking && sl.Gen == f.gen
}

// endLoads takes the locks of ids back that were not found.
func (s *Engine) endLoads(loads []*IDLoad, err error) {
	s.Mu.Lock()
	defer s.Unlock()
	for _, f := range loads {
		if f.Found {
			continue
		}
		absent := s.loadsLocked(f)
		if absent && s.Store.Slot(f.slot).Flags&store.Nominated == 0 {
			s.UncheckLocked(f.slot)
		}
		switch {
		case err != nil:
			f.Err = fmt.Errorf("%w: %w", task.ErrUnavailable, err)
		case absent && s.opensLocked():
			f.Err = errDeadUnread
		default:
			f.Absent = absent
		}
	}
}

// A NotFoundProof says that the ledger was asked for an id and does not have it, in any of
// the shards that were held then.
type NotFoundProof struct {
	sure     bool
	acquired int64 // of the shards, how many had been acquired before
}

// NotFoundProofLocked returns the proof that holds now for ids that the ledger lacks.
func (s *Engine) NotFoundProofLocked(sure bool) NotFoundProof {
	return NotFoundProof{sure, s.Shards.Counts.Acquired}
}

// ProveNotFound is ProveAllNotFound for one id.
func (s *Engine) ProveNotFound(ctx context.Context, id string) (NotFoundProof, error) {
	one := []IDLoad{{ID: id}}
	a := s.ProveAllNotFound(ctx, one)
	if one[0].Err != nil || !one[0].Absent {
		return NotFoundProof{}, one[0].Err
	}
	return a, nil
}

// ProveAllNotFound is LoadAllByID for creations. It returns the proof that counts for those that
// are absent.
func (s *Engine) ProveAllNotFound(ctx context.Context, loads []IDLoad) NotFoundProof {
	s.Mu.Lock()
	a := s.NotFoundProofLocked(true)
	s.Unlock()
	s.LoadAllByID(ctx, loads)
	return a
}

// A Flight computes a value for all callers that wait for it at the same time. One computation runs
// at a time. Callers that come while it runs share the next one, so that each caller gets a value
// whose computation began after its call.
type Flight[T any] struct {
	mu            sync.Mutex  // guards what follows
	running, next *landing[T] // the last computation that has begun, and the one after it
}

// A landing is the result of one computation.
type landing[T any] struct {
	done  chan struct{}
	value T
}

// Do returns the result of compute, called by this caller or by another one. The result is
// shared: it must not be changed.
func (f *Flight[T]) Do(compute func() T) T {
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
