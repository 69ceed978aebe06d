package tasks

import "time"

// An OnOutage says what becomes of deliveries while this node cannot tell whether
// another one has taken over what it holds: it has been cut off from the ledger, or was
// suspended, for so long that others may have found it dead. The ledger itself may be
// what is gone: from here that looks the same. It only matters where several nodes
// share a ledger; one that is alone never pauses.
//
// Either way nothing is answered about a task in the meantime (ErrUnavailable), and
// nothing of what this node says can change what another one holds.
type OnOutage string

// What a node may do in the meantime.
const (
	// OutageDeliver goes on delivering from memory: deadlines are met through an outage
	// of the ledger, and a task may be delivered twice if it was this node that was cut
	// off. It is the default. Such deliveries are counted in Stats.UnsureDeliveries.
	OutageDeliver OnOutage = "deliver"
	// OutagePause begins no delivery: no task is delivered by two nodes because one was
	// cut off, and all wait through an outage of the ledger.
	OutagePause OnOutage = "pause"
)

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
