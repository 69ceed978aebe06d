package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// Alive is the answer of /healthz.
type Alive struct {
	Status string `json:"status" enum:"alive,ended"`
}

// Readiness is the answer of /readyz.
type Readiness struct {
	Ready        bool       `json:"ready"`
	ShuttingDown bool       `json:"shutting_down" doc:"Requests are still answered, but should go elsewhere."`
	Replay       Replay     `json:"replay"`
	Ledger       LedgerView `json:"ledger"`
}

// Replay tells how far the reading back of tasks has come.
type Replay struct {
	Over    bool     `json:"over"`
	Records int64    `json:"records" doc:"Read so far."`
	Elapsed duration `json:"elapsed"`
}

// LedgerView tells how the ledger does.
type LedgerView struct {
	OK        bool     `json:"ok"`
	Stalled   duration `json:"stalled" doc:"How long it has not answered a write."`
	Condition string   `json:"condition,omitempty" doc:"Why it takes no new records."`
}

type statusReply[B any] struct {
	Status     int
	RetryAfter string `header:"Retry-After" doc:"Seconds to wait, with 503."`
	Body       B
}

// statusOf is 200, or 503 when waiting may help.
func statusOf[B any](ok bool, body B) *statusReply[B] {
	if ok {
		return &statusReply[B]{http.StatusOK, "", body}
	}
	return &statusReply[B]{http.StatusServiceUnavailable, "1", body}
}

// alive answers GET /healthz.
func (s *Server) alive(context.Context, *struct{}) (*statusReply[Alive], error) {
	select {
	case <-s.scheduler.Done():
		return statusOf(false, Alive{"ended"}), nil
	default:
		return statusOf(true, Alive{"alive"}), nil
	}
}

// ready answers GET /readyz.
func (s *Server) ready(context.Context, *struct{}) (*statusReply[Readiness], error) {
	r := s.wireReadiness(s.scheduler.Readiness())
	return statusOf(r.Ready, r), nil
}

func (s *Server) wireReadiness(r tasks.Readiness) Readiness {
	ending := s.ending.Err() != nil
	return Readiness{
		Ready:        r.Ready && !ending,
		ShuttingDown: ending,
		Replay:       Replay{r.Ready, r.Replayed, duration(r.Elapsed.Round(time.Millisecond))},
		Ledger:       LedgerView{r.LedgerOK, duration(r.Stalled.Round(time.Millisecond)), r.Condition},
	}
}
