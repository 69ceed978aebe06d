package tasks

import (
	"context"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/task"
)

// List returns one page of the tasks that a query selects, at all nodes, soonest first. A page has
// at most Query.Limit tasks and ends early at MaxPageBytes; its cursor leads on. Each node visits
// every task in its memory once, or every task of the group that is asked for, a few thousand under
// one lock, so its cost grows with the number of tasks and does not hold others up. With IDPrefix,
// Error, ErrorLike or Reason, and with the Group of dead or finished tasks, a call looks at some
// 20,000 of the tasks that the rest of the query selects, at each node: its page may be short, or
// empty, although its cursor says that there is more. It waits for the end of replay.
//
// Errors: ErrInvalid, ErrNotGranted, ErrNoNode, ErrUnavailable, ErrClosed; ErrReplaying while a
// node still reads its tasks; with several nodes also ErrNodeAway, while one that holds tasks does
// not answer or was not replaced yet, and ErrOverloaded. On a node that is alone only a list of
// dead tasks is ErrUnavailable.
func (s *Scheduler) List(ctx context.Context, q Query) (Page, error) {
	node := q.Node
	q.Node = ""
	ask, err := checkQuery(ctx, &q)
	if err != nil {
		return Page{}, err
	}
	if ask.Node = node; node != "" {
		if _, err := s.cluster.FindNode(ctx, node); err != nil {
			return Page{}, err
		}
	}
	return s.cluster.ListAll(ctx, ask)
}

// checkQuery returns what a query asks for. Errors: ErrInvalid, ErrNotGranted.
func checkQuery(ctx context.Context, q *Query) (ask query.List, err error) {
	if ask, err = checkSelection(ctx, q); err != nil {
		return ask, err
	}
	if query.IsBuried(q.State) && q.Topic == "" { // the ledger orders them by topic only
		return ask, task.Invalid("topic", "must be given with the state "+q.State.String())
	}
	limit, after, err := query.PageBounds(q.Limit, q.Cursor)
	if err != nil {
		return ask, err
	}
	ask.Limit, ask.After = limit, ask.Filter.Start(after)
	return ask, nil
}

// checkSelection returns what a query selects, whatever its page. Errors: as of checkQuery.
func checkSelection(ctx context.Context, q *Query) (ask query.List, err error) {
	var f task.Faults
	if q.State > Finished {
		f.Add("state", "must be pending, retrying, held, ready, delivering, dead or finished")
	}
	if q.Topic != "" && !task.ValidName(q.Topic) {
		f.Add("topic", task.NameProblem)
	}
	if q.Group != "" && !task.ValidName(q.Group) {
		f.Add("group", task.NameProblem)
	}
	if q.Node != "" {
		f.Add("node", "must not be given: only lists select by it")
	}
	filter := query.NewFilter(q, &f)
	if err := f.Err(); err != nil {
		return ask, err
	}
	if q.Topic != "" {
		if err := engine.Granted(ctx, q.Topic); err != nil {
			return ask, err
		}
	}
	ask = query.List{
		Topic: q.Topic, Group: q.Group, State: q.State, Patterns: task.PatternsOf(ctx), Filter: filter, Brief: q.Brief,
	}
	if q.State == Retrying {
		ask.State, ask.Retrying = Pending, true
	}
	return ask, nil
}
