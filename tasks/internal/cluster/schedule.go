package cluster

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// PlanFor is plan for a caller.
func (s *Cluster) PlanFor(ctx context.Context, r *task.Request) (engine.Plan, error) {
	by, err := s.engine.Admission(ctx)
	if err != nil {
		return engine.Plan{}, err
	}
	_ = s.engine.LearnTopic(ctx, r.Topic) // or else the task waits until they are known
	return s.Plan(r, by)
}

// Plan checks a request. Errors: *InvalidError, ErrTooLarge, ErrNotGranted.
func (s *Cluster) Plan(r *task.Request, by engine.Admission) (engine.Plan, error) {
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
	if r.MaxLateness != 0 && (r.MaxLateness < time.Millisecond || r.MaxLateness > task.MaxAhead) {
		f.Add("max_lateness", "must be from 1 ms to 3660 days")
	}
	wall := s.engine.Config.Clock()
	due := Deadline(&f, wall, r.Due, r.Delay)
	f.CheckHeaders(r.Headers)
	if err := f.Err(); err != nil {
		return engine.Plan{}, err
	}
	if !by.Grant.Allows(r.Topic) {
		return engine.Plan{}, task.ErrNotGranted
	}
	if len(r.Payload) > s.engine.Config.MaxPayload {
		return engine.Plan{}, fmt.Errorf("%w: payload must be at most %d bytes", task.ErrTooLarge, s.engine.Config.MaxPayload)
	}
	headers := record.EncodeHeaders(r.Headers)
	if len(headers) > task.MaxHeaderBytes {
		return engine.Plan{}, fmt.Errorf("%w: headers must be at most %d bytes together", task.ErrTooLarge, task.MaxHeaderBytes)
	}
	p := engine.Plan{ID: r.ID, Topic: r.Topic, Chosen: chosen, Next: due, By: by}
	if !chosen {
		p.ID, p.ShardID = s.makeID()
	}
	p.Print = fingerprint(r, headers)
	p.Buf = engine.Buffers.Get().(*[]byte)
	rec := record.Fields{
		Revision: 1, Due: due, Next: due, Created: wall.UnixMilli(), Fingerprint: p.Print,
		Topic: []byte(r.Topic), Headers: headers, Group: []byte(r.Group),
		MaxLateness: engine.RoundUpMillis(r.MaxLateness), Payload: r.Payload,
	}
	if chosen {
		rec.Flags = record.ChosenID
	}
	p.Rec = rec.Append((*p.Buf)[:0])
	return p, nil
}

// Deadline returns the due time of a request in Unix milliseconds.
func Deadline(f *task.Faults, now, due time.Time, delay time.Duration) int64 {
	if due.IsZero() {
		f.CheckDelay("delay", delay)
		return engine.Millis(now.Add(delay))
	}
	if delay != 0 {
		f.Add("due_at", "must not stand beside delay")
	}
	if due.After(now.Add(task.MaxAhead)) {
		f.Add("due_at", "must be at most 3660 days ahead")
	}
	return max(engine.Millis(due), 0)
}

// fingerprint tells requests apart by what was asked for: a delay counts as it
// was given, not as the deadline that it makes.
func fingerprint(r *task.Request, headers []byte) uint64 {
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
		number(engine.Millis(r.Due))
	}
	text(r.Group)
	number(int64(r.MaxLateness))
	number(int64(len(headers)))
	_, _ = d.Write(headers)
	_, _ = d.Write(r.Payload)
	return d.Sum64()
}

// Create creates a task at this node, whose id it registers if need be.
func (s *Cluster) Create(ctx context.Context, p *engine.Plan) (task.Task, error) {
	for waits, rechecked := 0, false; ; {
		if s.namesOthersShard(p) {
			if err := s.spooledElsewhere(ctx, []string{p.ID})[0]; err != nil {
				return task.Task{ID: p.ID}, err
			}
		}
		c := engine.NewPendingWrite(1)
		s.engine.Mu.Lock()
		n, err := s.CreateLocked(p, c, 0)
		var stale engine.StaleEntry
		if errors.Is(err, errUnregistered) {
			r := s.newIDClaimLocked(n, p, 0)
			s.engine.Unlock()
			s.register(ctx, []*idClaim{r})
			s.engine.Mu.Lock()
			err = s.confirmLocked(r, c)
			stale = r.stale
		}
		c.Complete()
		switch {
		case errors.Is(err, errStale):
			s.engine.Unlock()
			p.Stale = stale
			p.NotFound = engine.NotFoundProof{} // of the shard where it is filed
			continue
		case errors.Is(err, errCollision):
			s.engine.Unlock()
			p.ID, p.ShardID = s.makeID()
			continue
		case errors.Is(err, errBusy):
			ch := s.engine.WatchLocked(n)
			s.engine.Unlock()
			if err := s.engine.WaitCreated(ctx, ch, errors.Is(err, errWanted), waits); err != nil {
				return task.Task{ID: p.ID}, err
			}
			waits++
			continue
		case errors.Is(err, task.ErrReplaying):
			s.engine.Unlock()
			if p.NotFound, err = s.engine.ProveNotFound(ctx, p.ID); err != nil {
				return task.Task{ID: p.ID}, err
			}
			continue
		case errors.Is(err, errRepeated):
			t := s.engine.TaskLocked(n)
			s.engine.Unlock()
			t.Repeated = true
			return t, nil
		case !rechecked && refused(err):
			s.engine.Unlock()
			if !s.engine.Recheck(ctx, p.ID, err) {
				return task.Task{ID: p.ID}, err
			}
			rechecked = true
			continue
		case err != nil:
			s.engine.Unlock()
			return task.Task{ID: p.ID}, err
		}
		t := s.engine.TaskLocked(n)
		s.engine.Unlock()
		if s.engine.TakenBack(ctx, p, c) {
			p.ID, p.Spool = s.engine.OtherID(p.ID), true
			continue
		}
		if err := s.engine.Await(ctx, c); err != nil {
			return task.Task{ID: p.ID}, err
		}
		t.State = task.Pending
		return t, s.engine.OutcomesOf(c)[0]
	}
}

