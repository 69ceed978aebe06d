package tasks

import "time"

// standingEvery is how often a node that paused asks whether it may go on.
const standingEvery = 50 * time.Millisecond

// pausedLocked tells that nothing may be handed out, and remembers it, so that nobody is
// hired in vain until standingLoop says otherwise.
func (s *Scheduler) pausedLocked() bool {
	if s.fleet == nil || s.cfg.OnOutage != OutagePause {
		return false
	}
	if !s.halted && s.unsure() {
		s.halted = true
	}
	return s.halted
}

// standingLoop notices when this node begins to be unsure, and wakes all topics when
// it may deliver again.
func (s *Scheduler) standingLoop() {
	tick := time.NewTicker(standingEvery)
	defer tick.Stop()
	was := false
	for {
		select {
		case <-tick.C:
			was = s.noteStanding(was)
		case <-s.closing:
			return
		}
	}
}

func (s *Scheduler) noteStanding(was bool) (is bool) {
	is = s.unsure()
	s.mu.Lock()
	resumes := !is && s.halted
	if resumes {
		s.halted = false
	}
	s.mu.Unlock()
	switch {
	case is && !was:
		s.cfg.Log.Error("this node may have lost what it holds: it has been cut off from the ledger, or suspended, for too long", "node", s.cfg.Node, "deliveries", s.cfg.OnOutage)
	case was && !is:
		s.cfg.Log.Info("this node knows again what it holds", "node", s.cfg.Node)
	}
	if resumes {
		s.wakeAll()
	}
	return is
}
