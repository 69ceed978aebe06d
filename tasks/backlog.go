package tasks

// A backlog is more ready tasks, of the topics that this process delivers by itself,
// than Config.SweepBacklog. It is counted with every task that becomes ready; the
// first one too many asks for a sweep at once, which begins an episode: topics
// without a concurrency of their own are raised. Only a sweep ends it, when half as
// many are left: so there is at most one episode in a period, and a backlog that
// hovers around its bound does not begin one after the other.
//
// Paused topics do not count, nor those that are pulled: what they wait for is not
// concurrency, and one that no receiver pulls must not raise all others for ever.

// queuedLocked counts a task that has joined a topic's queue.
func (s *engine) queuedLocked(t *topic) {
	if !t.pushed {
		return
	}
	s.backlog++
	s.sweepNowLocked()
}

// unqueuedLocked tells a topic's queue, and the backlog, that one of its live tasks
// has been taken or has become stale.
func (s *engine) unqueuedLocked(t *topic) {
	t.queue.gone()
	if t.pushed {
		s.backlog--
	}
}

// countBacklogLocked is called when a topic may have begun or ceased to count.
func (s *engine) countBacklogLocked(t *topic) {
	pushed := t.deliverer != nil && !t.settings.Paused
	if pushed == t.pushed {
		return
	}
	t.pushed = pushed
	if !pushed {
		s.backlog -= t.queue.live
		return
	}
	s.backlog += t.queue.live
	s.sweepNowLocked()
}

// sweepNowLocked asks for a sweep at once if a backlog has begun.
func (s *engine) sweepNowLocked() {
	if s.sweep.raised || s.backlog <= s.cfg.SweepBacklog {
		return
	}
	select {
	case s.sweepNow <- struct{}{}:
	default: // it has been asked for
	}
}

// judgeBacklog begins or ends an episode.
func (s *engine) judgeBacklog() {
	s.mu.Lock()
	was, waiting := s.sweep.raised, s.backlog
	switch {
	case !was && waiting > s.cfg.SweepBacklog:
		s.sweep.raised = true
		s.sweep.backlogs++
	case was && waiting <= s.cfg.SweepBacklog/2:
		s.sweep.raised = false
	}
	is := s.sweep.raised
	s.mu.Unlock()
	switch {
	case is && !was:
		s.cfg.Log.Warn("a backlog: topics without a concurrency of their own are raised",
			"node", s.cfg.Node, "ready", waiting, "concurrency", s.cfg.SweepMaxConcurrency)
	case was && !is:
		s.cfg.Log.Info("the backlog is gone", "node", s.cfg.Node, "ready", waiting)
	}
}

// raisedLocked is what a backlog raises a topic's concurrency to, be it one that this node
// offloads from another one; 0 if there is none or if the topic has one of its own.
func (s *engine) raisedLocked(t *topic) int {
	if !s.sweep.raised && t.offloads == 0 || t.own || t.deliverer == nil {
		return 0
	}
	return s.cfg.SweepMaxConcurrency
}
