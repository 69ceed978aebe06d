package tasks

import (
	"context"

	"github.com/lapsehq/lapse/recovery"
)

// usedAnywhere tells that a topic has tasks at some node, be it that others do not answer.
func (s *cluster) usedAnywhere(ctx context.Context, name string) (used bool, err error) {
	c := fanOut[usedQuery, usedReply, *usedReply]{
		cluster: s, method: usedMethod, query: usedQuery{name}, here: (*cluster).usedHere,
		take: func(a *usedReply, _ func(recovery.Home) bool) { used = used || a.Used },
	}
	if err = c.run(ctx); used {
		return true, nil
	}
	return false, err
}

func (s *cluster) usedHere(ctx context.Context, q usedQuery) (a usedReply, err error) {
	_, err = s.covers(ctx, &a.coverage, func(context.Context) error {
		s.engine.Mu.Lock()
		defer s.engine.Mu.Unlock()
		a.Used = s.engine.UsedLocked(q.Topic)
		return nil
	})
	return a, err
}
