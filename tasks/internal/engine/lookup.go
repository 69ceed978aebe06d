package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A Place is where the task of an id is, as far as memory knows. It is the first of these that
// holds.
type Place uint8

// The places.
const (
	InMemory  Place = iota // perhaps busy, and still or already among the dead or kept
	AmongDead              // the ledger has it at the place of the dead
	AmongKept              // the same; it is finished and kept
	Illegible              // the ledger has a record that this version cannot read, and must keep
	Unread                 // not known: replay is not over, and has not come across it
	Absent                 // neither memory nor a shard that is held here has it
)

// Buried reports whether the ledger has the task at the place of the dead.
func (p Place) Buried() bool { return p == AmongDead || p == AmongKept }

// refusals say why there is no task in memory to work with.
var refusals = [...]error{
	AmongDead: task.ErrDead, AmongKept: ErrKept, Illegible: ErrIllegible, Unread: task.ErrReplaying, Absent: task.ErrNotFound,
}

// LookupLocked returns where the task of an id is, and its slot if it is in memory.
func (s *Engine) LookupLocked(id []byte) (uint32, Place) {
	return s.lookupHashedLocked(s.Store.Hash(id), id)
}

func (s *Engine) lookupHashedLocked(hash uint64, id []byte) (uint32, Place) {
	if n, known := s.Store.FindHashed(hash, id); known {
		return n, InMemory
	}
	return 0, s.OutsideLocked(hash)
}

// OutsideLocked returns where the task of the id with this hash is outside of memory. 64 bits of a
// seeded hash: the chance that an id is taken for another one among a million dead is one in ten
// million million.
func (s *Engine) OutsideLocked(hash uint64) Place {
	if _, dead := s.Dead.IDs[hash]; dead {
		return AmongDead
	}
	if _, kept := s.Dead.Kept[hash]; kept {
		return AmongKept
	}
	if _, illegible := s.Reading.Illegible[hash]; illegible {
		return Illegible
	}
	if !s.IsReplayed() {
		return Unread
	}
	return Absent
}

// lookup returns where the task of an id is.
func (s *Engine) lookup(id string) Place {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, at := s.LookupLocked([]byte(id))
	return at
}

// Knows reports whether a task is in memory, or the ledger has a record of it that is not read into
// memory: a dead one, or one that this version cannot read. buried tells those of the dead apart.
func (s *Engine) Knows(id string) (known, buried bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := []byte(id)
	h := s.Store.Hash(key)
	if mine, known := s.hereLocked(h, key); known {
		return mine, false
	}
	at := s.OutsideLocked(h)
	return at == Illegible || at.Buried(), at.Buried()
}

// hereLocked reports whether a task is known to be in memory, and its shard is this process's. The
// id of a slot that is being looked up may belong to no node, and an id that is being registered
// may turn out to belong to another node.
func (s *Engine) hereLocked(hash uint64, id []byte) (mine, known bool) {
	n, ok := s.Store.FindHashed(hash, id)
	if !ok {
		return false, false
	}
	sl := s.Store.Slot(n)
	return s.OwnedLocked(int(sl.Shard)).mine(), sl.State != store.Checking && sl.State != store.Registering
}

// An Ending is what this process remembers of how the last task of an id has ended. Kind 0:
// nothing.
type Ending struct {
	Kind    store.OutcomeKind `json:",omitempty"`
	Nonce   uint64            `json:",omitempty"` // as of a store.Outcome, like Created
	Created int64             `json:",omitempty"`
	Topic   string            `json:",omitempty"` // its name; "" if it is not known
}

// Endings returns what this process remembers of the tasks of some ids.
func (s *Engine) Endings(ids []string) []Ending {
	endings := make([]Ending, 0, len(ids))
	for part := range slices.Chunk(ids, AtOnce) {
		s.mu.Lock()
		for _, id := range part {
			hash := s.Store.Hash([]byte(id))
			o := s.Outcomes.Find(hash)
			endings = append(endings, Ending{o.Kind, o.Nonce, o.Created, s.TopicTable.ofOutcome(hash, o, s.Outcomes)})
		}
		s.mu.Unlock()
	}
	return endings
}

// LoadUnknown makes sure that memory knows those of some ids that exist: while replay runs, it
// looks up the others together. Errors: ErrReplaying, ErrUnavailable, ErrClosed; ErrUnsure,
// ErrAcquiring and ErrInDoubt while this node cannot say which of them it has.
func (s *Engine) LoadUnknown(ctx context.Context, ids []string) error {
	switch {
	case s.Unsure() && !s.KnowsSpooled(ids...):
		return ErrUnsure
	case !s.Reading.Spool.Load(), s.Acquiring():
		// The caller has asked no other node that may have had them until now.
		return ErrAcquiring
	}
	ids = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !task.ValidName(id) })
	if slices.ContainsFunc(ids, s.IsInDoubt) {
		return ErrInDoubt
	}
	for !s.IsReplayed() {
		loads, busy := s.unknownOf(ids)
		switch {
		case busy != nil: // replay, or another caller, looks an id up at the moment
			if err := s.WaitBusy(ctx, busy, 0); err != nil {
				return err
			}
			continue
		case len(loads) == 0:
			return nil
		}
		s.LoadAllByID(ctx, loads)
		ids = nil
		for _, f := range loads {
			switch {
			case f.Err != nil:
				return f.Err
			case !f.Absent && !f.found:
				ids = append(ids, f.ID) // it was in other hands
			}
		}
	}
	return nil
}

