package cluster

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// A Batch is a ScheduleBatch under way. It goes in rounds: what had to wait for
// an earlier change of the same id, or for replay, comes again with the next one.
type Batch struct {
	*Cluster
	Requests  []task.Request
	Records   [][]byte // of an import, beside ids and topics in Requests; else nil
	Results   []task.Result
	notFound  map[string]engine.NotFoundProof // of ids that were looked up in the ledger, in vain
	spool     bool                            // the ledger did not take those without an id
	forwarded bool                            // for another node, which itself asks the others
	stale     map[string]engine.StaleEntry
	By        engine.Admission
	Replaces  bool             // each request is a Replace
	asked     map[int]bool     // requests that were refused and come again
	waits     map[int]int      // how many earlier changes of its id a request has seen end
	entered   []engine.Planned // the requests that are being entered
	tries     int              // rounds after which something had to be looked for again
}

// A round is one attempt at some of the requests.
type round struct {
	*engine.PendingWrite
	delays       []delay
	unregistered []*engine.IDClaim
	elsewhere    []*item
	again        []int // requests that come again because of their directory entries
	// refusals are requests that were refused because memory believes that the ledger has a dead or
	// illegible record with the id.
	refusals []int
	kept     []engine.KeptRepeat // requests with the ids of finished tasks that are kept
	buried   []int               // requests that replace what is dead, or finished and kept
}

// A delay is why a request must come again.
type delay struct {
	index  int
	busy   <-chan struct{} // closed when the earlier change is over; nil while replay runs
	wanted bool            // that change is the creation of this very task
}

// recheck asks the ledger for ids that were refused, and returns the requests that come
// again: each does once.
func (b *Batch) recheck(ctx context.Context, refusals []int) (again []int) {
	for part := range slices.Chunk(refusals, engine.RedrivenAtOnce) {
		var dead []int
		var ids []string
		for _, i := range part {
			if id, err := b.Requests[i].ID, b.Results[i].Err; errors.Is(err, task.ErrDead) {
				dead, ids = append(dead, i), append(ids, id)
			} else if b.Cluster.engine.Recheck(ctx, id, err) {
				again = append(again, i)
			}
		}
		if len(ids) > 0 && b.engine.RecheckDead(ctx, ids) == nil {
			again = append(again, dead...)
		}
	}
	if b.asked == nil {
		b.asked = make(map[int]bool)
	}
	for _, i := range again {
		b.asked[i], b.Results[i].Err = true, nil
	}
	return again
}

// compareKept answers requests with the ids of finished tasks, and returns those that come again.
func (b *Batch) compareKept(ctx context.Context, kept []engine.KeptRepeat) (again []int) {
	for part := range slices.Chunk(kept, engine.RedrivenAtOnce) {
		b.engine.CompareKept(ctx, part)
		for i := range part {
			if p := &part[i]; errors.Is(p.Err, engine.ErrKept) {
				again = append(again, p.Index)
			} else {
				r := &b.Results[p.Index]
				r.Err, r.Repeated, r.Finished = p.Err, p.Err == nil, p.Err == nil
			}
		}
	}
	return b.afterPause(ctx, again)
}

// afterPause returns requests that come again, since their finished tasks are just being deleted.
func (b *Batch) afterPause(ctx context.Context, again []int) []int {
	if len(again) == 0 {
		return nil
	}
	if err := b.engine.KeptPause(ctx); err != nil {
		for _, i := range again {
			b.Results[i].Err = err
		}
		return nil
	}
	return again
}

// Distinct returns the requests whose ids do not stand in the batch before.
func (b *Batch) Distinct() []int {
	todo := make([]int, 0, len(b.Requests))
	seen := make(map[string]struct{})
	for i := range b.Requests {
		id := b.Requests[i].ID
		b.Results[i].ID = id
		if _, twice := seen[id]; twice {
			b.Results[i].Err = task.Invalid("id", "must not stand twice in one batch")
			continue
		}
		if id != "" {
			seen[id] = struct{}{}
		}
		todo = append(todo, i)
	}
	return todo
}

// Run creates the tasks of some requests, again and again until each has its answer.
func (b *Batch) Run(ctx context.Context, todo []int) {
	for len(todo) > 0 {
		todo = b.round(ctx, todo)
	}
}

