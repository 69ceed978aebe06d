package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// An IDClaim is a slot whose id is being registered.
type IDClaim struct {
	n, gen uint32
	Index  int // of its request, in a batch
	ID     string
	Want   recovery.DirectoryEntry
	Stale  StaleEntry
	Err    error // nil: registered. ErrStale, *Elsewhere, ErrUnavailable otherwise
}

// newIDClaimLocked returns the claim of a planned task, whose slot is in memory, on its id.
func (s *Engine) newIDClaimLocked(n uint32, p *Plan, index int) *IDClaim {
	sl := s.Store.Slot(n)
	return &IDClaim{n: n, gen: sl.Gen, Index: index, ID: p.ID, Stale: p.Stale, Want: s.entryOfLocked(sl)}
}

// newCreated returns the time of creation, in Unix nanoseconds, of a task that is created now.
func (q *writes) newCreated(now time.Time) int64 {
	for {
		last := q.lastMade.Load()
		next := record.NewCreated(now, last)
		if q.lastMade.CompareAndSwap(last, next) {
			return next
		}
	}
}

// entryOfLocked returns the directory entry for the id of a task in memory. The nonce follows
// from what the record keeps for good, so that it need not be remembered.
func (s *Engine) entryOfLocked(sl *store.Slot) recovery.DirectoryEntry {
	return DirectoryEntryOf(s.ShardIDLocked(sl), s.Store.ID(sl), record.Created(s.Store.Record(sl)))
}

// DirectoryEntryOf returns the directory entry for an id whose task was created at this time, in
// Unix nanoseconds, in this shard.
func DirectoryEntryOf(shardID recovery.ShardID, id []byte, created int64) recovery.DirectoryEntry {
	sum := xxhash.Sum64(id) ^ uint64(created)*0x9e3779b97f4a7c15
	return recovery.DirectoryEntry{ShardID: shardID, Nonce: uint32(sum>>32 ^ sum)}
}

// confirmLocked creates the task of an id claim, or gives its slot up. Errors: those of
// the claim, ErrNotHeld and ErrClosed.
func (s *Engine) confirmLocked(r *IDClaim, c *PendingWrite) error {
	sl := s.Store.Slot(r.n)
	err := r.Err
	if sl.Gen != r.gen {
		if err == nil {
			s.Cluster.UnclaimedLocked(r.ID, r.Want)
		}
		return ErrAcquiring // replay has come across the id, see AbortLocked
	}
	switch {
	case err != nil:
	case s.Ended:
		err = task.ErrClosed
	case !s.OwnedLocked(int(sl.Shard)).takes():
		err = ErrNotHeld
	default:
		s.StartLocked(r.n, sl, c, r.Index)
		return nil
	}
	if r.Err == nil {
		s.Cluster.UnclaimedLocked(r.ID, r.Want)
	}
	s.AbortLocked(r.n, sl)
	return err
}

// PlanFor is Plan for a caller: it looks up what the caller may create, and the settings of the
// topic. Errors: as of Plan and Admission.
func (s *Engine) PlanFor(ctx context.Context, r *task.Request) (Plan, error) {
	by, err := s.Admission(ctx)
	if err != nil {
		return Plan{}, err
	}
	_ = s.LearnTopic(ctx, r.Topic) // or else the task waits until they are known
	return s.Plan(r, by)
}

