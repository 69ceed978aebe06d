package cluster

import (
	"context"

	"github.com/lapsehq/lapse/recovery"
)

// UsedAnywhere tells that a topic has tasks at some node, be it that others do not answer.
func (s *Cluster) UsedAnywhere(ctx context.Context, name string) (used bool, err error) {
	c := fanOut[usedQuery, usedReply, *usedReply]{
		Cluster: s, method: UsedMethod, query: usedQuery{name}, here: (*Cluster).usedHere,
		take: func(a *usedReply, _ func(recovery.ShardID) bool) { used = used || a.Used },
	}
	if err = c.run(ctx); used {
		return true, nil
	}
	return false, err
}

func (s *Cluster) usedHere(ctx context.Context, q usedQuery) (a usedReply, err error) {
	_, err = s.Covers(ctx, &a.Coverage, func(context.Context) error {
		s.engine.Mu.Lock()
		defer s.engine.Mu.Unlock()
		a.Used = s.engine.UsedLocked(q.Topic)
		return nil
	})
	return a, err
}
