package cluster

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// HistoryMethod asks a node for its history.
var HistoryMethod = Method[historyQuery, task.History]{Name: "history"}

type historyQuery struct{}

func (s *Cluster) handleHistory(context.Context, string, historyQuery) (task.History, error) {
	return s.engine.History(), nil
}

// FleetHistory is tasks.Scheduler.FleetHistory. Minutes of nodes with clocks that are far from that
// of this node are left out: they would take the places of the last hour.
func (s *Cluster) FleetHistory(ctx context.Context) (task.History, task.Reach, error) {
	g, err := gather(ctx, s, HistoryMethod, historyQuery{})
	if err != nil {
		return task.History{}, task.Reach{}, err
	}
	h := s.engine.History()
	now := h.Minutes[len(h.Minutes)-1].At
	first, last := now.Add(-task.HistoryMinutes*time.Minute), now.Add(time.Minute)
	for i := range g.answers {
		a := &g.answers[i].reply
		other := task.History{Since: a.Since}
		for k := range a.Minutes {
			if at := a.Minutes[k].At; !at.Before(first) && !at.After(last) {
				other.Minutes = append(other.Minutes, a.Minutes[k])
			}
		}
		h.Add(&other)
	}
	return h, g.reach, nil
}
