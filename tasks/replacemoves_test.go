package tasks_test

import (
	"errors"
	"fmt"
	"time"

	. "github.com/lapsehq/lapse/tasks"
)

// The moves of a simulation that replace tasks, in whatever state they are if a request supersedes.

// replacement is a request for one of the ids.
func (s *simulation) replacement() Request {
	r := s.request(s.anyID())
	r.Supersede = s.rng.IntN(2) == 0
	r.Held = s.rng.IntN(10) == 0
	return r
}

func (s *simulation) replace() {
	r := s.replacement()
	s.m.begin()
	s.maybeFreed(r.ID)
	task, err := s.Replace(s.T.Context(), r)
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.replaced(r, task.Repeated, err, []int64{task.Due.UnixMilli()})
}

func (s *simulation) replaceBatch() {
	rs, supersede := make([]Request, 1+s.rng.IntN(6)), s.rng.IntN(2) == 0
	for i := range rs {
		rs[i] = s.replacement()
		rs[i].Supersede = supersede // also where an id comes twice
	}
	s.m.begin()
	for i := range rs {
		s.maybeFreed(rs[i].ID)
	}
	results, err := s.ReplaceBatch(s.T.Context(), rs)
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if err != nil {
		s.m.fault("batch", "%v", err)
		return
	}
	for i, res := range results {
		s.replaced(rs[i], res.Repeated, res.Err, nil)
	}
}

// replaced checks the answer of a replacement. dues is what the deadline may be; nil: anything.
func (s *simulation) replaced(r Request, repeated bool, err error, dues []int64) {
	f := s.m.fact(r.ID)
	s.m.note(r.ID, "Replace for %v, supersede %v: repeated %v, %v", dues, r.Supersede, repeated, err)
	switch {
	case s.m.over(r.ID, s.faults):
		if f.open != nil && r.Supersede {
			f.open.crashed = true
		}
		switch { // whichever came first, what there is now has the content of the replacement
		case err == nil && f.topic != "":
			f.topic, f.group, f.req = r.Topic, r.Group, fmt.Sprint(r)
		case errors.Is(err, ErrUnknown):
			f.topic, f.req = "", ""
		}
	case err == nil:
		if f.busy() && !r.Supersede {
			s.m.fault(r.ID, "replaced while it is being delivered")
		}
		was := mayBeAbsent
		if repeated && r.Supersede {
			was = mayBeAlive | mayBeDead
		} else if repeated {
			was = mayBeAlive
		}
		s.m.is(r.ID, was, "replaced").alive(time.Time{})
		f.dues, f.held = dues, r.Held
		f.topic, f.group, f.req = r.Topic, r.Group, fmt.Sprint(r)
	case errors.Is(err, ErrUnknown):
		s.excused(r.ID, err)
		f.unsure(time.Time{})
		if f.dues = nil; f.open != nil && r.Supersede {
			f.open.crashed = true // it may count no more
		}
	case s.excused(r.ID, err):
	case r.Supersede:
		s.m.fault(r.ID, "not superseded: %v", err)
	default:
		s.refused(r.ID, err)
	}
}
