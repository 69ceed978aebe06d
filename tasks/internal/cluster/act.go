package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// An acting is one task of an act, on its way to the node that owns it.
type acting struct {
	id   string
	node string // that had it when it was selected; empty: it is looked up
	at   Location
	from lookupStage
	why  error // why earlier attempts have failed
	err  error // of the last attempt; at the end, the answer
}

// Act acts on tasks that are not dead, none of which may come twice, where they are now: with one
// call to each node that has some of them. It returns an answer for each: nil;
// engine.ErrNotSelected if the act was not for it, or not any more; or an error of
// tasks.Scheduler.Cancel, of Reschedule or of Fire.
func (s *Cluster) Act(ctx context.Context, q *engine.ActQuery, targets []Target) []error {
	answers := make([]error, len(targets))
	if s.Fleet == nil {
		ids := make([]string, len(targets))
		for i := range targets {
			ids[i] = targets[i].ID
		}
		copy(answers, s.engine.Act(ctx, q, ids))
	} else {
		all := make([]acting, len(targets))
		todo := make([]*acting, len(targets))
		for i, t := range targets {
			all[i] = acting{id: t.ID, node: t.Node}
			todo[i] = &all[i]
		}
		s.actEverywhere(ctx, q, todo)
		for i := range all {
			answers[i] = all[i].err
		}
	}
	var ids []string
	var gone []int
	for i, err := range answers {
		switch {
		case !errors.Is(err, task.ErrNotFound):
		case q.Select != nil:
			answers[i] = engine.ErrNotSelected
		case q.Action == task.CancelAction && !errors.Is(err, engine.ErrFinished):
			ids, gone = append(ids, targets[i].ID), append(gone, i)
		}
	}
	for k, was := range s.CancelledBefore(ctx, ids) {
		if was {
			answers[gone[k]] = nil
		}
	}
	return answers
}

