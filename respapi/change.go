package respapi

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

// Verbs that read a key and then change it compare and set: the scheduler makes the change only if
// the task has the version that was read. So they are atomic, whatever other nodes of a fleet do.
// The clients of this node take turns, so that many of them can change one key.

const (
	// mostTries is how often a change is tried that others have come before.
	mostTries = 100
	// longestPause is the longest pause between two tries.
	longestPause = 20 * time.Millisecond
	// supersedeAfter is how long SET waits for the delivery of the key's expired event.
	supersedeAfter = 100 * time.Millisecond
	// mostAtOnce is how many keys of one command are looked up or changed at the same time.
	mostAtOnce = 32
)

// errContended is returned for a change that was not made, because others came before it each time.
var errContended = task.KindOf(task.ErrUnavailable, "too many clients change the key; nothing was done")

// A deed is what a verb does with a key.
type deed uint8

const (
	leave  deed = iota // nothing
	put                // give it a value, and a deadline or none
	move               // give it another deadline
	hold               // take its deadline away
	remove             // delete it
)

// A change is a deed and what it needs.
type change struct {
	deed  deed
	value []byte
	due   deadline
}

// versionOf returns the version that a change must find. It is the zero Version if there is no
// task, which nil says too.
func versionOf(t *tasks.Task) tasks.Version {
	if t == nil {
		return tasks.Version{}
	}
	return tasks.Version{Revision: t.Revision, Created: t.Created}
}

// update reads a key and makes the change that decide wants. decide gets the task of a key that
// exists, else nil. It may be called again if another client comes first. It returns the task as it
// is then; the zero Task if nothing was done, or if there is none any more. Errors: as of found and
// of the scheduler's methods; errContended.
//
// tell, which may be nil, tells subscribers what was done, if anything. It is called in the order
// of the changes of a key.
func (x *call) update(k *key, decide func(old *tasks.Task) change, tell func()) (tasks.Task, error) {
	if x.tx != nil {
		t, err := x.tx.update(k, decide)
		if err == nil && tell != nil {
			tell()
		}
		return t, err
	}
	done, free := x.c.server.turns.tryTake(k.id)
	if !free && x.beside == nil {
		return x.updateInChain(k, decide, tell)
	}
	if !free {
		var err error
		if done, err = x.c.server.turns.takeAll(x.ctx, []string{k.id}); err != nil {
			return tasks.Task{}, err
		}
	}
	defer done()
	waiting := time.Now().Add(supersedeAfter)
	for try := range mostTries {
		t, err := x.found(x.ctx, k)
		if err != nil {
			return tasks.Task{}, err
		}
		var old *tasks.Task
		if t.ID != "" && isLive(&t) {
			old = &t
		}
		want := decide(old)
		if want.deed == leave {
			return tasks.Task{}, nil
		}
		now, err := x.attempt(k, &t, want, waiting)
		if err == nil && want.deed == put && old == nil {
			x.notify(classNew, "new", k.name)
		}
		if err == nil && tell != nil {
			tell()
		}
		if !isConflict(err) {
			return now, err
		}
		if err := rest(x.ctx, try); err != nil {
			return tasks.Task{}, err
		}
	}
	return tasks.Task{}, errContended
}

// drop deletes a key that is still what was read. Errors: of CancelOnce.
func (x *call) drop(k *key, t *tasks.Task) error {
	_, err := x.attempt(k, t, change{deed: remove}, time.Time{})
	return err
}

// isConflict reports whether a change was refused because the task is not what it was.
// The caller cannot read a task that has taken the id, so no further try finds anything else.
func isConflict(err error) bool {
	if errors.Is(err, tasks.ErrTaken) {
		return false
	}
	return errors.Is(err, tasks.ErrRevision) || errors.Is(err, tasks.ErrNotFound) || errors.Is(err, tasks.ErrExists) ||
		errors.Is(err, tasks.ErrDelivering) || errors.Is(err, tasks.ErrDead)
}

