package engine_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// Acts that begin at several nodes in one moment: each is done, or is refused and says so.
func TestActsThatBeginTogether(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		f.Nodes[0].Must(Request{ID: "t", Topic: "x", Delay: time.Hour})
		late := 0
		for round := range 30 {
			before := f.Nodes[0].MustGet("t").Due
			acts := make([]Act, len(f.Nodes))
			for i, n := range f.Nodes {
				acts[i] = Act{Action: MoveAction, Shift: time.Duration(1+i*i*24) * time.Hour, IDs: []string{"t"}}
				first, err := n.Admin().Act(t.Context(), acts[i])
				rig.Want(t, "Act", err, nil)
				acts[i].Query.Cursor = first.Cursor
			}
			moved := time.Duration(0)
			for repeat := range 2 {
				for i, a := range acts {
					got, err := f.Nodes[(i+repeat)%3].Admin().Act(t.Context(), a)
					rig.Want(t, "Act", err, nil)
					switch {
					case got.Done == 1 && repeat == 0:
						moved += a.Shift
					case got.Done == 0 && (len(got.Failed) != 1 || !errors.Is(got.Failed[0].Err, ErrRevision)):
						t.Errorf("round %d: %+v", round, got)
					case got.Done == 0:
						late++
					}
				}
			}
			if now := f.Nodes[0].MustGet("t").Due; !now.Equal(before.Add(moved)) {
				t.Fatalf("round %d: it was moved by %v, and callers were told %v", round, now.Sub(before), moved)
			}
			rig.Pass(time.Millisecond)
		}
		if late == 0 {
			t.Error("no act was refused")
		}
		moved, err := f.Nodes[0].Admin().Act(t.Context(), Act{Action: MoveAction, Due: time.Now().Add(time.Hour), Query: Query{Topic: "x"}})
		if rig.Want(t, "Act", err, nil); moved.Done != 1 {
			t.Errorf("moved: %+v", moved)
		}
		for range 20 {
			fired, err := f.Nodes[1].Admin().Act(t.Context(), Act{Action: FireAction, Query: Query{Topic: "x"}})
			rig.Want(t, "Act", err, nil)
			if ready := f.Nodes[0].MustGet("t").State == Ready; ready != (fired.Done == 1) || fired.Matched != 1 {
				t.Fatalf("fired: %+v; ready: %v", fired, ready)
			} else if ready {
				return
			}
			rig.Pass(time.Millisecond)
		}
		t.Error("it was never fired")
	})
}

// Other changes in between do not keep an act from a task, however many there are, and do not let
// it change the task twice.
func TestActsBetweenOtherChanges(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		first := r.Must(Request{ID: "t", Topic: "x", Delay: time.Hour})
		got, err := r.Admin().Act(t.Context(), Act{Action: MoveAction, Due: first.Due.Add(time.Hour), Query: Query{Topic: "x"}})
		if rig.Want(t, "Act", err, nil); got.Done != 1 || r.MustGet("t").Revision != first.Revision+1 {
			t.Errorf("moved: %+v, %+v", got, r.MustGet("t"))
		}
		patch := func() {
			_, err := r.Reschedule(t.Context(), "t", Move{Payload: []byte(`1`)})
			rig.Want(t, "Reschedule", err, nil)
		}
		patch()
		for n := range 5 {
			rig.Pass(time.Second)
			before := r.MustGet("t")
			a := Act{Action: MoveAction, Shift: 24 * time.Hour, IDs: []string{"t"}}
			begun, err := r.Admin().Act(t.Context(), a)
			rig.Want(t, "Act", err, nil)
			a.Query.Cursor = begun.Cursor
			for call := range 3 {
				if call > 0 && n%2 == 0 {
					patch()
				}
				if call == 2 && n%2 == 1 {
					now := r.MustGet("t")
					_, err := r.Replace(t.Context(), Request{ID: "t", Topic: "x", Due: now.Due})
					rig.Want(t, "Replace", err, nil)
				}
				got, err := r.Admin().Act(t.Context(), a)
				if rig.Want(t, "Act", err, nil); got.Done != 1 {
					t.Errorf("shift %d, call %d: %+v", n, call, got)
				}
				if due := r.MustGet("t").Due; !due.Equal(before.Due.Add(a.Shift)) {
					t.Fatalf("shift %d, call %d: moved by %v", n, call, due.Sub(before.Due))
				}
				r.Restart()
			}
		}
	})
}

