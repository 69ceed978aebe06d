package tasks

import (
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// Stats returns the figures of this node. With more than MaxStatsTopics topics, what it says of
// topics may be a second old. FleetStats returns those of all nodes.
func (s *Scheduler) Stats() Stats {
	ready := s.Readiness()
	st := s.cluster.Stats()
	st.Readiness = ready
	return st
}

// Readiness tells how far the scheduler is.
func (s *Scheduler) Readiness() Readiness {
	r := Readiness{LedgerOK: true, Unsure: s.engine.Unsure()}
	r.Stalled = s.engine.Committer.Stats().Stall
	if r.Stalled > s.engine.Config.AnswerWithin {
		r.LedgerOK = false
	} else {
		r.Stalled = 0
	}
	if err := s.engine.Condition(); err != nil {
		r.LedgerOK, r.Condition = false, err.Error()
	}
	if reporter, ok := s.engine.Ledger.(recovery.Reporter); ok {
		r.Storage = reporter.Health()
		r.LedgerOK = r.LedgerOK && r.Storage.Err == nil
	}
	r.Storage.Warnings = append(r.Storage.Warnings, s.cluster.ClockWarnings()...)
	r.Waiting = append(s.engine.Waits.List(), r.Storage.Waiting...)
	slices.SortStableFunc(r.Waiting, func(a, b Waiting) int { return a.Since.Compare(b.Since) })
	r.Ready, r.Away = s.cluster.Settled()
	s.engine.Mu.Lock()
	defer s.engine.Mu.Unlock()
	r.Draining = s.engine.Draining
	r.Replayed, r.Elapsed = s.engine.Reading.Progress.Read, s.engine.Reading.Progress.Elapsed
	if p := &s.engine.Reading.Progress; !p.Done && !p.Began.IsZero() {
		r.Elapsed = time.Since(p.Began) // the last report may be old, or there was none
	}
	if s.engine.Fault != nil {
		r.LedgerOK, r.Condition = false, s.engine.Fault.Error()
	}
	return r
}