// Plan checks a request. Errors: *InvalidError, ErrTooLarge, ErrNotGranted.
func (s *Engine) Plan(r *task.Request, by Admission) (Plan, error) {
	var f task.Faults
	chosen := r.ID != ""
	if chosen && !task.ValidName(r.ID) {
		f.Add("id", task.NameProblem)
	}
	CheckContent(&f, r)
	wall := s.Config.Clock()
	due := Deadline(&f, wall, r.Due, r.Delay)
	f.CheckHeaders(r.Headers)
	if err := f.Err(); err != nil {
		return Plan{}, err
	}
	if !by.Grant.Allows(r.Topic) {
		return Plan{}, task.ErrNotGranted
	}
	if len(r.Payload) > s.Config.MaxPayload {
		return Plan{}, fmt.Errorf("%w: payload must be at most %d bytes", task.ErrTooLarge, s.Config.MaxPayload)
	}
	headers := record.EncodeHeaders(r.Headers)
	if len(headers) > task.MaxHeaderBytes {
		return Plan{}, fmt.Errorf("%w: headers must be at most %d bytes together", task.ErrTooLarge, task.MaxHeaderBytes)
	}
	target, err := s.TargetFor(r.Topic, r.Target)
	if err != nil {
		return Plan{}, err
	}
	p := Plan{ID: r.ID, Topic: r.Topic, Chosen: chosen, Next: due, By: by, Supersedes: r.Supersede}
	if !chosen {
		p.ID, p.ShardID = s.Cluster.NewID()
	}
	p.Print = fingerprint(r, headers, target)
	headers = addTrace(headers, r.Headers, by.trace)
	p.Buf = Buffers.Get().(*[]byte)
	rec := record.Fields{
		Revision: 1, Due: due, Next: due, Created: s.Writes.newCreated(wall), Fingerprint: p.Print,
		Headers: headers, Target: target,
	}
	if chosen {
		rec.Flags = record.ChosenID
	}
	if r.Held {
		rec.Hold(record.Millis(wall)) // rounded as due is, so that a whole delay remains what it is
		p.Next = rec.Next
	}
	p.Rec = AppendRecord((*p.Buf)[:0], r, rec)
	return p, nil
}

// Deadline returns the due time of a request in Unix milliseconds.
func Deadline(f *task.Faults, now, due time.Time, delay time.Duration) int64 {
	if due.IsZero() {
		f.CheckDelay("delay", delay)
		return record.Millis(now.Add(delay))
	}
	if delay != 0 {
		f.Add("due_at", "must not stand beside delay")
	}
	if due.After(now.Add(task.MaxAhead)) {
		f.Add("due_at", "must be at most 3660 days ahead")
	}
	return max(record.Millis(due), 0)
}

// Create creates a task at this node, whose id it registers if need be.
func (s *Engine) Create(ctx context.Context, p *Plan) (task.Task, error) {
	for waits, rechecked := 0, false; ; {
		if err := s.Cluster.FindSpooled(ctx, p); err != nil {
			return task.Task{ID: p.ID}, err
		}
		c := newSingleWrite(1)
		s.mu.Lock()
		n, err := s.CreateLocked(p, c, 0)
		var stale StaleEntry
		if errors.Is(err, ErrUnregistered) {
			r := s.newIDClaimLocked(n, p, 0)
			s.unlock()
			s.Cluster.Claim(ctx, []*IDClaim{r})
			s.mu.Lock()
			err = s.confirmLocked(r, c)
			stale = r.Stale
		}
		c.complete()
		switch {
		case errors.Is(err, ErrStale):
			s.unlock()
			p.Stale = stale
			p.NotFound = NotFoundProof{} // of the shard where it is registered
			continue
		case errors.Is(err, ErrCollision):
			s.unlock()
			p.ID, p.ShardID = s.Cluster.NewID()
			continue
		case errors.Is(err, ErrBusy):
			ch := s.WatchLocked(n)
			s.unlock()
			if err := s.WaitCreated(ctx, ch, errors.Is(err, ErrWanted), waits); err != nil {
				return task.Task{ID: p.ID}, err
			}
			waits++
			continue
		case errors.Is(err, task.ErrReplaying):
			s.unlock()
			load := s.loadByID(ctx, p.ID)
			if p.NotFound = load.Proof; load.Err != nil {
				return task.Task{ID: p.ID}, load.Err
			}
			continue
		case errors.Is(err, ErrRepeated):
			t := s.ListedLocked(n, false)
			s.unlock()
			t.Repeated = true
			return t, nil
		case errors.Is(err, ErrKept), p.Replaces && p.Supersedes && errors.Is(err, task.ErrDead):
			s.unlock()
			if t, again, err := s.takeBuriedID(ctx, p, err); !again {
				return t, err
			}
			continue
		case !rechecked && Refused(err):
			s.unlock()
			if !s.Recheck(ctx, p.ID, err) {
				return task.Task{ID: p.ID}, err
			}
			rechecked = true
			continue
		case err != nil:
			s.unlock()
			return task.Task{ID: p.ID}, err
		}
		spooled := p.Replaced == nil && s.Store.Slot(n).Shard == SpoolShard
		s.unlock()
		s.carry(ctx, c)
		if s.TakenBack(ctx, p, c) {
			p.ID, p.Spool = otherID(p.ID), true
			continue
		}
		if err := s.Await(ctx, c); err != nil {
			return task.Task{ID: p.ID}, err
		}
		return s.describePlanned(p, spooled), s.OutcomesOf(c)[0]
	}
}