// However many acts begin, their stamps stay with the clock: another node goes on with them, and
// after a restart tasks can be moved again.
func TestStampsStayWithTheClock(t *testing.T) {
	t.Parallel()
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		f.Nodes[0].Must(Request{ID: "t", Topic: "x", Delay: 100 * time.Hour})
		for i := range 5000 {
			_, err := f.Nodes[0].Admin().Act(t.Context(), Act{Action: CancelAction, IDs: []string{"none"}, Dry: i%2 == 0})
			rig.Want(t, "Act", err, nil)
		}
		shift := Act{Action: MoveAction, Shift: time.Minute, Query: Query{Topic: "x"}}
		begun, err := f.Nodes[0].Admin().Act(t.Context(), shift)
		rig.Want(t, "Act", err, nil)
		shift.Query.Cursor = begun.Cursor
		got, err := f.Nodes[1].Admin().Act(t.Context(), shift)
		if rig.Want(t, "Act", err, nil); got.Done != 1 {
			t.Errorf("the other node: %+v", got)
		}
		f.Nodes[0].Stop()
		f.Nodes[0].Restart()
		rig.Pass(5 * time.Second)
		fired, err := f.Nodes[1].Admin().Act(t.Context(), Act{Action: FireAction, Query: Query{Topic: "x"}})
		if rig.Want(t, "Act", err, nil); fired.Done != 1 || len(fired.Failed) != 0 {
			t.Errorf("fired: %+v", fired)
		}
	})
}

// An act at a node whose clock was ahead keeps dead tasks from being requeued for a while. The
// answer says so, and counts what the dry run has counted.
func TestRequeueNamesTheTasksThatItLeaves(t *testing.T) {
	now := func() Act { return Act{Action: MoveAction, Due: time.Now(), Query: Query{Group: "g"}} }
	requests := []Request{{ID: "free", Topic: "x"}, {ID: "left", Topic: "x", Group: "g", Delay: time.Hour}}
	check := func(t *testing.T, s *Scheduler) {
		for range requests {
			ds, err := s.Reserve(t.Context(), "x", 1, 10*time.Second, 0)
			if rig.Want(t, "Reserve", err, nil); len(ds) != 1 {
				t.Fatalf("reserved %+v", ds)
			}
			_, err = s.Settle(t.Context(), Verdict{Verb: Bury}, []string{ds[0].Receipt()})
			rig.Want(t, "Settle", err, nil)
		}
		a := Act{Action: RequeueAction, Query: Query{Topic: "x"}, Dry: true}
		counted, err := s.Admin().Act(t.Context(), a)
		rig.Want(t, "Act", err, nil)
		a.Dry = false
		got, err := s.Admin().Act(t.Context(), a)
		if rig.Want(t, "Act", err, nil); got.Matched != counted.Matched || got.Done != 1 || len(got.Failed) != 1 {
			t.Fatalf("counted %+v, got %+v", counted, got)
		}
		if left := got.Failed[0]; left.ID != "left" || !errors.Is(left.Err, ErrRevision) {
			t.Errorf("left: %+v", left)
		}
		rig.Pass(2 * time.Minute)
		got, err = s.Admin().Act(t.Context(), a)
		if rig.Want(t, "Act", err, nil); got.Done != 1 || len(got.Failed) != 0 {
			t.Errorf("later: %+v", got)
		}
	}
	t.Run("one node", func(t *testing.T) {
		rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
			for _, q := range requests {
				r.Must(q)
			}
			r.Clock.Step(time.Minute)
			moved, err := r.Admin().Act(t.Context(), now())
			if rig.Want(t, "Act", err, nil); moved.Done != 1 {
				t.Fatalf("moved: %+v", moved)
			}
			r.Clock.Step(-time.Minute)
			r.Restart()
			rig.Pass(time.Second)
			check(t, r.Scheduler)
		})
	})
	t.Run("two nodes", func(t *testing.T) {
		rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
			ahead := f.Start("ahead", rig.FleetShards, Config{Clock: func() time.Time { return time.Now().Add(time.Minute) }})
			rig.Pass(5 * time.Second)
			f.Nodes[0].Must(requests[0])
			f.Nodes[1].Must(requests[1])
			moved, err := ahead.Admin().Act(t.Context(), now())
			if rig.Want(t, "Act", err, nil); moved.Done != 1 {
				t.Fatalf("moved: %+v", moved)
			}
			rig.Pass(5 * time.Second)
			check(t, f.Nodes[0].Scheduler)
		})
	})
}

