package cluster

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/task"
)

// DeadReasonsMethod asks a node why its dead tasks are dead. The state of the query is Dead, and
// the node looks at as many tasks as for a page of a list.
var DeadReasonsMethod = Method[query.List, task.DeadReasons]{Name: "dead_reasons"}

// reasonsOfNode bounds how many reasons a node tells another one. They are more than a caller gets,
// so that those of most tasks in all are among them.
const reasonsOfNode = 4 * task.MaxDeadReasons

func (s *Cluster) handleDeadReasons(ctx context.Context, _ string, q query.List) (task.DeadReasons, error) {
	if q.State != task.Dead {
		return task.DeadReasons{}, ErrNotUnderstood
	}
	return s.engine.DeadReasons(ctx, &q, reasonsOfNode)
}

// ownReasons is what this node has found, and why it has found no more.
type ownReasons struct {
	task.DeadReasons
	err error
}

// NodeDeadReasons is tasks.Scheduler.DeadReasons. However many callers ask the same, the dead tasks
// are read about once a second.
func (s *Cluster) NodeDeadReasons(ctx context.Context, q *query.List) (task.DeadReasons, error) {
	key, err := json.Marshal(q)
	if err != nil {
		return task.DeadReasons{}, err
	}
	query := *q
	found, err := s.Figures.gathered.do(ctx, "own "+DeadReasonsMethod.Name+string(key), func() any {
		r, err := s.engine.DeadReasons(s.engine.Life.Context, &query, reasonsOfNode)
		return ownReasons{r, err}
	})
	if err != nil {
		return task.DeadReasons{}, err
	}
	own := found.(ownReasons)
	return own.DeadReasons, own.err
}

// FleetDeadReasons is tasks.Scheduler.FleetDeadReasons.
func (s *Cluster) FleetDeadReasons(ctx context.Context, q *query.List) (r task.DeadReasons, reach task.Reach, err error) {
	here := make(chan ownReasons, 1)
	go func() {
		own, err := s.NodeDeadReasons(ctx, q)
		here <- ownReasons{own, err}
	}()
	g, failed := gather(ctx, s, DeadReasonsMethod, *q)
	own := <-here
	if err = errors.Join(failed, own.err); err != nil {
		return r, reach, err
	}
	var tally task.DeadTally
	tally.Complete = true
	tally.Add(&own.DeadReasons)
	for i := range g.answers {
		tally.Add(&g.answers[i].reply)
	}
	tally.Complete = tally.Complete && len(g.reach.Missing) == 0
	return tally.Most(task.MaxDeadReasons), g.reach, nil
}
