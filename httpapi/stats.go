package httpapi

import (
	"context"
	"sync"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// Stats is the answer of /v1/stats. Counters begin at the start of each process. Those of several
// nodes are added up.
type Stats struct {
	Node    string    `json:"node" doc:"The node that was asked. Version, uptime and state are its own, whatever the scope."`
	Version string    `json:"version"`
	Uptime  duration  `json:"uptime"`
	State   Readiness `json:"state"`
	Reach
	Total  Counts      `json:"total"`
	Topics []Topic     `json:"topics" nullable:"false" doc:"By name. Empty if there are more than 1,000, or many at many nodes: GET /v1/topics lists them."`
	Sweep  SweepStats  `json:"sweep"`
	Ledger LedgerStats `json:"ledger"`
	Spool  SpoolStats  `json:"spool"`
	Memory MemoryStats `json:"memory"`
	Events EventStats  `json:"events"`
	Nodes  NodesStats  `json:"nodes"`

	TopicsLeftOut int `json:"topics_left_out,omitempty" doc:"How many topics there are, at least, if topics leaves them out."`

	Coalesce CoalesceStats `json:"coalesce"`

	ClockSteps int64 `json:"clock_steps" doc:"Jumps of the wall clock that were noticed."`
}

// RecentLateness sums up how late tasks are now.
type RecentLateness struct {
	Count int64    `json:"count"`
	P50   duration `json:"p50" doc:"Half of them are at most this late: the upper bound of a bucket, or max if that is less."`
	P99   duration `json:"p99"`
	Max   duration `json:"max" doc:"The greatest, no bound of a bucket."`
}

// Lateness sums up how late first attempts began.
type Lateness struct {
	Count int64    `json:"count"`
	Mean  duration `json:"mean"`
	P50   duration `json:"p50" doc:"Half of them were at most this late: the upper bound of a bucket. A value above the last bound, 1h, is shown as 1h."`
	P99   duration `json:"p99"`
}

func wireRecent(r *tasks.RecentLateness) RecentLateness {
	return RecentLateness{r.Counts.Total(), rounded(r.Quantile(0.5)), rounded(r.Quantile(0.99)), rounded(r.Max)}
}

// rounded leaves out what no reader wants to see of a lateness.
func rounded(d time.Duration) duration { return duration(d.Round(10 * time.Microsecond)) }

func wireLateness(h *tasks.Histogram) Lateness {
	l := Lateness{Count: h.Counts.Total()}
	if l.Count > 0 {
		mean := h.Sum / time.Duration(l.Count)
		l.Mean = rounded(mean)
		l.P50, l.P99 = within(h.Quantile(0.5)), within(h.Quantile(0.99))
	}
	return l
}

// statsPause is the pause between two rounds of answers about many topics.
const statsPause = 50 * time.Millisecond

type statsInput struct {
	ScopeInput
	Topics bool `query:"topics" default:"true" doc:"false: leave topics out. topics_left_out is their number."`
}

// stats answers GET /v1/stats. When there are so many topics that their counts are cached for a
// while, repeated calls would return the same, so callers wait for the next round.
func (s *Server) stats(ctx context.Context, in *statsInput) (*reply[Stats], error) {
	if s.manyTopics.Load() {
		if err := s.statsRounds.await(ctx); err != nil {
			return nil, err
		}
	}
	if in.ofNode() {
		t := s.scheduler.Stats()
		return &reply[Stats]{s.wireStats(&t, s.ownReach(), in.Topics)}, nil
	}
	figures := s.scheduler.FleetStats
	if !in.Topics {
		figures = s.scheduler.FleetTotals
	}
	t, reach, err := figures(ctx)
	if err != nil {
		return nil, err
	}
	return &reply[Stats]{s.wireStats(&t, wireReach(&reach), in.Topics)}, nil
}

func (s *Server) wireStats(t *tasks.Stats, reach Reach, withTopics bool) Stats {
	topics, leftOut := t.Topics, 0
	s.manyTopics.Store(len(t.Topics)+t.Beyond > tasks.MaxStatsTopics)
	if t.Beyond > 0 || !withTopics { // listing many would cost more than all the rest
		topics, leftOut = nil, len(t.Topics)+t.Beyond
	}
	wire := Stats{
		Node: t.Node, Version: s.version, Uptime: duration(time.Since(s.started).Round(time.Second)),
		State: s.wireReadiness(t.Readiness), Reach: reach, Total: wireCounts(&t.Total), Topics: wireTopics(topics),
		ClockSteps: t.ClockSteps, TopicsLeftOut: leftOut,
	}
	wireFigures(&wire, &t.Figures)
	return wire
}

// rounds release waiting requests together, at most once every pause. Callers that repeat a request
// without a pause of their own get a bounded part of the processors.
type rounds struct {
	pause time.Duration

	mu   sync.Mutex
	next time.Time // when the next round begins
}

// await returns nil when a round begins, or the error of ctx when that ends first.
func (r *rounds) await(ctx context.Context) error {
	r.mu.Lock()
	now := time.Now()
	wait := r.next.Sub(now)
	if wait <= 0 {
		r.next = now.Add(r.pause)
	}
	r.mu.Unlock()
	if wait <= 0 {
		return nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
