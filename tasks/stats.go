package tasks

import "slices"

// Stats returns the figures of this node. With more than MaxStatsTopics topics, what it says of
// topics may be a second old. FleetStats returns those of all nodes.
func (s *Scheduler) Stats() Stats {
	ready := s.Readiness()
	st := s.cluster.Stats()
	st.Readiness = ready
	for _, p := range s.cluster.Ahead(s.engine.Config.Clock()) {
		st.ForecastWait = max(st.ForecastWait, p.Wait)
	}
	return st
}

// Readiness tells how far the scheduler is.
func (s *Scheduler) Readiness() Readiness {
	r := s.engine.Readiness()
	r.Storage.Warnings = append(r.Storage.Warnings, s.cluster.ClockWarnings()...)
	r.Waiting = append(s.engine.Waits.List(), r.Storage.Waiting...)
	slices.SortStableFunc(r.Waiting, func(a, b Waiting) int { return a.Since.Compare(b.Since) })
	r.Ready, r.Away = s.cluster.Settled()
	return r
}
