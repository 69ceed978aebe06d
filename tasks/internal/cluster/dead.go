package cluster

import (
	"context"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/task"
)

// RedriveMethod redrives dead tasks at all nodes.
var RedriveMethod = redrives("exhume")

// MendMethod is RedriveMethod of a query with Mend, which an older version would leave out.
var MendMethod = redrives("exhume_mended")

func redrives(name string) Method[query.Redrive, redriveReply] {
	return Method[query.Redrive, redriveReply]{
		Name: name, writes: true, here: (*Cluster).redriveLocal,
		deadAlone: func(*query.Redrive) bool { return true }, next: func(q query.Redrive, a *redriveReply) query.Redrive { return q.Next(&a.RedrivePart) },
	}
}

type redriveReply struct {
	Coverage
	query.RedrivePart
}

// Redrive redrives at all nodes: all that are dead by now (for later ones there is another
// call), or those with the ids. What it returns is right also beside an error, as far as it goes.
func (s *Cluster) Redrive(ctx context.Context, q query.Redrive) (r query.Redriven, err error) {
	q.IDs, q.Died = query.Once(q.IDs), s.engine.Now()
	if s.NoPeers() {
		x := s.engine.NewRedrive(&q)
		if _, _, err = x.Run(ctx, &q, 0); q.All {
			return query.Redriven{Done: x.Done}, err
		}
		return query.Redriven{Done: x.Done, Unknown: x.Passed, Acted: x.Acted}, err
	}
	found, acted := make(map[string]bool), make(map[string]bool)
	m := RedriveMethod
	if q.Mend != nil {
		m = MendMethod
	}
	err = everywhere(ctx, s, m, q, func(a *redriveReply, _ func(recovery.ShardID) bool) {
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

// redriveLocal redrives dead tasks of this node, for a while.
func (s *Cluster) redriveLocal(ctx context.Context, q query.Redrive) (a redriveReply, err error) {
	if act := q.Act; act != nil {
		if q.All || act.Select == nil {
			return a, ErrNotUnderstood
		}
	} else if !task.ValidName(q.Topic) {
		return a, task.Invalid("topic", task.NameProblem)
	}
	_, err = s.Covers(ctx, &a.Coverage, func(ctx context.Context) (err error) {
		a.RedrivePart, a.More, err = s.engine.NewRedrive(&q).Run(ctx, &q, s.pieceTime())
		return err
	})
	a.More = a.More && err == nil
	return a, err
}
