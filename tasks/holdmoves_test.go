package tasks_test

import (
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// The moves of a simulation that hold countdowns, and let them go on.

func (s *simulation) hold() {
	id := s.anyID()
	s.m.begin()
	task, err := s.Hold(s.T.Context(), id)
	s.moved(id, task, err)
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if f := s.m.fact(id); err == nil && !(f.during && s.faults) {
		f.held = true
	}
}

func (s *simulation) resume() {
	id := s.anyID()
	before, _ := s.Get(s.T.Context(), id)
	s.m.begin()
	s.maybeFreed(id)
	task, err := s.Resume(s.T.Context(), id)
	// It was not held if it has no other revision: then its receipt is as good as before.
	if err == nil && (task.State != Pending || task.Revision == before.Revision) {
		s.m.mu.Lock()
		defer s.m.mu.Unlock()
		s.m.over(id, s.faults)
		s.m.saw(id, task, nil)
		return
	}
	s.moved(id, task, err)
}

// maybeFreed says that a task may not be held any more, whatever becomes of the call that begins.
func (s *simulation) maybeFreed(id string) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.m.fact(id).held = false
}

// resumeAll resumes whatever is held.
func (s *simulation) resumeAll() {
	held := s.Pages(Query{State: Held, Limit: 1000})
	s.m.mu.Lock()
	for _, task := range held {
		f := s.m.fact(task.ID)
		f.held, f.dues = false, nil
	}
	for id, f := range s.m.facts {
		if f.held && f.may == mayBeAlive && !f.spent() && !f.missable {
			s.m.fault(id, "is not listed as held")
		}
	}
	s.m.mu.Unlock()
	done, err := s.Admin().Act(s.T.Context(), Act{Action: ResumeAction, Query: Query{State: Held}})
	if rig.Want(s.T, "Act", err, nil); done.Done != len(held) || done.Cursor != "" || len(done.Failed) > 0 {
		s.T.Errorf("resumed %+v of %d", done, len(held))
	}
}
