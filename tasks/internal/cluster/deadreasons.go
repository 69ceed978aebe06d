package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// DeadReasonsMethod asks a node why its dead tasks are dead. The state of the query is Dead, and
// the node looks at as many tasks as for a page of a list.
var DeadReasonsMethod = Method[wireListQuery, deadReasonsReply]{Name: "dead_reasons"}

// reasonsOfNode bounds how many reasons a node tells another one. They are more than a caller gets,
// so that those of most tasks in all are among them.
const reasonsOfNode = 4 * task.MaxDeadReasons

type (
	deadReasonsReply struct {
		Reasons  []wireDeadReason `json:",omitempty"`
		LeftOut  int              `json:",omitempty"`
		LookedAt int
		Dead     int
		Complete bool
	}
	// A wireDeadReason is a task.DeadReason.
	wireDeadReason struct {
		Topic     string      `json:"topic"`
		Reason    task.Reason `json:"reason"`
		Error     string      `json:"error"`
		Example   string      `json:"example"`
		Count     int         `json:"count"`
		FirstDied time.Time   `json:"first"`
		LastDied  time.Time   `json:"last"`
	}
)

func (s *Cluster) handleDeadReasons(ctx context.Context, _ string, asked wireListQuery) (a deadReasonsReply, err error) {
	q := asked.decode()
	if q.State != task.Dead {
		return a, ErrNotUnderstood
	}
	r, err := s.engine.DeadReasons(ctx, &q, reasonsOfNode)
	for _, one := range r.Reasons {
		a.Reasons = append(a.Reasons, wireDeadReason(one))
	}
	a.LeftOut, a.LookedAt, a.Dead, a.Complete = r.LeftOut, r.LookedAt, r.Dead, r.Complete
	return a, err
}

func (a *deadReasonsReply) decode() *task.DeadReasons {
	r := &task.DeadReasons{LeftOut: a.LeftOut, LookedAt: a.LookedAt, Dead: a.Dead, Complete: a.Complete}
	for _, one := range a.Reasons {
		r.Reasons = append(r.Reasons, task.DeadReason(one))
	}
	return r
}

// ownReasons is what this node has found, and why it has found no more.
type ownReasons struct {
	task.DeadReasons
	err error
}

// NodeDeadReasons is tasks.Scheduler.DeadReasons. However many callers ask the same, the dead tasks
// are read about once a second.
func (s *Cluster) NodeDeadReasons(ctx context.Context, q *engine.ListQuery) (task.DeadReasons, error) {
	key, err := json.Marshal(encodeListQuery(q))
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
func (s *Cluster) FleetDeadReasons(ctx context.Context, q *engine.ListQuery) (r task.DeadReasons, reach task.Reach, err error) {
	type answer struct {
		own task.DeadReasons
		err error
	}
	here := make(chan answer, 1)
	go func() {
		own, err := s.NodeDeadReasons(ctx, q)
		here <- answer{own, err}
	}()
	g, failed := gather(ctx, s, DeadReasonsMethod, encodeListQuery(q), func(*wireListQuery, int) {})
	own := <-here
	if err = errors.Join(failed, own.err); err != nil {
		return r, reach, err
	}
	var tally task.DeadTally
	tally.Complete = true
	tally.Add(&own.own)
	for i := range g.answers {
		tally.Add(g.answers[i].reply.decode())
	}
	tally.Complete = tally.Complete && len(g.reach.Missing) == 0
	return tally.Most(task.MaxDeadReasons), g.reach, nil
}