// refused reports whether an id is refused for what memory takes the ledger to have.
func refused(err error) bool {
	return errors.Is(err, task.ErrDead) || errors.Is(err, engine.ErrIllegible)
}

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

// CreateLocked enters a planned task and sends its first write.
func (s *Cluster) CreateLocked(p *engine.Plan, c *engine.PendingWrite, i int) (uint32, error) {
	if s.engine.Ended {
		return 0, task.ErrClosed
	}
	spools := s.engine.SpoolsLocked(p)
	if s.engine.Unsure() && !spools {
		return 0, engine.ErrUnsure
	}
	id := []byte(p.ID)
	h := s.engine.Store.Hash(id)
	if n, ok := s.engine.Store.FindHashed(h, id); ok {
		if !p.Chosen {
			return 0, errCollision
		}
		sl := s.engine.Store.Slot(n)
		same := func() bool { return record.Fingerprint(s.engine.Store.Record(sl)) == p.Print }
		switch {
		case sl.State == store.Creating && same():
			sl.Flags |= store.Wanted
			return n, errWanted
		case sl.State.Busy():
			return n, errBusy
		case !s.engine.OwnedLocked(int(sl.Shard)).Mine():
			return n, engine.ErrNotHeld
		case same():
			return n, errRepeated
		}
		return n, task.ErrExists
	}
	if _, dead := s.engine.Dead.IDs[h]; dead && !p.Chosen {
		return 0, errCollision
	}
	if p.Chosen {
		// 64 bits of a seeded hash: the chance that an id is taken for another
		// one among a million dead is one in ten million million.
		if _, dead := s.engine.Dead.IDs[h]; dead {
			return 0, task.ErrDead
		}
		if _, unread := s.engine.Reading.Illegible[h]; unread {
			return 0, engine.ErrIllegible
		}
		if p.NotFound != s.engine.NotFoundProofLocked(true) && !s.engine.IsReplayed() {
			return 0, task.ErrReplaying
		}
		if f := p.Stale; f.Home != 0 && !f.Vacant && !s.engine.OwnedLocked(s.engine.ShardNumberLocked(f.Home)).Takes() {
			return 0, engine.ErrNotHeld // any more: there may be a task after all
		}
	}
	if s.engine.Draining {
		return 0, task.ErrDraining
	}
	shard, err := engine.SpoolShard, error(nil)
	if !spools {
		shard, err = s.shardLocked(p)
	}
	if err != nil {
		return 0, err
	}
	if err := s.engine.AdmitLocked(shard, 1, len(p.Rec)); err != nil {
		return 0, err
	}
	if err := p.By.RoomLocked(); err != nil {
		return 0, err
	}
	t, err := s.engine.TopicForLocked(&p.By, p.Topic)
	if err != nil {
		return 0, err
	}
	n, sl := s.engine.Store.Enter(id, p.Rec)
	sl.Next, sl.Topic, sl.Shard = p.Next, t.Number, uint16(shard)
	if shard == engine.SpoolShard {
		s.engine.Spool.NumberLocked(n)
	}
	s.engine.Writes.Arriving++
	if s.needsClaimLocked(p) {
		s.engine.SetLocked(sl, store.Registering)
		return n, errUnregistered
	}
	s.engine.StartLocked(n, sl, c, i)
	return n, nil
}

// shardLocked tells in which shard a planned task is created. It is an *elsewhere if
// the id tells one that another node holds, or belongs into one that is away.
func (s *Cluster) shardLocked(p *engine.Plan) (int, error) {
	shard := s.engine.Terms.ShardOf([]byte(p.ID))
	switch {
	case s.Fleet == nil || s.engine.OwnedLocked(shard).Takes():
		return shard, nil
	case p.ShardID != 0 && shard >= 0:
		return 0, engine.ErrNotHeld // it is just coming or going
	case p.ShardID != 0:
		return 0, &elsewhere{shardID: p.ShardID}
	}
	// The caller has chosen the id. It must be where the ledger looks for it, or no node finds
	// it there once its directory entry is gone.
	for _, n := range s.engine.Terms.ShardsOf([]byte(p.ID)) {
		if s.engine.OwnedLocked(n).Takes() {
			return n, nil
		}
	}
	return 0, &elsewhere{shardID: s.engine.Terms.HomeFor([]byte(p.ID)), unregistered: true}
}