// round creates the tasks that can be created, and returns the requests that need another round.
func (b *Batch) round(ctx context.Context, todo []int) []int {
	r := &round{PendingWrite: engine.NewPendingWrite(len(b.Requests))}
	for part := range slices.Chunk(todo, engine.AtOnce) {
		b.createSome(ctx, r, part)
	}
	b.registerAll(ctx, r)
	b.forward(ctx, append(r.elsewhere, b.replacedElsewhere(ctx, todo)...))
	if !b.spool && b.made(todo) && b.engine.TakenBack(ctx, &engine.Plan{}, r.PendingWrite) {
		b.spool = true
		answers := b.engine.OutcomesOf(r.PendingWrite)
		return slices.DeleteFunc(todo, func(i int) bool { return !errors.Is(answers[i], engine.ErrOpen) })
	}
	late := b.engine.Await(ctx, r.PendingWrite)
	answers := b.engine.OutcomesOf(r.PendingWrite)
	for _, i := range todo {
		if err := answers[i]; errors.Is(err, engine.ErrOpen) {
			b.Results[i].Err = late
		} else if err != nil {
			b.Results[i].Err = err
		}
	}
	again := r.again
	if b.Fleet != nil {
		again = append(again, b.moving(ctx, todo)...)
	}
	if len(r.refusals) > 0 {
		again = append(again, b.recheck(ctx, r.refusals)...)
	}
	again = append(again, b.compareKept(ctx, r.kept)...)
	again = append(again, b.replaceBuried(ctx, r.buried)...)
	b.proveDelayedNotFound(ctx, r.delays)
	for _, d := range r.delays {
		if d.busy != nil {
			b.Results[d.index].Err = b.engine.WaitCreated(ctx, d.busy, d.wanted, b.waits[d.index])
			if b.waits == nil {
				b.waits = make(map[int]int)
			}
			b.waits[d.index]++
		}
		if b.Results[d.index].Err == nil {
			again = append(again, d.index)
		}
	}
	return again
}

// made reports whether Lapse makes the ids of all requests in todo.
func (b *Batch) made(todo []int) bool {
	return !slices.ContainsFunc(todo, func(i int) bool { return b.Requests[i].ID != "" })
}

// createSome checks a few requests without the lock and enters them under it.
func (b *Batch) createSome(ctx context.Context, r *round, part []int) {
	if b.entered == nil {
		b.entered = make([]engine.Planned, len(part)) // no later part is longer
	}
	entered := b.entered[:len(part)]
	for k, i := range part {
		_ = b.engine.LearnTopic(ctx, b.Requests[i].Topic) // on failure the task waits for it
		p, err := b.plan(i)
		if err == nil {
			if err = b.ownerOfID(ctx, &p, b.tries > 0); err != nil {
				p.Free()
			}
		}
		if err != nil {
			b.refuse(r, i, err)
			continue
		}
		p.NotFound, p.Stale, p.Spool = b.notFound[p.ID], b.stale[p.ID], b.spool
		entered[k] = engine.Planned{Plan: p, Index: i}
	}
	b.leaveSpooled(ctx, r, entered)
	b.engine.CreateAll(entered, r.PendingWrite)
	for k := range entered {
		p := &entered[k]
		if p.Rec == nil {
			continue
		}
		i, err := p.Index, p.Err
		b.Results[i].ID = p.ID // only now: what is spooled gets another one
		switch {
		case p.Busy != nil:
			r.delays = append(r.delays, delay{index: i, busy: p.Busy, wanted: errors.Is(err, engine.ErrWanted)})
		case errors.Is(err, task.ErrReplaying):
			r.delays = append(r.delays, delay{index: i})
		case b.Replaces && errors.Is(err, engine.ErrKept), b.Replaces && p.Supersedes && errors.Is(err, task.ErrDead):
			r.buried = append(r.buried, i)
		case errors.Is(err, engine.ErrKept):
			r.kept = append(r.kept, engine.KeptRepeat{ID: p.ID, Which: p.Which(), Index: i})
		case p.Claim != nil:
			r.unregistered = append(r.unregistered, p.Claim)
		case errors.Is(err, engine.ErrRepeated):
			b.Results[i].Repeated = true
		default:
			b.refuse(r, i, err)
			if err == nil {
				b.Results[i].Spooled, b.Results[i].Repeated = p.Spooled, p.Replaced != nil
			}
		}
		p.Free()
	}
	clear(entered)
}

