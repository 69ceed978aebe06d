package tasks_test

import (
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// The faults of a simulation: what happens without a move that asks for it.

func (s *simulation) stepClock() {
	step := time.Duration(s.rng.Int64N(int64(20*time.Minute))) - 10*time.Minute
	if total := time.Duration(s.Clock.Offset.Load()); total > 30*time.Minute || total < -30*time.Minute {
		step = -total
	}
	s.Clock.Step(step)
	rig.Pass(1100 * time.Millisecond) // the sweep notices
}

// breakLedger makes the ledger fail in one of several ways.
func (s *simulation) breakLedger() {
	if s.faults {
		return
	}
	s.faults = true
	switch s.rng.IntN(4) {
	case 0:
		s.Faulty.Down()
	case 1:
		s.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Times: -1})
	case 2: // carried out, and the answers are lost
		s.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Times: -1, After: true})
	case 3:
		_, s.release = s.Faulty.Hold(ledgertest.Apply)
	}
}

func (s *simulation) heal() {
	s.Faulty.Heal()
	if s.release != nil {
		s.release()
		s.release = nil
	}
	rig.Pass(3 * time.Second) // of backoff
	s.faults = false
}

// kill ends the process as kill -9 does, whatever the ledger is doing.
func (s *simulation) kill() {
	s.WantNoRescue()
	s.process.Add(1)
	s.m.mu.Lock()
	s.m.crashed()
	s.m.mu.Unlock()
	s.Crash()
	s.restarted()
}

// cleanly closes the scheduler and opens another one.
func (s *simulation) cleanly() {
	s.heal()
	s.WantNoRescue()
	s.Restart()
	s.process.Add(1)
	s.m.mu.Lock()
	s.m.settled()
	for _, f := range s.m.facts {
		f.loose = true // a returned receipt counts again
		if f.open != nil && f.open.handler {
			f.open.crashed = true
			f.may |= f.open.said
		}
	}
	s.m.mu.Unlock()
	s.restarted()
}

func (s *simulation) restarted() {
	s.faults, s.release, s.fresh = false, nil, 0
	s.m.mu.Lock()
	s.m.restarted()
	s.m.mu.Unlock()
	s.begin()
}

func (s *simulation) inspect() {
	if !s.faults && s.Stats().Ledger.Queued == 0 {
		s.CheckConsistency()
	}
}
