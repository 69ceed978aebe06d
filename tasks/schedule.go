package tasks

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// planFor is plan for a caller.
func (s *Scheduler) planFor(ctx context.Context, r *Request) (plan, error) {
	by, err := s.engine.admission(ctx)
	if err != nil {
		return plan{}, err
	}
	_ = s.engine.learnTopic(ctx, r.Topic) // or else the task waits until they are known
	return s.plan(r, by)
}

// plan checks a request. Errors: *InvalidError, ErrTooLarge, ErrNotGranted.
func (s *Scheduler) plan(r *Request, by admission) (plan, error) {
	var f task.Faults
	chosen := r.ID != ""
	if chosen && !task.ValidName(r.ID) {
		f.Add("id", task.NameProblem)
	}
	if !task.ValidName(r.Topic) {
		f.Add("topic", task.NameProblem)
	}
	if r.Group != "" && !task.ValidName(r.Group) {
		f.Add("group", task.NameProblem)
	}
	if r.MaxLateness != 0 && (r.MaxLateness < time.Millisecond || r.MaxLateness > MaxAhead) {
		f.Add("max_lateness", "must be from 1 ms to 3660 days")
	}
	wall := s.engine.cfg.Clock()
	due := deadline(&f, wall, r.Due, r.Delay)
	f.CheckHeaders(r.Headers)
	if err := f.Err(); err != nil {
		return plan{}, err
	}
	if !by.grant.Allows(r.Topic) {
		return plan{}, ErrNotGranted
	}
	if len(r.Payload) > s.engine.cfg.MaxPayload {
		return plan{}, fmt.Errorf("%w: payload must be at most %d bytes", ErrTooLarge, s.engine.cfg.MaxPayload)
	}
	headers := record.EncodeHeaders(r.Headers)
	if len(headers) > MaxHeaderBytes {
		return plan{}, fmt.Errorf("%w: headers must be at most %d bytes together", ErrTooLarge, MaxHeaderBytes)
	}
	p := plan{id: r.ID, topic: r.Topic, chosen: chosen, next: due, by: by}
	if !chosen {
		p.id, p.shardID = s.makeID()
	}
	p.print = fingerprint(r, headers)
	p.buf = buffers.Get().(*[]byte)
	rec := record.Fields{
		Revision: 1, Due: due, Next: due, Created: wall.UnixMilli(), Fingerprint: p.print,
		Topic: []byte(r.Topic), Headers: headers, Group: []byte(r.Group),
		MaxLateness: roundUpMillis(r.MaxLateness), Payload: r.Payload,
	}
	if chosen {
		rec.Flags = record.ChosenID
	}
	p.rec = rec.Append((*p.buf)[:0])
	return p, nil
}

// deadline returns the due time of a request in Unix milliseconds.
func deadline(f *task.Faults, now, due time.Time, delay time.Duration) int64 {
	if due.IsZero() {
		f.CheckDelay("delay", delay)
		return millis(now.Add(delay))
	}
	if delay != 0 {
		f.Add("due_at", "must not stand beside delay")
	}
	if due.After(now.Add(MaxAhead)) {
		f.Add("due_at", "must be at most 3660 days ahead")
	}
	return max(millis(due), 0)
}

// fingerprint tells requests apart by what was asked for: a delay counts as it
// was given, not as the deadline that it makes.
func fingerprint(r *Request, headers []byte) uint64 {
	var d xxhash.Digest
	d.Reset()
	var n [8]byte
	number := func(v int64) {
		binary.LittleEndian.PutUint64(n[:], uint64(v))
		_, _ = d.Write(n[:])
	}
	text := func(v string) {
		number(int64(len(v)))
		_, _ = d.WriteString(v)
	}
	text(r.Topic)
	if r.Due.IsZero() {
		number(-1)
		number(int64(r.Delay))
	} else {
		number(millis(r.Due))
	}
	text(r.Group)
	number(int64(r.MaxLateness))
	number(int64(len(headers)))
	_, _ = d.Write(headers)
	_, _ = d.Write(r.Payload)
	return d.Sum64()
}

