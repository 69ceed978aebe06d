package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// An item is a task on its way to the node that owns it.
type item struct {
	id      string
	index   int              // in the list of the caller
	shardID recovery.ShardID // of the task, if the caller knows it; 0: it is looked up by the id
	node    string           // that is said to have it; empty: it is looked up
	// unregistered: the shard is the one where it would be created; see engine.Elsewhere.
	unregistered bool

	at     Location           // of the last attempt
	from   lookupStage        // where the next look-up begins
	term   *engine.OwnedShard // of its shard when an attempt begins here; nil if there is none
	missed bool               // the attempt has not found the task, whatever its error is
	why    error              // why earlier attempts have failed
	err    error              // of the last attempt; at the end, the answer
}

// each does something with each of some tasks at the node that owns it: all of this node by here,
// the others by there, once for each node. It looks again while a shard is on its way from one node
// to another, for as long as ctx lasts. here and there set the errors of the items.
func (s *Cluster) each(ctx context.Context, all []item, here func([]*item), there func(node string, some []*item)) {
	todo := pointersTo(all)
	for tries := 0; len(todo) > 0; {
		s.find(ctx, todo, tries > 0)
		eachNode(todo, func(some []*item) { s.whileHeld(some, here) }, there)
		waits := false
		todo = slices.DeleteFunc(todo, func(p *item) bool {
			again, later := p.again()
			if again {
				p.err = nil
			}
			waits = waits || later
			return !again
		})
		if !waits {
			continue
		}
		if !s.pause(ctx, tries) {
			for _, p := range todo {
				p.err = final(reasonOf(p.why, errNoTime))
			}
			return
		}
		tries++
	}
}

func pointersTo[T any](all []T) []*T {
	ps := make([]*T, len(all))
	for i := range all {
		ps[i] = &all[i]
	}
	return ps
}

func idsOf(some []*item) []string {
	ids := make([]string, len(some))
	for i, p := range some {
		ids[i] = p.id
	}
	return ids
}

// again reports whether there is to be another attempt, and whether it is worth a pause.
func (p *item) again() (again, later bool) {
	selected := p.node != ""
	p.node = ""
	switch {
	case selected && passing(p.err): // it is elsewhere by now
		return true, false
	case errors.Is(p.err, task.ErrNotFound) && (p.at.stage == byMemory || p.at.stage == byID && !remembered(p.err)):
		// By memory it is not known whether it is gone, or its shard.
		p.from = p.at.stage + 1
		return true, false
	case passing(p.err):
		p.why, p.from = reasonOf(p.why, p.err), byMemory
		return true, true
	}
	return false, false
}

// find finds where each of the tasks is that have no error yet, or sets its error. A shard that the
// caller knows is looked up once for all of its tasks.
func (s *Cluster) find(ctx context.Context, todo []*item, anew bool) {
	var found map[recovery.ShardID]*item
	for _, p := range todo {
		switch like := found[p.shardID]; {
		case p.err != nil:
		case p.node == s.Fleet.node:
			p.at = Location{}
		case p.node != "":
			p.at = Location{Node: p.node}
		case like != nil:
			p.at, p.err = like.at, like.err
		case p.shardID != 0:
			p.at, p.err = s.locateShard(ctx, p.shardID, anew)
			if found == nil {
				found = make(map[recovery.ShardID]*item)
			}
			found[p.shardID] = p
		default:
			p.at, p.err = s.locateTask(ctx, p.id, p.from, anew)
		}
		if p.err != nil {
			p.at.stage = byDirectory // ErrNotFound is final
		}
	}
}

// eachNode calls here for those of the tasks that are here, and there for each other node that has
// some, all at the same time. It leaves out tasks that have an error, and changes their order.
func eachNode(all []*item, here func([]*item), there func(node string, some []*item)) {
	located := all[:partition(all)]
	slices.SortStableFunc(located, func(a, b *item) int { return strings.Compare(a.at.Node, b.at.Node) })
	var near []*item
	var group sync.WaitGroup
	for len(located) > 0 {
		node, n := located[0].at.Node, 1
		for n < len(located) && located[n].at.Node == node {
			n++
		}
		some := located[:n]
		if located = located[n:]; node == "" {
			near = some
		} else {
			group.Go(func() { there(node, some) })
		}
	}
	if near != nil {
		here(near)
	}
	group.Wait()
}

// partition moves the items without an error to the front, in their order, and returns how many
// they are.
func partition(all []*item) (n int) {
	for i, p := range all {
		if p.err == nil {
			all[n], all[i] = p, all[n]
			n++
		}
	}
	return n
}

// whileHeld runs do, which works on tasks of this node, with those that have no error yet and may
// be here: they are known here, or this node owns their shards. That a task was not found is final
// only if this node has owned its shard throughout; otherwise the error is errNotMine. A task whose
// shard is not known may be here, and that it was not found remains so.
func (s *Cluster) whileHeld(some []*item, do func([]*item)) {
	unsure := s.engine.Unsure()
	for _, p := range some {
		if p.term = s.engine.Term(p.at.shardID); p.err == nil && p.at.shardID != 0 && p.term == nil && !s.Knows(p.id) {
			p.err = errNotMine
		}
		if unsure && p.err == nil && !s.engine.KnowsSpooled(p.id) {
			p.err = engine.ErrUnsure
		}
	}
	if some = some[:partition(some)]; len(some) == 0 {
		return
	}
	do(some)
	for _, p := range some {
		if p.at.shardID != 0 && (p.missed || errors.Is(p.err, task.ErrNotFound)) &&
			(p.term == nil || s.engine.Term(p.at.shardID) != p.term) {
			p.err = errNotMine
		}
	}
}

// itemAsked returns the item of a task about which another node asks. The caller believes that it
// is kept at the shard; 0: only that this node has it.
func (s *Cluster) itemAsked(id string, shardID recovery.ShardID) item {
	p := item{id: id, shardID: shardID}
	if shardID == 0 && !s.Knows(id) {
		p.err = errNotMine
	}
	return p
}

// serve does for another node what each does here.
func (s *Cluster) serve(ctx context.Context, conds *task.Conditions, all []item, do func(context.Context, []*item)) {
	ctx, cancel := s.answering(ctx, conds)
	defer cancel()
	for i := range all {
		all[i].at.shardID = all[i].shardID
	}
	s.whileHeld(pointersTo(all), func(some []*item) { do(ctx, some) })
	for i := range all {
		all[i].err = owning(all[i].err, all[i].shardID)
	}
}

// answering returns the context of a call of another node with these conditions. The answer must
// arrive before the caller's time is over, also if it says that the outcome is not known.
func (s *Cluster) answering(ctx context.Context, conds *task.Conditions) (context.Context, context.CancelFunc) {
	within := s.engine.Config.AnswerWithin
	if conds != nil {
		ctx = conds.In(ctx)
	}
	if deadline, ok := ctx.Deadline(); ok {
		within = min(within, time.Until(deadline)*9/10)
	}
	return context.WithTimeoutCause(ctx, within, engine.ErrLate)
}

// owning returns the error that another node gets for an error about a task of that shard.
func owning(err error, shardID recovery.ShardID) error {
	_, elsewhere := errors.AsType[*engine.Elsewhere](err)
	switch {
	case elsewhere, errors.Is(err, task.ErrClosed), errors.Is(err, task.ErrDraining):
		return errNotMine // and soon another node's
	case shardID == 0 && errors.Is(err, task.ErrNotFound):
		return errNotMine // it is gone; whether it is anywhere else is not known here
	}
	return err
}
