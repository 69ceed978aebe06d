package cluster

import (
	"slices"

	"github.com/lapsehq/lapse/tasks/task"
)

// Stats is tasks.Scheduler.Stats, without Readiness.
func (s *Cluster) Stats() task.Stats { return s.figuresOf(false) }

// figuresOf is Stats. In total it has no topics, and Beyond is their number.
func (s *Cluster) figuresOf(total bool) task.Stats {
	var sums *Sums
	if total {
		sums = s.Figures.totals.do(func() (*Sums, bool) { return s.sumTopics(0) })
	} else {
		sums = s.TopicSums()
	}
	missing, _ := s.missingSpools() // what a closed ledger cannot tell is left out
	st := s.engine.Stats()
	st.Topics, st.Others, st.Beyond, st.Total = sums.Topics, sums.Others, sums.Beyond, sums.Others
	for i := range st.Topics {
		c := st.Topics[i].Counts.WithoutRest(st.Topics[i].Settings.Paused)
		st.Total.Add(&c)
	}
	if s.Fleet != nil && s.Fleet.Relay != nil {
		st.Relay = s.Fleet.Relay.Stats()
	}
	st.Clocks = slices.Clone(s.clocks())
	x := &s.Peers.Counts
	st.ReservesGiven, st.ReservesTaken = x.ReservesGiven.Load(), x.ReservesTaken.Load()
	st.HelpTaken, st.HelpGiven = x.OffloadedOut.Load(), x.OffloadedIn.Load()
	st.SettlementsDropped = s.Forward.Dropped.Load()
	st.PastDropped = s.Past.Dropped.Load()
	st.Spool.Missing = missing
	return st
}
