package cluster

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// HistoryMethod asks a node for its history.
var HistoryMethod = Method[historyQuery, historyReply]{Name: "history"}

type (
	historyQuery struct{}
	historyReply struct {
		Since   time.Time
		Minutes []wireMinute `json:",omitempty"`
	}
	// A wireMinute is a task.PastMinute.
	wireMinute struct {
		At        time.Time     `json:"at"`
		Scheduled int64         `json:"scheduled,omitempty"`
		Delivered int64         `json:"delivered,omitempty"`
		Failed    int64         `json:"failed,omitempty"`
		Died      int64         `json:"died,omitempty"`
		Cancelled int64         `json:"cancelled,omitempty"`
		Lateness  []wireBucket  `json:"lateness,omitempty"`
		Latest    time.Duration `json:"latest,omitempty"`
	}
)

func encodeMinute(m *task.PastMinute) wireMinute {
	return wireMinute{m.At, m.Scheduled, m.Delivered, m.Failed, m.Died, m.Cancelled, encodeBuckets(&m.Lateness.Counts), m.Lateness.Max}
}

func (w *wireMinute) decode() task.PastMinute {
	return task.PastMinute{
		At: w.At, Scheduled: w.Scheduled, Delivered: w.Delivered, Failed: w.Failed, Died: w.Died, Cancelled: w.Cancelled,
		Lateness: task.RecentLateness{Counts: decodeBuckets(w.Lateness), Max: w.Latest},
	}
}

func (s *Cluster) handleHistory(context.Context, string, historyQuery) (a historyReply, err error) {
	h := s.engine.History()
	a.Since = h.Since
	for i := range h.Minutes {
		a.Minutes = append(a.Minutes, encodeMinute(&h.Minutes[i]))
	}
	return a, nil
}

// FleetHistory is tasks.Scheduler.FleetHistory. Minutes of nodes with clocks that are far from that
// of this node are left out: they would take the places of the last hour.
func (s *Cluster) FleetHistory(ctx context.Context) (task.History, task.Reach, error) {
	g, err := gather(ctx, s, HistoryMethod, historyQuery{}, func(*historyQuery, int) {})
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
				other.Minutes = append(other.Minutes, a.Minutes[k].decode())
			}
		}
		h.Add(&other)
	}
	return h, g.reach, nil
}