// unknownOf returns those of the ids that memory does not know. If one of them is being looked
// up, busy is closed when that is over. One that is being registered is no node's yet; it was
// looked for before.
func (s *Engine) unknownOf(ids []string) (unknown []IDLoad, busy <-chan struct{}) {
	for part := range slices.Chunk(ids, AtOnce) {
		s.mu.Lock()
		for _, id := range part {
			switch n, at := s.LookupLocked([]byte(id)); {
			case at == InMemory && s.Store.Slot(n).State == store.Checking:
				busy = s.WatchLocked(n)
			case at == Unread, at == Absent:
				unknown = append(unknown, IDLoad{ID: id})
			}
		}
		s.mu.Unlock()
	}
	return unknown, busy
}

// An IDLoad is an id that is looked up in the ledger.
type IDLoad struct {
	ID     string
	Absent bool          // the ledger does not have it
	Proof  NotFoundProof // of that
	Err    error         // why it is not known: ErrReplaying, ErrUnavailable, ErrClosed

	slot, gen uint32
	begun     bool // the slot was locked for it
	found     bool
}

// loadByID is LoadAllByID for one id.
func (s *Engine) loadByID(ctx context.Context, id string) IDLoad {
	one := []IDLoad{{ID: id}}
	s.LoadAllByID(ctx, one)
	return one[0]
}

// isLocked reports whether the id is still locked for this load. Replay may come across the id
// meanwhile: then the lock is, or was, its too.
func (f *IDLoad) isLocked(b *store.Store) bool {
	sl := b.Slot(f.slot)
	return sl.State == store.Checking && sl.Gen == f.gen
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
	forgotten, proof := s.beginLoads(loads)
	var asked []*IDLoad
	var ids []string
	for i := range loads {
		if f := &loads[i]; f.begun {
			asked, ids = append(asked, f), append(ids, f.ID)
		}
	}
	err := recovery.FindMany(ctx, finder, ids, func(i int, e recovery.Entry) {
		known := s.learnTopicsOf(ctx, []recovery.Entry{e})
		s.mu.Lock()
		defer s.unlock()
		f := asked[i]
		f.found = true
		// Its shard may have left since, and the number stand for another one.
		refused := !s.OwnedLocked(e.Shard).takes() || forgotten != s.Shards.forgotten
		switch {
		case refused:
			f.Err = ErrNotHeld
		case !known:
			f.Err, refused = errSettingsUnread, true
		}
		if f.isLocked(s.Store) {
			s.resolveLocked(f.slot, e, !refused)
		}
	})
	for part := range slices.Chunk(asked, AtOnce) {
		s.endLoads(part, proof, err)
	}
}

// beginLoads locks the ids that memory does not know. It returns how many shards had
// been forgotten before, and the proof for ids that the ledger lacks.
func (s *Engine) beginLoads(loads []IDLoad) (forgotten int, proof NotFoundProof) {
	s.mu.Lock()
	forgotten, proof = s.Shards.forgotten, s.notFoundProofLocked()
	s.unlock()
	for part := range slices.Chunk(loads, AtOnce) {
		s.mu.Lock()
		for i := range part {
			f := &part[i]
			if _, known := s.Store.Find([]byte(f.ID)); known || s.IsReplayed() {
				continue
			}
			f.slot = s.Store.EnterChecking([]byte(f.ID), store.Sought)
			f.gen, f.begun = s.Store.Slot(f.slot).Gen, true
		}
		s.unlock()
	}
	return forgotten, proof
}

// endLoads takes the locks of ids back that were not found.
func (s *Engine) endLoads(loads []*IDLoad, proof NotFoundProof, err error) {
	s.mu.Lock()
	defer s.unlock()
	for _, f := range loads {
		if f.found {
			continue
		}
		absent := f.isLocked(s.Store)
		if absent && s.Store.Slot(f.slot).Flags&store.Nominated == 0 {
			s.UncheckLocked(f.slot)
		}
		switch {
		case err != nil:
			f.Err = fmt.Errorf("%w: %w", task.ErrUnavailable, err)
		case absent && s.opensLocked():
			f.Err = errDeadUnread
		case absent:
			f.Absent, f.Proof = true, proof
		}
	}
}

// A NotFoundProof says that the ledger was asked for an id and does not have it, in any of
// the shards that were held then.
type NotFoundProof struct {
	sure     bool
	acquired int64 // of the shards, how many had been acquired before
}

// notFoundProofLocked returns the proof that holds now for ids that the ledger lacks.
func (s *Engine) notFoundProofLocked() NotFoundProof {
	return NotFoundProof{true, s.Figures.ShardsGained}
}
