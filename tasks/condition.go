package tasks

import (
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// conditionEvery is how often the ledger is asked whether it takes new records. What
// is accepted in between must fit into what it keeps in reserve.
const conditionEvery = 100 * time.Millisecond

// conditionLoop asks until Close begins, beside the sweep: a ledger may take its time.
func (s *engine) conditionLoop() {
	tick := time.NewTicker(conditionEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.askCondition()
		case <-s.closing:
			return
		}
	}
}

func (s *engine) askCondition() {
	c, ok := s.ledger.(recovery.Conditioner)
	if !ok {
		return
	}
	if err := c.Condition(); err != nil {
		s.refusal.Store(&err)
	} else {
		s.refusal.Store(nil)
	}
}