// actEverywhere is what Routed does for one task.
func (s *Cluster) actEverywhere(ctx context.Context, q *engine.ActQuery, todo []*acting) {
	for tries := 0; len(todo) > 0; {
		s.actOnce(ctx, q, todo, tries > 0)
		waits := false
		todo = slices.DeleteFunc(todo, func(p *acting) bool {
			selected := p.node != ""
			p.node = ""
			switch {
			case selected && passing(p.err): // it is elsewhere by now
			case errors.Is(p.err, task.ErrNotFound) && (p.at.stage == byMemory || p.at.stage == byID && !remembered(p.err)):
				p.from = p.at.stage + 1
			case !passing(p.err):
				return true
			default:
				p.why, p.from, waits = reasonOf(p.why, p.err), byMemory, true
			}
			return false
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

// actOnce looks the tasks up, and acts on them at the nodes that have them.
func (s *Cluster) actOnce(ctx context.Context, q *engine.ActQuery, todo []*acting, anew bool) {
	at := make(map[string][]*acting)
	for _, p := range todo {
		p.err = nil
		switch {
		case p.node == "":
			if p.at, p.err = s.locateTask(ctx, p.id, p.from, anew); p.err != nil {
				p.at.stage = byDirectory // ErrNotFound is final
			}
		case p.node == s.Fleet.node:
			p.at = Location{stage: byMemory}
		default:
			p.at = Location{Node: p.node, stage: byMemory}
		}
		if p.err == nil {
			at[p.at.Node] = append(at[p.at.Node], p)
		}
	}
	var group sync.WaitGroup
	for node, some := range at {
		group.Go(func() {
			if node == "" {
				s.actOwned(ctx, q, some)
			} else {
				s.actAt(ctx, node, q, some)
			}
		})
	}
	group.Wait()
}

// actOwned acts on tasks of this node. It is whileHeld for many of them.
func (s *Cluster) actOwned(ctx context.Context, q *engine.ActQuery, some []*acting) {
	unsure := s.engine.Unsure()
	var mine []*acting
	var ids []string
	var before []*engine.OwnedShard
	for _, p := range some {
		if unsure && !s.engine.KnowsSpooled(p.id) {
			p.err = engine.ErrUnsure
			continue
		}
		mine, ids, before = append(mine, p), append(ids, p.id), append(before, s.ownedShard(p.at.shardID))
	}
	for i, err := range s.engine.Act(ctx, q, ids) {
		p := mine[i]
		if p.err = err; p.at.shardID != 0 && errors.Is(err, task.ErrNotFound) && (before[i] == nil || s.ownedShard(p.at.shardID) != before[i]) {
			p.err = errNotMine
		}
	}
}

// actAt has another node act on tasks.
func (s *Cluster) actAt(ctx context.Context, node string, q *engine.ActQuery, some []*acting) {
	asked := actQuery{wireAct: *encodeAct(q), Tasks: make([]actTask, len(some)), Conditions: encodeConditions(ctx)}
	for i, p := range some {
		asked.Tasks[i] = actTask{p.id, p.at.shardID}
	}
	a, err := Call(ctx, s, node, ActMethod, asked)
	if err == nil && len(a.Faults) != len(some) {
		err = fmt.Errorf("%w: node %s has answered for %d of %d tasks", task.ErrUnknown, node, len(a.Faults), len(some))
	}
	for i, p := range some {
		switch {
		case err != nil:
			p.err = err
		case a.Faults[i] != nil:
			p.err = a.Faults[i].Err(node, true)
		case i < len(a.Created) && a.Created[i] != 0:
			s.AddRecentCancel(p.id, a.Created[i])
		}
	}
}

type (
	// An actQuery asks the node that owns some tasks to act on them.
	actQuery struct {
		wireAct
		Tasks      []actTask
		Conditions *wireConditions `json:"Terms,omitempty"`
	}
	// An actTask is an IDQuery without conditions.
	actTask struct {
		ID      string
		ShardID recovery.ShardID `json:"Home,omitempty"`
	}
	// An actReply has an answer for each task; nil: it is done. After a cancel it has when each
	// task was created, in Unix ns; 0: it was not cancelled.
	actReply struct {
		Faults  []*WireError
		Created []int64 `json:",omitempty"`
	}
)

// handleAct acts on those of another node's tasks that belong here. It is owned for many of them.
func (s *Cluster) handleAct(ctx context.Context, _ string, asked actQuery) (actReply, error) {
	q := asked.decode()
	switch q.Action {
	case task.CancelAction, task.MoveAction, task.FireAction, task.HoldAction, task.ResumeAction:
	default:
		return actReply{}, ErrNotUnderstood
	}
	if len(asked.Tasks) > task.MaxActs {
		return actReply{}, ErrNotUnderstood
	}
	// The answer must arrive before the caller's time is over, also if it says that the outcome is
	// not known.
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)*9/10)
		defer cancel()
	}
	ctx, cancel := s.engine.Within(asked.Conditions.in(ctx))
	defer cancel()
	all := make([]acting, len(asked.Tasks))
	var mine []*acting
	for i, t := range asked.Tasks {
		all[i] = acting{id: t.ID, at: Location{shardID: t.ShardID}, err: errNotMine}
		if s.owns(t.ID, t.ShardID) {
			mine = append(mine, &all[i])
		}
	}
	s.actOwned(ctx, q, mine)
	a := actReply{Faults: make([]*WireError, len(all))}
	for i := range all {
		switch err := all[i].err; {
		case err == nil:
		case all[i].at.shardID == 0 && errors.Is(err, task.ErrNotFound), errors.Is(err, task.ErrClosed):
			a.Faults[i] = WireErrorOf(errNotMine)
		default:
			a.Faults[i] = WireErrorOf(err)
		}
	}
	if q.Action == task.CancelAction && !q.Dry {
		a.Created = make([]int64, len(all))
		for i := range all {
			if all[i].err == nil {
				a.Created[i] = s.createdOfCancelled(all[i].id)
			}
		}
	}
	return a, nil
}
