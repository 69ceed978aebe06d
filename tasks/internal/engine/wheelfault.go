package engine

import (
	"fmt"
	"time"
)

// A wheelFault is what the sweep has found out about the wheel. While the wheel does not fire, the
// sweep delivers in its place, late by up to its own period: the node is slower, and loses nothing.
// So the fault does not make the node unready. It shows in Readiness, in the log and in
// SweepStats.Rescued. Only the sweep uses it.
type wheelFault struct {
	shown   bool          // in Readiness
	rescued int           // tasks since it was shown first
	at      time.Duration // when the sweep has rescued something last
}

const (
	// wheelWait names a faulty wheel in Readiness.
	wheelWait = "timing wheel"
	// wheelCalm is for how long the sweep must find nothing before the fault counts as over.
	wheelCalm = time.Minute
)

// judgeWheel shows that the wheel does not fire, by what the last sweep has rescued: late of what
// was still in the wheel, lost of what was not.
func (s *Engine) judgeWheel(late, lost int) {
	f := &s.Sweep.wheel
	switch {
	case late+lost > 0:
		f.rescued += late + lost
		f.at = s.Elapsed()
		s.Waits.Set(wheelWait, fmt.Sprintf("it does not fire: the sweep has delivered %d overdue tasks in its place, about %v late at most",
			f.rescued, s.Config.SweepEvery))
		if !f.shown {
			f.shown = true
			s.Config.Log.Error("the timing wheel does not fire: the sweep delivers overdue tasks in its place", "node", s.Config.Node,
				"rescued", late+lost, "lost_by_wheel", lost, "every", s.Config.SweepEvery)
		}
	case f.shown && s.Elapsed()-f.at >= wheelCalm && !s.Runner.Stalled():
		s.Waits.Clear(wheelWait)
		s.Config.Log.Info("the timing wheel fires again", "node", s.Config.Node, "rescued", f.rescued)
		*f = wheelFault{}
	}
}