// A deadline before 1970 is that of 1970: the task stays in lists.
func TestActsMoveToLongAgo(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		long := time.Date(1960, 1, 1, 0, 0, 0, 0, time.UTC)
		for i, a := range []Act{
			{Action: MoveAction, Due: long, Query: Query{Topic: "x"}},
			{Action: MoveAction, Due: long, IDs: []string{"1"}},
			{Action: RequeueAction, Due: long, IDs: []string{"2"}},
		} {
			id := fmt.Sprint(i)
			if a.Action == RequeueAction {
				r.SettleOne(Verdict{Verb: Bury}, r.One(id, "x"))
			} else {
				r.Must(Request{ID: id, Topic: "x", Delay: time.Hour})
			}
			got, err := r.Admin().Act(t.Context(), a)
			if rig.Want(t, "Act", err, nil); got.Done != 1 {
				t.Errorf("%+v: %+v", a, got)
			}
			rig.Pass(time.Second)
			if one := r.MustGet(id); one.Due.UnixMilli() < 0 || one.State != Ready {
				t.Errorf("%+v: %+v", a, one)
			}
			if page, err := r.List(t.Context(), Query{Topic: "x"}); err != nil || len(page.Tasks) != 1 {
				t.Errorf("%+v: listed are %+v, %v", a, page.Tasks, err)
			}
			if got, err = r.Admin().Act(t.Context(), Act{Action: CancelAction, Query: Query{Topic: "x"}}); err != nil || got.Done != 1 {
				t.Errorf("%+v: cancelled %+v, %v", a, got, err)
			}
		}
	})
}

// Memory that is full takes no tasks, but those that it has can be moved and fired. Only tasks that
// an act has changed have the longer record.
func TestActsWhileMemoryIsFull(t *testing.T) {
	rig.Bubble(t, Config{MaxBytes: 1 << 20}, func(t *testing.T, r *rig.Rig) {
		r.Must(Request{ID: "t", Topic: "x", Delay: time.Hour})
		r.Fill("full", "y", 10_000)
		r.Fill("rest", "z", 0)
		_, err := r.Reschedule(t.Context(), "t", Move{Due: time.Now().Add(2 * time.Hour)})
		rig.Want(t, "Reschedule", err, nil)
		if _, f := r.Held("t"); f.Stamp != 0 {
			t.Errorf("moved by itself: %+v", f)
		}
		got, err := r.Admin().Act(t.Context(), Act{Action: MoveAction, Due: time.Now().Add(3 * time.Hour), Query: Query{Topic: "x"}})
		if rig.Want(t, "Act", err, nil); got.Done != 1 {
			t.Errorf("moved: %+v", got)
		}
		got, err = r.Admin().Act(t.Context(), Act{Action: FireAction, Query: Query{Topic: "y", Limit: 50}})
		if rig.Want(t, "Act", err, nil); got.Done != 50 {
			t.Errorf("fired: %+v", got)
		}
		_, f := r.Held("t")
		_, plain := r.Held("full50")
		if f.Stamp == 0 || plain.Stamp != 0 {
			t.Errorf("stamps %d and %d", f.Stamp, plain.Stamp)
		}
	})
}

// What an act at a node whose clock is ahead keeps others from is refused with the reason.
func TestActsOfAClockAhead(t *testing.T) {
	for _, ahead := range []time.Duration{10 * time.Minute, 2 * time.Hour} {
		rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
			fast := f.Start("fast", rig.FleetShards, Config{Clock: func() time.Time { return time.Now().Add(ahead) }})
			rig.Pass(5 * time.Second)
			f.Nodes[0].Must(Request{ID: "t", Topic: "x", Delay: 100 * time.Hour})
			shift := Act{Action: MoveAction, Shift: time.Minute, Query: Query{Topic: "x"}}
			begun, err := fast.Admin().Act(t.Context(), shift)
			rig.Want(t, "Act", err, nil)
			shift.Query.Cursor = begun.Cursor
			if ahead > time.Hour {
				_, err = f.Nodes[1].Admin().Act(t.Context(), shift)
				if rig.Want(t, "Act", err, ErrInvalid); !strings.Contains(err.Error(), "whose clock is at most an hour ahead") {
					t.Errorf("with the cursor of a node that is %v ahead: %v", ahead, err)
				}
			}
			moved, err := fast.Admin().Act(t.Context(), shift)
			if rig.Want(t, "Act", err, nil); moved.Done != 1 {
				t.Fatalf("moved: %+v", moved)
			}
			held, err := f.Nodes[1].Admin().Act(t.Context(), Act{Action: HoldAction, Query: Query{Topic: "x"}})
			if rig.Want(t, "Act", err, nil); len(held.Failed) != 1 {
				t.Fatalf("held: %+v", held)
			}
			if err := held.Failed[0].Err; !errors.Is(err, ErrRevision) || !strings.Contains(err.Error(), "a node whose clock is at least") {
				t.Errorf("refused: %v", err)
			}
		})
	}
}
