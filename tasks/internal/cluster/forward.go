package cluster

import (
	"context"
	"errors"
	"slices"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// ownerOfID finds the shard that a chosen id names, if a node holds it. It returns an
// *engine.Elsewhere if that is another node.
func (s *Cluster) ownerOfID(ctx context.Context, p *engine.Plan, anew bool) error {
	if s.Fleet == nil || !p.Chosen {
		return nil
	}
	shardID, ok := recovery.ShardIDOf(p.ID)
	if !ok {
		return nil
	}
	h, err := s.locate(ctx, shardID, anew)
	switch {
	case err != nil:
		return err
	case h.Node == "":
		p.ShardID = 0
		return nil
	}
	p.ShardID = shardID
	if h.Shard < 0 && !s.engine.KnowsSpooled(p.ID) {
		return &engine.Elsewhere{ShardID: shardID}
	}
	return nil
}

// Schedule creates a planned task where it belongs.
func (s *Cluster) Schedule(ctx context.Context, p *engine.Plan, r *task.Request) (task.Task, error) {
	return s.createRouted(ctx, p, r, ScheduleMethod)
}

// createRouted creates or replaces a planned task where it belongs, which may be another node.
func (s *Cluster) createRouted(ctx context.Context, p *engine.Plan, r *task.Request, m Method[requestQuery, task.Task]) (task.Task, error) {
	var why error
	for tries := 0; ; tries++ {
		p.Stale = engine.StaleEntry{}
		err := s.ownerOfID(ctx, p, tries > 0)
		t := task.Task{ID: p.ID}
		if err == nil {
			t, err = s.engine.Create(ctx, p)
		}
		var far []*item
		if e, ok := errors.AsType[*engine.Elsewhere](err); ok {
			far = []*item{itemElsewhere(0, p.ID, e)}
		} else if p.Replaces && takesNone(err) {
			far = s.atOthers(ctx, []*item{{id: p.ID}})
		}
		if len(far) > 0 {
			t, err = s.createRemote(ctx, far[0], r, m, tries > 0)
		}
		if !passing(err) {
			return t, err
		}
		if why = reasonOf(why, err); !s.pause(ctx, tries) {
			return task.Task{ID: p.ID}, final(why)
		}
	}
}

// itemElsewhere returns the item of a task that cannot be created here.
func itemElsewhere(index int, id string, e *engine.Elsewhere) *item {
	return &item{id: id, index: index, shardID: e.ShardID, node: e.Node, unregistered: e.Unregistered}
}

// lookUpChosen looks up, for ids that are not known to be in the directory, whether they are, or
// some node has them that has not registered all of its own.
func (s *Cluster) lookUpChosen(ctx context.Context, todo []*item) error {
	if len(todo) == 0 {
		return nil
	}
	dirEntries, err := s.Fleet.ledger.Lookup(ctx, idsOf(todo))
	if err != nil {
		return lookupFailed(ctx, err)
	}
	has, err := s.queryUnindexed(ctx, idsOf(todo))
	if err != nil {
		return err
	}
	for i, p := range todo {
		if shardID := dirEntries[i].ShardID; shardID != 0 {
			p.shardID = shardID
		} else {
			p.node = has[i]
		}
	}
	return nil
}

// findElsewhere is find for tasks that cannot be created here. Before a second attempt it also
// looks where those are that the holders of their shards did not create: with the first, they have
// found out, and nearly always there is nothing.
func (s *Cluster) findElsewhere(ctx context.Context, todo []*item, anew bool) {
	if anew {
		chosen := slices.DeleteFunc(slices.Clone(todo), func(p *item) bool { return !p.unregistered })
		if err := s.lookUpChosen(ctx, chosen); err != nil {
			for _, p := range chosen {
				p.err = err
			}
		}
		rest := slices.DeleteFunc(slices.Clone(todo), func(p *item) bool { return p.node != "" || p.err != nil })
		for i, spooled := range s.querySpools(ctx, idsOf(rest)) {
			rest[i].node, rest[i].err = spooled.node, spooled.err
		}
	}
	s.find(ctx, todo, anew)
	for _, p := range todo {
		if p.err == nil && p.at.Node == "" || errors.Is(p.err, task.ErrNotFound) {
			p.err = errNotMine // any more: it is here, or no node's
		}
	}
}

// takesNone reports whether this node has refused a task because it takes no new ones now. Another
// node may have one to replace.
func takesNone(err error) bool {
	return errors.Is(err, task.ErrDraining) || errors.Is(err, task.ErrOverloaded) || errors.Is(err, task.ErrUnavailable) && !passing(err)
}

// atOthers returns those of the tasks that another node has, or whose ids are registered for a
// shard of another node; none if that cannot be known.
func (s *Cluster) atOthers(ctx context.Context, todo []*item) []*item {
	if s.NeverHadPeers() || s.lookUpChosen(ctx, todo) != nil {
		return nil
	}
	return slices.DeleteFunc(todo, func(p *item) bool {
		return p.node == "" && (p.shardID == 0 || s.engine.Term(p.shardID) != nil)
	})
}

// createRemote has another node create a task that belongs there.
func (s *Cluster) createRemote(ctx context.Context, p *item, r *task.Request, m Method[requestQuery, task.Task], anew bool) (task.Task, error) {
	if s.findElsewhere(ctx, []*item{p}, anew); p.err != nil {
		return task.Task{ID: p.id}, p.err
	}
	wanted := *r
	wanted.ID = p.id
	t, err := Call(ctx, s, p.at.Node, m, aboutRequest(wanted, p.at.shardID, task.ConditionsOf(ctx)))
	if err != nil {
		t = task.Task{ID: p.id}
	}
	return t, err
}

// ReplaceRouted replaces a task where it is, or creates it where it belongs.
func (s *Cluster) ReplaceRouted(ctx context.Context, p *engine.Plan, r *task.Request) (task.Task, error) {
	if !task.ConditionsOf(ctx).Conditional() {
		p.Replaces = p.Chosen
		return s.createRouted(ctx, p, r, ReplaceMethod)
	}
	// It must be somewhere.
	t, _, err := Routed(ctx, s, p.ID, ReplaceMethod, func(shardID recovery.ShardID) requestQuery {
		return aboutRequest(*r, shardID, task.ConditionsOf(ctx))
	}, func(ctx context.Context) (task.Task, error) { return s.Replace(ctx, p) })
	return t, err
}

// Replace replaces a task that is here, or creates it.
func (s *Cluster) Replace(ctx context.Context, p *engine.Plan) (task.Task, error) {
	p.Replaces = p.Chosen
	return s.engine.Create(ctx, p)
}
