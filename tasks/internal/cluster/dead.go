package cluster

import (
	"context"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// RedriveMethod redrives dead tasks at all nodes.
var RedriveMethod = Method[engine.RedriveQuery, redriveReply]{
	Name: "exhume", writes: true, here: (*Cluster).redriveLocal,
	deadAlone: func(*engine.RedriveQuery) bool { return true }, next: nextRedrive,
}

type redriveReply struct {
	Coverage
	Done  int
	IDs   []string `json:",omitempty"` // which of the given ones
	Left  int      `json:",omitempty"`
	After recovery.Ref
	Acted []string `json:",omitempty"` // of the ids; see engine.Redrive
}

// Redrive redrives at all nodes: all that are dead by now (for later ones there is another
// call), or those with the ids. What it returns is right also beside an error, as far as it goes.
func (s *Cluster) Redrive(ctx context.Context, q engine.RedriveQuery) (r Redriven, err error) {
	q.IDs, q.Died = engine.Once(q.IDs), s.engine.Now()
	if s.NoPeers() {
		x := s.engine.NewRedrive(&q)
		if q.All {
			_, _, _, err = x.RedriveTopic(ctx, recovery.Ref{}, q.Died, s.engine.DeadCount(q.Topic))
			return Redriven{Done: x.Done}, err
		}
		_, err = x.RedriveIDs(ctx, q.IDs)
		return Redriven{x.Done, x.Passed, x.Acted}, err
	}
	found, acted := make(map[string]bool), make(map[string]bool)
	err = everywhere(ctx, s, RedriveMethod, q, func(a *redriveReply, _ func(recovery.ShardID) bool) {
		r.Done += a.Done
		for _, id := range a.IDs {
			found[id] = true
		}
		for _, id := range a.Acted {
			acted[id] = true
		}
	})
	for _, id := range q.IDs {
		switch {
		case found[id]:
		case acted[id]:
			r.Acted = append(r.Acted, id)
		default:
			r.Unknown = append(r.Unknown, id)
		}
	}
	return r, err
}

// nextRedrive is the query that follows a reply with More.
func nextRedrive(asked engine.RedriveQuery, a *redriveReply) engine.RedriveQuery {
	if asked.Left, asked.After = a.Left, a.After; !asked.All {
		asked.IDs = asked.IDs[len(asked.IDs)-a.Left:]
	}
	return asked
}

// Redriven is what a Redrive has done.
type Redriven struct {
	Done    int
	Unknown []string // ids that were not redriven: without an error they are not among the dead
	Acted   []string // ids that another act has changed since the one that redrives began
}

// redriveLocal redrives dead tasks of this node, for a while.
func (s *Cluster) redriveLocal(ctx context.Context, q engine.RedriveQuery) (a redriveReply, err error) {
	if act := q.Act; act != nil {
		if q.All || act.Select == nil {
			return a, ErrNotUnderstood
		}
	} else if !task.ValidName(q.Topic) {
		return a, task.Invalid("topic", task.NameProblem)
	}
	x := s.engine.NewRedrive(&q)
	_, err = s.Covers(ctx, &a.Coverage, func(ctx context.Context) (err error) {
		x.Enough = s.engine.Elapsed() + s.pieceTime()
		if q.All {
			if a.Left = q.Left; q.After == (recovery.Ref{}) {
				a.Left = s.engine.DeadCount(q.Topic)
			}
			var end bool
			a.After, a.Left, end, err = x.RedriveTopic(ctx, q.After, q.Died, a.Left)
			a.More = !end
		} else {
			a.Left, err = x.RedriveIDs(ctx, q.IDs)
			a.More = a.Left > 0
		}
		return err
	})
	a.More = a.More && err == nil
	a.Done, a.IDs, a.Acted = x.Done, x.Found, x.Acted
	return a, err
}
