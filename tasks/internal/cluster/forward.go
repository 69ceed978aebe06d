package cluster

import (
	"context"
	"errors"

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
func (s *Cluster) createRouted(ctx context.Context, p *engine.Plan, r *task.Request, m Method[requestQuery, WireTask]) (task.Task, error) {
	var why error
	for tries := 0; ; tries++ {
		p.Stale = engine.StaleEntry{}
		err := s.ownerOfID(ctx, p, tries > 0)
		t := task.Task{ID: p.ID}
		if err == nil {
			t, err = s.engine.Create(ctx, p)
		}
		e, elsewhere := errors.AsType[*engine.Elsewhere](err)
		if p.Replaces && takesNone(err) {
			e = s.findElsewhere(ctx, []string{p.ID})[0]
			elsewhere = e != nil
		}
		if elsewhere {
			t, err = s.createRemote(ctx, e, p.ID, r, m, tries > 0)
		}
		if !passing(err) {
			return t, err
		}
		if why = reasonOf(why, err); !s.pause(ctx, tries) {
			return task.Task{ID: p.ID}, final(why)
		}
	}
}

// lookUpChosen looks up, for ids that are not known to be in the directory, whether they are, or
// some node has them that has not registered all of its own. This is for a second attempt:
// with the first, the holder of the shard finds out, and nearly always there is nothing.
func (s *Cluster) lookUpChosen(ctx context.Context, es []*engine.Elsewhere, ids []string) error {
	dirEntries, err := s.Fleet.ledger.Lookup(ctx, ids)
	if err != nil {
		return lookupFailed(ctx, err)
	}
	has, err := s.queryUnindexed(ctx, ids)
	if err != nil {
		return err
	}
	for i, e := range es {
		switch {
		case dirEntries[i].ShardID != 0:
			*e = engine.Elsewhere{ShardID: dirEntries[i].ShardID}
		case has[i] != "":
			*e = engine.Elsewhere{Node: has[i]}
		}
	}
	return nil
}

// takesNone reports whether this node has refused a task because it takes no new ones now. Another
// node may have one to replace.
func takesNone(err error) bool {
	return errors.Is(err, task.ErrDraining) || errors.Is(err, task.ErrOverloaded) || errors.Is(err, task.ErrUnavailable) && !passing(err)
}

// findElsewhere returns for each id which other node has its task, or which shard of another node;
// nil if none has, or if that cannot be known.
func (s *Cluster) findElsewhere(ctx context.Context, ids []string) []*engine.Elsewhere {
	es := make([]*engine.Elsewhere, len(ids))
	if s.NeverHadPeers() {
		return es
	}
	for i := range es {
		es[i] = &engine.Elsewhere{}
	}
	err := s.lookUpChosen(ctx, es, ids)
	for i, e := range es {
		if err != nil || e.Node == "" && (e.ShardID == 0 || s.ownedShard(e.ShardID) != nil) {
			es[i] = nil
		}
	}
	return es
}

// holderOf returns the node to ask about a task of another node, and the shard to ask for.
func (s *Cluster) holderOf(ctx context.Context, e *engine.Elsewhere, anew bool) (Location, error) {
	if e.Node != "" {
		return Location{Node: e.Node}, nil
	}
	h, err := s.locate(ctx, e.ShardID, anew)
	if err != nil {
		return Location{}, err
	}
	if h.Node == "" || h.Shard >= 0 {
		return Location{}, errNotMine // any more: it is here, or no node's
	}
	return s.at(byDirectory, e.ShardID, h)
}

func (s *Cluster) createRemote(ctx context.Context, e *engine.Elsewhere, id string, r *task.Request, m Method[requestQuery, WireTask], anew bool) (task.Task, error) {
	if e.Unregistered && anew {
		if err := s.lookUpChosen(ctx, []*engine.Elsewhere{e}, []string{id}); err != nil {
			return task.Task{ID: id}, err
		}
	}
	if anew && e.Node == "" { // the holder of the shard has found out with the first attempt
		spooled := s.querySpools(ctx, []string{id})[0]
		if spooled.err != nil {
			return task.Task{ID: id}, spooled.err
		}
		e.Node = spooled.node
	}
	p, err := s.holderOf(ctx, e, anew)
	if err != nil {
		return task.Task{ID: id}, err
	}
	wanted := *r
	wanted.ID = id
	q := aboutRequest(wanted, p.shardID)
	q.Conditions = encodeConditions(ctx)
	t, err := callTask(ctx, s, p.Node, m, q)
	if err != nil {
		t = task.Task{ID: id}
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
	return RoutedTask(ctx, s, p.ID, ReplaceMethod, func(shardID recovery.ShardID) requestQuery {
		q := aboutRequest(*r, shardID)
		q.Conditions = encodeConditions(ctx)
		return q
	}, func(ctx context.Context) (task.Task, error) { return s.Replace(ctx, p) })
}

// Replace replaces a task that is here, or creates it.
func (s *Cluster) Replace(ctx context.Context, p *engine.Plan) (task.Task, error) {
	p.Replaces = p.Chosen
	return s.engine.Create(ctx, p)
}