// rest waits before the next try.
func rest(ctx context.Context, try int) error {
	if try == 0 {
		return nil
	}
	pause := min(time.Millisecond<<min(try, 10), longestPause)
	timer := time.NewTimer(pause/2 + rand.N(pause/2))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// attempt makes a change, if the task is still what was read. t is the zero Task if there was none.
// Until a time the change is refused while the key's expired event is being published. It returns
// the task as it is then; the zero Task if there is none any more. An error that isConflict means
// that it may be tried again.
func (x *call) attempt(k *key, t *tasks.Task, want change, until time.Time) (now tasks.Task, err error) {
	if t.State == tasks.Delivering && time.Now().Before(until) && x.isPublished(k.topic) {
		return tasks.Task{}, tasks.ErrDelivering
	}
	ctx, s := x.ctx, x.scheduler()
	if t.ID != "" {
		ctx = tasks.WithVersion(ctx, versionOf(t))
	}
	switch want.deed {
	case move:
		now, err = s.Reschedule(ctx, k.id, want.due.move())
	case hold:
		if err = x.c.server.persistent.admit(x.c.server); err == nil {
			now, err = s.Hold(ctx, k.id)
		}
	case remove:
		err = s.Admin().CancelOnce(ctx, k.id)
	default:
		now, err = x.put(ctx, k, t, want)
	}
	if x.beside != nil && (err == nil || isOpen(err)) {
		_ = x.beside.saw(k, &now, true)
	}
	return now, err
}

// fits checks the size of a value. Error: tasks.ErrTooLarge.
func (x *call) fits(value []byte) error {
	if len(value) > x.c.server.mostValue() {
		return tasks.ErrTooLarge
	}
	return nil
}

// put gives a key a value. A key that keeps its deadline keeps what else its task has.
func (x *call) put(ctx context.Context, k *key, t *tasks.Task, want change) (tasks.Task, error) {
	s, live := x.scheduler(), t.ID != "" && isLive(t)
	if err := x.fits(want.value); err != nil {
		return tasks.Task{}, err
	}
	if live && len(want.value) > 0 && want.due == dueOf(t) {
		return s.Reschedule(ctx, k.id, tasks.Move{Payload: want.value})
	}
	r, err := x.request(k, want.value, want.due)
	if err != nil {
		return tasks.Task{}, err
	}
	if t.ID == "" {
		made, err := s.Schedule(ctx, r)
		if err == nil && made.Repeated { // of another client, which wants the very same
			err = tasks.ErrExists
		}
		return made, err
	}
	r.Supersede = !live
	return s.Replace(ctx, r)
}

// request returns the request for a key with a value. Error: that of persistent.admit, if it has no
// deadline.
func (x *call) request(k *key, value []byte, due deadline) (r tasks.Request, err error) {
	if err := x.fits(value); err != nil {
		return r, err
	}
	r = tasks.Request{ID: k.id, Topic: k.topic, Payload: value, Headers: k.headers(), Due: due.at, Delay: due.in}
	if due.none() {
		r.Held = true
		err = x.c.server.persistent.admit(x.c.server)
	}
	return r, err
}

// set stores a key whatever was there. A key whose expired event is being published waits for it a
// moment, so that the event is not lost; any other expiry is taken back.
func (x *call) set(r tasks.Request) error {
	_, err := x.scheduler().Replace(x.ctx, r)
	if isExpiring(err) {
		err = x.supersede(r)
	}
	return err
}

// isExpiring reports whether Replace was refused because the task is an expiry that is being
// delivered, or was not.
func isExpiring(err error) bool {
	return errors.Is(err, tasks.ErrDelivering) || errors.Is(err, tasks.ErrDead)
}

// supersede is set for a key that has expired.
func (x *call) supersede(r tasks.Request) error {
	until := time.Now().Add(supersedeAfter)
	for try := 1; time.Now().Before(until) && x.isPublished(r.Topic); try++ {
		if err := rest(x.ctx, min(try, 3)); err != nil {
			return err
		}
		_, err := x.scheduler().Replace(x.ctx, r)
		if errors.Is(err, tasks.ErrDead) {
			break
		}
		if !errors.Is(err, tasks.ErrDelivering) {
			return err
		}
	}
	r.Supersede = true
	_, err := x.scheduler().Replace(x.ctx, r)
	return err
}

// isPublished reports whether the expired events of a topic are published: that takes milliseconds.
func (x *call) isPublished(topic string) bool {
	t, err := x.scheduler().Topic(topic)
	return err == nil && t.Settings.Kind == KindKeyevent
}

// persistent counts the keys without a TTL of this node.
type persistent struct {
	mu    sync.Mutex
	at    time.Time // when they were counted
	count int64
	added int64 // since then; some of them may have been there before
}

// countEvery is how long a count of keys holds.
const countEvery = 100 * time.Millisecond

// errPersistent is returned for a key without a TTL, of which there are too many.
var errPersistent = task.KindOf(task.ErrOverloaded, "this node has as many keys without a TTL as resp_max_persistent allows")

// admit counts another key. Error: errPersistent.
func (p *persistent) admit(s *Server) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); now.Sub(p.at) > countEvery {
		p.at, p.count, p.added = now, 0, 0
		for topic := range s.hasKeys {
			if t, err := s.scheduler.Load().Topic(topic); err == nil {
				p.count += t.Counts.Held
			}
		}
	}
	if p.count+p.added >= int64(s.cfg.MaxPersistent) {
		return errPersistent
	}
	p.added++
	return nil
}

// takeBack uncounts a key that was admitted and not made.
func (p *persistent) takeBack() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.added = max(0, p.added-1)
}

// each is each, one after the other in a transaction: a draft is for one goroutine.
func (x *call) each(n int, f func(i int)) {
	if x.tx == nil && x.beside == nil {
		each(n, f)
	} else {
		inTurn(n, f)
	}
}

// each calls f with all numbers below n, some at the same time.
func each(n int, f func(i int)) {
	if n <= 1 {
		if n == 1 {
			f(0)
		}
		return
	}
	var group sync.WaitGroup
	var next atomic.Int64
	some := func() {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			f(i)
		}
	}
	for range min(n, mostAtOnce) - 1 {
		group.Go(some)
	}
	some()
	group.Wait()
}