// leaveSpooled refuses requests for tasks that another node has spooled, or may have.
func (b *Batch) leaveSpooled(ctx context.Context, r *round, entered []engine.Planned) {
	var ids []string
	var at []*engine.Planned
	for k := range entered {
		if p := &entered[k]; b.namesShard(&p.Plan) {
			ids, at = append(ids, p.ID), append(at, p)
		}
	}
	if len(ids) == 0 {
		return
	}
	for i, err := range b.spooledElsewhere(ctx, ids) {
		if err != nil {
			at[i].Free()
			b.refuse(r, at[i].Index, err)
		}
	}
}

// refuse notes why a request was not accepted here: it may be elsewhere.
func (b *Batch) refuse(r *round, i int, err error) {
	if e, ok := errors.AsType[*engine.Elsewhere](err); ok && !b.forwarded {
		r.elsewhere = append(r.elsewhere, itemElsewhere(i, b.Results[i].ID, e))
		err = nil
	}
	if engine.Refused(err) && !b.asked[i] {
		r.refusals = append(r.refusals, i)
	}
	b.Results[i].Err = err
}

// proveDelayedNotFound looks for the ids that replay has not reached, all together.
func (b *Batch) proveDelayedNotFound(ctx context.Context, delays []delay) {
	var loads []engine.IDLoad
	var of []int // which request a search is for
	for _, d := range delays {
		if d.busy == nil {
			loads, of = append(loads, engine.IDLoad{ID: b.Requests[d.index].ID}), append(of, d.index)
		}
	}
	if len(loads) == 0 {
		return
	}
	b.engine.LoadAllByID(ctx, loads)
	for k, f := range loads {
		if b.Results[of[k]].Err = f.Err; f.Absent && f.Err == nil {
			if b.notFound == nil {
				b.notFound = make(map[string]engine.NotFoundProof)
			}
			b.notFound[f.ID] = f.Proof
		}
	}
}

// registerAll registers the ids that a round has entered with one call to the directory. Then it
// sends the first writes of those tasks, which are the last of the round.
func (b *Batch) registerAll(ctx context.Context, r *round) {
	if len(r.unregistered) > 0 {
		b.Claim(ctx, r.unregistered)
	}
	b.engine.ConfirmAll(r.unregistered, r.PendingWrite)
	for _, f := range r.unregistered {
		switch {
		case f.Err == nil:
		case errors.Is(f.Err, engine.ErrStale):
			if b.stale == nil {
				b.stale = make(map[string]engine.StaleEntry)
			}
			b.stale[f.ID] = f.Stale
			delete(b.notFound, f.ID) // of the shard where it is registered
			r.again = append(r.again, f.Index)
		default:
			b.refuse(r, f.Index, f.Err)
		}
	}
}

// moving returns the requests whose shards have to be looked for again, after a moment.
func (b *Batch) moving(ctx context.Context, todo []int) []int {
	var moving []int
	for _, i := range todo {
		if passing(b.Results[i].Err) {
			moving = append(moving, i)
		}
	}
	if len(moving) == 0 || b.forwarded {
		return nil
	}
	clear(b.stale)
	again := b.pause(ctx, b.tries)
	b.tries++
	for _, i := range moving {
		if err := &b.Results[i].Err; again {
			*err = nil
		} else {
			*err = final(*err)
		}
	}
	if !again {
		return nil
	}
	return moving
}

// forward has others create what belongs to them: one message for each node, or several
// if that would be too long.
func (b *Batch) forward(ctx context.Context, todo []*item) {
	if len(todo) == 0 {
		return
	}
	b.findElsewhere(ctx, todo, b.tries > 0)
	for _, p := range todo {
		b.Results[p.index].Err = p.err
	}
	var calls errgroup.Group
	calls.SetLimit(callsAtOnce)
	eachNode(todo, nil, func(node string, some []*item) {
		for len(some) > 0 {
			n, size := 0, 0
			for n < min(len(some), sentAtOnce) && size < sentBytes {
				size += b.sizeOf(some[n].index)
				n++
			}
			part := some[:n]
			some = some[n:]
			calls.Go(func() error {
				b.forwardTo(ctx, node, part)
				return nil
			})
		}
	})
	_ = calls.Wait()
}
