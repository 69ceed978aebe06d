package tasks

import "time"

// certaintyEvery is how often a node that paused asks whether it may go on.
const certaintyEvery = 50 * time.Millisecond

// pausedLocked reports whether nothing may be handed out, and remembers it, so that no worker is
// started in vain until certaintyLoop says otherwise.
func (s *engine) pausedLocked() bool {
	if s.fleet == nil || s.cfg.OnOutage != OutagePause {
		return false
	}
	if !s.paused && s.unsure() {
		s.paused = true
	}
	return s.paused
}

// certaintyLoop notices when this node begins to be unsure, and wakes all topics when
// it may deliver again.
func (s *engine) certaintyLoop() {
	tick := time.NewTicker(certaintyEvery)
	defer tick.Stop()
	was := false
	for {
		select {
		case <-tick.C:
			was = s.noteCertainty(was)
		case <-s.closing:
			return
		}
	}
}

func (s *engine) noteCertainty(was bool) (is bool) {
	is = s.unsure()
	s.mu.Lock()
	resumes := !is && s.paused
	if resumes {
		s.paused = false
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