// Schedule takes a task in. It returns once the ledger has it: from then on the
// task is delivered, whatever happens to this process.
//
// With Config.Spool it also returns once the spool has the task, if the ledger is away:
// Task.Spooled tells.
//
// Asked again for the same id with the same content, it returns the task that is
// there, with Repeated set. Errors: ErrInvalid, ErrTooLarge, ErrExists, ErrDead,
// ErrOverloaded, ErrNotGranted, ErrReplaying, ErrUnavailable, ErrUnknown, ErrClosed.
func (s *Scheduler) Schedule(ctx context.Context, r Request) (Task, error) {
	ctx, cancel := s.engine.within(ctx)
	defer cancel()
	p, err := s.planFor(ctx, &r)
	if err != nil {
		return Task{}, err
	}
	defer p.release()
	if s.shared != nil {
		return s.schedule(ctx, &p, &r)
	}
	return s.create(ctx, &p)
}

func (s *Scheduler) create(ctx context.Context, p *plan) (Task, error) {
	for waits, rechecked := 0, false; ; {
		if s.namesOthersShard(p) {
			if err := s.spooledElsewhere(ctx, []string{p.id})[0]; err != nil {
				return Task{ID: p.id}, err
			}
		}
		c := newPendingWrite(1)
		s.engine.mu.Lock()
		n, err := s.createLocked(p, c, 0)
		var stale staleEntry
		if errors.Is(err, errUnregistered) {
			r := s.newIDClaimLocked(n, p, 0)
			s.engine.unlock()
			s.register(ctx, []*idClaim{r})
			s.engine.mu.Lock()
			err = s.confirmLocked(r, c)
			stale = r.stale
		}
		c.complete()
		switch {
		case errors.Is(err, errStale):
			s.engine.unlock()
			p.stale = stale
			p.notFound = notFoundProof{} // of the shard where it is filed
			continue
		case errors.Is(err, errCollision):
			s.engine.unlock()
			p.id, p.shardID = s.makeID()
			continue
		case errors.Is(err, errBusy):
			ch := s.engine.watchLocked(n)
			s.engine.unlock()
			if err := s.engine.waitCreated(ctx, ch, errors.Is(err, errWanted), waits); err != nil {
				return Task{ID: p.id}, err
			}
			waits++
			continue
		case errors.Is(err, ErrReplaying):
			s.engine.unlock()
			if p.notFound, err = s.engine.proveNotFound(ctx, p.id); err != nil {
				return Task{ID: p.id}, err
			}
			continue
		case errors.Is(err, errRepeated):
			t := s.engine.taskLocked(n)
			s.engine.unlock()
			t.Repeated = true
			return t, nil
		case !rechecked && refused(err):
			s.engine.unlock()
			if !s.engine.recheck(ctx, p.id, err) {
				return Task{ID: p.id}, err
			}
			rechecked = true
			continue
		case err != nil:
			s.engine.unlock()
			return Task{ID: p.id}, err
		}
		t := s.engine.taskLocked(n)
		s.engine.unlock()
		if s.engine.takenBack(ctx, p, c) {
			p.id, p.spool = s.engine.otherID(p.id), true
			continue
		}
		if err := s.engine.await(ctx, c); err != nil {
			return Task{ID: p.id}, err
		}
		t.State = Pending
		return t, s.engine.outcomesOf(c)[0]
	}
}

// refused reports whether an id is refused for what memory takes the ledger to have.
func refused(err error) bool { return errors.Is(err, ErrDead) || errors.Is(err, errIllegible) }

// What createLocked answers besides the errors of Schedule.
var (
	errBusy     = errors.New("busy")
	errWanted   = fmt.Errorf("%w: being created as wanted", errBusy)
	errRepeated = errors.New("repeated")
	// errUnregistered: its slot is entered, and its id has to be registered before it is written.
	errUnregistered = errors.New("not filed")
	// errStale: the id is filed under a shard that is held here, so that it has to be
	// looked at once more before it counts as free.
	errStale = errors.New("filed here, perhaps for a task that is gone")
	// errCollision: the id that was made is in use, or its shard has gone.
	errCollision = errors.New("another id has to be made")
)