// A Planned is one task of a batch that is created.
type Planned struct {
	Plan
	Index   int             // in the batch, and of its write
	Err     error           // as of CreateLocked
	Busy    <-chan struct{} // with ErrBusy: closed when the earlier change of the id is over
	Claim   *IDClaim        // with ErrUnregistered
	Spooled bool
}

// CreateAll enters at most AtOnce planned tasks, and sends their first writes, for which c waits.
// It passes over plans without a record.
func (s *Engine) CreateAll(some []Planned, c *PendingWrite) {
	s.mu.Lock()
	defer s.unlock()
	for i := range some {
		p := &some[i]
		if p.Rec == nil {
			continue
		}
		n, err := s.CreateLocked(&p.Plan, c, p.Index)
		for errors.Is(err, ErrCollision) {
			p.ID, p.ShardID = s.Cluster.NewID()
			n, err = s.CreateLocked(&p.Plan, c, p.Index)
		}
		switch p.Err = err; {
		case err == nil:
			p.Spooled = s.Store.Slot(n).Shard == SpoolShard
		case errors.Is(err, ErrBusy):
			p.Busy = s.WatchLocked(n)
		case errors.Is(err, ErrUnregistered):
			p.Claim = s.newIDClaimLocked(n, &p.Plan, p.Index)
		}
	}
}

// ConfirmAll creates the tasks of claims, or gives their slots up, and sets the errors of those. No
// further write is added to c.
func (s *Engine) ConfirmAll(claims []*IDClaim, c *PendingWrite) {
	for part := range slices.Chunk(claims, AtOnce) {
		s.mu.Lock()
		for _, r := range part {
			r.Err = s.confirmLocked(r, c)
		}
		s.unlock()
	}
	s.mu.Lock()
	defer s.unlock()
	c.complete()
}

// Refused reports whether an id was refused because memory believes that the ledger has a dead or
// illegible record with it.
func Refused(err error) bool {
	return errors.Is(err, task.ErrDead) || errors.Is(err, ErrIllegible)
}

// Errors of CreateLocked besides those of Schedule.
var (
	ErrBusy     = errors.New("busy")
	ErrWanted   = fmt.Errorf("%w: being created as wanted", ErrBusy)
	ErrRepeated = errors.New("repeated")
	// ErrUnregistered: the slot is entered. The id has to be registered before the task is written.
	ErrUnregistered = errors.New("id not registered")
	// ErrStale: the id is registered under a shard that is held here. The caller has to look for
	// the task once more before the id counts as free.
	ErrStale = errors.New("id registered here, task unknown")
	// ErrCollision: the id that was made is in use, or its shard has gone.
	ErrCollision = errors.New("another id has to be made")
)

// CreateLocked enters a planned task and sends its first write.
func (s *Engine) CreateLocked(p *Plan, c *PendingWrite, i int) (uint32, error) {
	if s.Ended {
		return 0, task.ErrClosed
	}
	spools := s.SpoolsLocked(p)
	if s.Unsure() && !spools && !(p.Replaces && s.knownSpooledLocked(p.ID)) {
		return 0, ErrUnsure
	}
	id := []byte(p.ID)
	h := s.Store.Hash(id)
	n, at := s.lookupHashedLocked(h, id)
	if at == InMemory {
		if !p.Chosen {
			return 0, ErrCollision
		}
		if p.Replaces {
			return n, s.replaceLocked(n, p, c, i)
		}
		sl := s.Store.Slot(n)
		same := func() bool { return p.Which().Is(s.Store.Record(sl)) }
		switch {
		case sl.State == store.Creating && same():
			sl.Flags |= store.Wanted
			return n, ErrWanted
		case sl.State.Busy():
			return n, ErrBusy
		case !s.OwnedLocked(int(sl.Shard)).mine():
			return n, ErrNotHeld
		case same():
			return n, ErrRepeated
		}
		return n, task.ErrExists
	}
	if !p.Chosen && at.Buried() {
		return 0, ErrCollision
	}
	if p.Chosen {
		if err := s.takenLocked(p, h, at); err != nil {
			return 0, err
		}
		if p.Replaces && p.By.conds.Conditional() {
			return 0, task.ErrNotFound
		}
		if f := p.Stale; f.ShardID != 0 && !f.Vacant && !s.OwnedLocked(s.Shards.number(f.ShardID)).takes() {
			return 0, ErrNotHeld // any more: there may be a task after all
		}
	}
	if s.Draining {
		return 0, task.ErrDraining
	}
	shard, err := SpoolShard, error(nil)
	if !spools {
		shard, err = s.shardLocked(p)
	}
	if err != nil {
		return 0, err
	}
	if err := s.admitPlanLocked(shard, p); err != nil {
		return 0, err
	}
	if err := p.By.RoomLocked(); err != nil {
		return 0, err
	}
	t, err := s.TopicForLocked(&p.By, p.Topic)
	if err != nil {
		return 0, err
	}
	n, sl := s.Store.Enter(id, p.Rec)
	sl.Next, sl.Topic, sl.Shard = p.Next, t.Number, uint16(shard)
	s.markImportedLocked(sl, t, p)
	if shard == SpoolShard {
		s.Spool.NumberLocked(n)
	}
	s.Writes.Arriving++
	if p.Chosen && p.ShardID == 0 && s.Cluster.Registers() {
		s.SetLocked(sl, store.Registering)
		return n, ErrUnregistered
	}
	s.StartLocked(n, sl, c, i)
	return n, nil
}

