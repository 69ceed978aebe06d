package cluster

import (
	"context"
	"errors"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/record"
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
	var why error
	for tries := 0; ; tries++ {
		p.Stale = engine.StaleEntry{}
		err := s.ownerOfID(ctx, p, tries > 0)
		t := task.Task{ID: p.ID}
		if err == nil {
			t, err = s.engine.Create(ctx, p)
		}
		if e, ok := errors.AsType[*engine.Elsewhere](err); ok {
			t, err = s.createRemote(ctx, e, p.ID, r, tries > 0)
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

func (s *Cluster) createRemote(ctx context.Context, e *engine.Elsewhere, id string, r *task.Request, anew bool) (task.Task, error) {
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
	t, err := callTask(ctx, s, p.Node, either(ScheduleMethod, ScheduleToMethod, r.Target != nil), q)
	if err != nil {
		t = task.Task{ID: id}
	}
	return t, err
}

// ReplaceRouted replaces a task where it is, or creates it where it belongs.
func (s *Cluster) ReplaceRouted(ctx context.Context, p *engine.Plan, r *task.Request) (task.Task, error) {
	replace := either(ReplaceMethod, ReplaceToMethod, r.Target != nil)
	if task.ConditionsOf(ctx).Conditional() { // it must be somewhere
		return RoutedTask(ctx, s, p.ID, replace, func(shardID recovery.ShardID) requestQuery {
			q := aboutRequest(*r, shardID)
			q.Conditions = encodeConditions(ctx)
			return q
		}, func(ctx context.Context) (task.Task, error) { return s.Replace(ctx, p) })
	}
	var why error
	for tries := 0; ; tries++ {
		p.Stale = engine.StaleEntry{}
		t, err := s.replaceOnce(ctx, p, r, replace, tries > 0)
		if !passing(err) {
			return t, err
		}
		if why = reasonOf(why, err); !s.pause(ctx, tries) {
			return task.Task{ID: p.ID}, final(why)
		}
	}
}

func (s *Cluster) replaceOnce(ctx context.Context, p *engine.Plan, r *task.Request, m Method[requestQuery, WireTask], anew bool) (task.Task, error) {
	at, err := s.locateTask(ctx, p.ID, byMemory, anew)
	if err == nil && anew && at.Node != "" && at.stage == byID {
		spooled := s.querySpools(ctx, []string{p.ID})[0]
		if err = spooled.err; spooled.node != "" {
			at = Location{Node: spooled.node, stage: byDirectory}
		}
	}
	var e *engine.Elsewhere
	switch {
	case err == nil && at.Node == "", errors.Is(err, task.ErrNotFound):
		var t task.Task
		if err = s.ownerOfID(ctx, p, anew); err == nil {
			t, err = s.Replace(ctx, p)
		}
		if !errors.As(err, &e) {
			return t, err
		}
		if at, err = s.holderOf(ctx, e, anew); err != nil {
			return task.Task{ID: p.ID}, err
		}
	case err != nil:
		return task.Task{ID: p.ID}, err
	}
	q := aboutRequest(*r, at.shardID)
	q.Conditions = encodeConditions(ctx)
	t, err := callTask(ctx, s, at.Node, m, q)
	if err != nil {
		t = task.Task{ID: p.ID}
	}
	return t, err
}

// Replace replaces a task that is here, or creates it.
func (s *Cluster) Replace(ctx context.Context, p *engine.Plan) (task.Task, error) {
	wanted, err := record.Decode(p.Rec)
	if err != nil {
		return task.Task{}, err
	}
	for p.Chosen {
		t, err := s.engine.Move(ctx, p.ID, p.By, func(rec *record.Fields, w *engine.Write) {
			old := *rec
			*rec, w.Fired = wanted, false
			rec.Created, rec.Revision, rec.Stamp = old.Created, old.Revision, old.Stamp
			rec.Flags = old.Flags & record.ChosenID // who made the id does not change
		})
		if !errors.Is(err, task.ErrNotFound) || task.ConditionsOf(ctx).Conditional() {
			t.Repeated = err == nil
			return t, err
		}
		if errors.Is(err, engine.ErrKept) { // it is finished: a new task takes its id
			if err := s.engine.DropKept(ctx, p.ID); err != nil {
				return task.Task{ID: p.ID}, err
			}
		}
		// Between the look and the creation another caller may create it: then it
		// is there to be replaced.
		t, err = s.engine.Create(ctx, p)
		if !errors.Is(err, task.ErrExists) && !t.Repeated {
			return t, err
		}
	}
	return s.engine.Create(ctx, p)
}