// createLocked enters a planned task and sends its first write.
func (s *Scheduler) createLocked(p *plan, c *pendingWrite, i int) (uint32, error) {
	if s.engine.ended {
		return 0, ErrClosed
	}
	spools := s.engine.spoolsLocked(p)
	if s.engine.unsure() && !spools {
		return 0, errUnsure
	}
	id := []byte(p.id)
	h := s.engine.store.Hash(id)
	if n, ok := s.engine.store.FindHashed(h, id); ok {
		if !p.chosen {
			return 0, errCollision
		}
		sl := s.engine.store.Slot(n)
		same := func() bool { return record.Fingerprint(s.engine.store.Record(sl)) == p.print }
		switch {
		case sl.State == store.Creating && same():
			sl.Flags |= store.Wanted
			return n, errWanted
		case sl.State.Busy():
			return n, errBusy
		case !s.engine.ownedLocked(int(sl.Shard)).mine():
			return n, errNotHeld
		case same():
			return n, errRepeated
		}
		return n, ErrExists
	}
	if _, dead := s.engine.dead.ids[h]; dead && !p.chosen {
		return 0, errCollision
	}
	if p.chosen {
		// 64 bits of a seeded hash: the chance that an id is taken for another
		// one among a million dead is one in ten million million.
		if _, dead := s.engine.dead.ids[h]; dead {
			return 0, ErrDead
		}
		if _, unread := s.engine.illegible[h]; unread {
			return 0, errIllegible
		}
		if p.notFound != s.engine.notFoundProofLocked(true) && !s.engine.isReplayed() {
			return 0, ErrReplaying
		}
		if f := p.stale; f.Home != 0 && !f.vacant && !s.engine.ownedLocked(s.engine.shardNumberLocked(f.Home)).takes() {
			return 0, errNotHeld // any more: there may be a task after all
		}
	}
	if s.engine.draining {
		return 0, ErrDraining
	}
	shard, err := spoolShard, error(nil)
	if !spools {
		shard, err = s.shardLocked(p)
	}
	if err != nil {
		return 0, err
	}
	if err := s.engine.admitLocked(shard, 1, len(p.rec)); err != nil {
		return 0, err
	}
	if err := p.by.roomLocked(); err != nil {
		return 0, err
	}
	t, err := s.engine.topicForLocked(&p.by, p.topic)
	if err != nil {
		return 0, err
	}
	n, sl := s.engine.store.Enter(id, p.rec)
	sl.Next, sl.Topic, sl.Shard = p.next, t.number, uint16(shard)
	if shard == spoolShard {
		s.engine.spool.numberLocked(n)
	}
	s.engine.arriving++
	if s.needsClaimLocked(p) {
		s.engine.setLocked(sl, store.Registering)
		return n, errUnregistered
	}
	s.engine.startLocked(n, sl, c, i)
	return n, nil
}

// shardLocked tells in which shard a planned task is created. It is an *elsewhere if
// the id tells one that another node holds, or belongs into one that is away.
func (s *Scheduler) shardLocked(p *plan) (int, error) {
	shard := s.engine.terms.ShardOf([]byte(p.id))
	switch {
	case s.shared == nil || s.engine.ownedLocked(shard).takes():
		return shard, nil
	case p.shardID != 0 && shard >= 0:
		return 0, errNotHeld // it is just coming or going
	case p.shardID != 0:
		return 0, &elsewhere{shardID: p.shardID}
	}
	// The caller has chosen the id. It must be where the ledger looks for it, or no node finds
	// it there once its directory entry is gone.
	for _, n := range s.engine.terms.ShardsOf([]byte(p.id)) {
		if s.engine.ownedLocked(n).takes() {
			return n, nil
		}
	}
	return 0, &elsewhere{shardID: s.engine.terms.HomeFor([]byte(p.id)), unregistered: true}
}