// takenLocked returns why the id of a planned task is not free; nil if it is. The id has this hash,
// and is not in memory.
//
// An imported task that has been finished here a short while ago is ErrRepeated: its import is
// repeated, and a second delivery is not wanted. For that of a dead id the error is ErrKept, since
// the dead task may be the same.
func (s *Engine) takenLocked(p *Plan, hash uint64, at Place) error {
	switch {
	case p.Imported && at.Buried():
		return ErrKept
	case p.Imported && s.Outcomes.Find(hash).Created == record.Created(p.Rec):
		return ErrRepeated
	case at == Absent, at == Unread && p.NotFound == s.notFoundProofLocked():
		return nil
	}
	return refusals[at]
}

// shardLocked tells in which shard a planned task is created. It is an *Elsewhere if
// the id tells one that another node holds, or belongs into one that is away.
func (s *Engine) shardLocked(p *Plan) (int, error) {
	shard := s.Terms.ShardOf([]byte(p.ID))
	switch {
	case !s.Cluster.Shares() || s.OwnedLocked(shard).takes():
		return shard, nil
	case p.ShardID != 0 && shard >= 0:
		return 0, ErrNotHeld // it is just coming or going
	case p.ShardID != 0:
		return 0, &Elsewhere{ShardID: p.ShardID}
	}
	// The caller has chosen the id. It must be where the ledger looks for it, or no node finds
	// it there once its directory entry is gone.
	for _, n := range s.Terms.ShardsOf([]byte(p.ID)) {
		if s.OwnedLocked(n).takes() {
			return n, nil
		}
	}
	return 0, &Elsewhere{ShardID: s.Terms.OwnShardFor([]byte(p.ID)), Unregistered: true}
}

// A StaleEntry is a directory entry whose task no longer exists: its shard is held here, where
// the task would be known, or by no node. The zero StaleEntry stands for none.
type StaleEntry struct {
	recovery.DirectoryEntry
	Vacant bool // no node holds the shard
}

// A Plan is a request that has been checked, with the record that it makes.
type Plan struct {
	ID       string
	Topic    string
	Chosen   bool // the caller chose the id
	Spool    bool // the ledger did not take it
	NotFound NotFoundProof
	ShardID  recovery.ShardID // that the id tells, if a node holds it
	Stale    StaleEntry
	Imported bool // it is a task of another ledger
	// Replaces: the task takes the place of one that has its id. Supersedes: also of one that is
	// being delivered, dead, or finished and kept. Replaced is its record then; nil if there was
	// none to replace.
	Replaces, Supersedes bool
	Replaced             []byte
	Rec                  []byte
	Print                uint64 // fingerprint
	Next                 int64
	Buf                  *[]byte // of rec, from buffers
	By                   Admission
}

// Buffers lends the memory in which records are put together.
var Buffers = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

// Free gives the memory of the record back.
func (p *Plan) Free() {
	if p.Buf != nil && cap(p.Rec) <= 64<<10 {
		*p.Buf = p.Rec[:0]
		Buffers.Put(p.Buf)
	}
	p.Buf, p.Rec = nil, nil
}
