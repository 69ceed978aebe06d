package httpapi

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// History reports what has happened in the last hour, by the minute.
type History struct {
	Reach
	Since  string         `json:"since" format:"date-time" doc:"From when on all nodes in covers have counted: the start of the process that began last."`
	Step   duration       `json:"step" doc:"Length of a point: 1m."`
	Points []HistoryPoint `json:"points" nullable:"false" doc:"The oldest first. The last one is under way. There are none before the first node began to count."`
}

// HistoryPoint is what has happened within a minute, in all topics together.
type HistoryPoint struct {
	At        string        `json:"at" format:"date-time" doc:"When it began, by the clocks of the nodes."`
	Scheduled int64         `json:"scheduled"`
	Delivered int64         `json:"delivered" doc:"Acknowledged."`
	Failed    int64         `json:"failed" doc:"Attempts, of any cause."`
	Dead      int64         `json:"dead" doc:"Tasks that died."`
	Cancelled int64         `json:"cancelled"`
	Lateness  PointLateness `json:"lateness" doc:"Of the first attempts that began."`
}

// PointLateness sums up how late first attempts began within a minute.
type PointLateness struct {
	Count int64    `json:"count"`
	P50   duration `json:"p50" doc:"Half of them were at most this late: the upper bound of a bucket, or max if that is less."`
	P99   duration `json:"p99"`
	Max   duration `json:"max"`
}

type historyInput struct {
	ScopeInput
	Minutes int `query:"minutes" minimum:"1" maximum:"60" default:"60" doc:"How many minutes to show before the one under way."`
}

// history answers GET /v1/history.
func (s *Server) history(ctx context.Context, in *historyInput) (*reply[History], error) {
	if in.ofNode() {
		h := s.scheduler.History()
		return &reply[History]{wireHistory(&h, s.ownReach(), in.Minutes)}, nil
	}
	h, reach, err := s.scheduler.FleetHistory(ctx)
	if err != nil {
		return nil, err
	}
	return &reply[History]{wireHistory(&h, wireReach(&reach), in.Minutes)}, nil
}

func wireHistory(h *tasks.History, reach Reach, minutes int) History {
	shown := h.Minutes[max(0, len(h.Minutes)-minutes-1):]
	wire := History{Reach: reach, Since: formatInstant(h.Since), Step: duration(time.Minute), Points: make([]HistoryPoint, len(shown))}
	for i := range shown {
		m := &shown[i]
		late := wireRecent(&m.Lateness)
		wire.Points[i] = HistoryPoint{formatInstant(m.At), m.Scheduled, m.Delivered, m.Failed, m.Died, m.Cancelled, PointLateness(late)}
	}
	return wire
}
