package engine_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// campaign makes tasks whose deadlines are a second apart, and returns these.
func campaign(t *testing.T, next func() *Scheduler, number int) map[string]time.Time {
	t.Helper()
	due := make(map[string]time.Time)
	for i := range number {
		r := Request{Topic: "x", Delay: time.Hour + time.Duration(i)*time.Second}
		if i%2 == 0 {
			r.ID = fmt.Sprint("t", i)
		}
		one, err := next().Schedule(t.Context(), r)
		rig.Want(t, "Schedule", err, nil)
		due[one.ID] = one.Due
	}
	return due
}

// wantShifted checks that each task was moved once.
func wantShifted(t *testing.T, s *Scheduler, before map[string]time.Time, by time.Duration) {
	t.Helper()
	left, _ := found(t, func() *Scheduler { return s }, Query{Limit: 1000})
	if len(left) != len(before) {
		t.Errorf("%d tasks, want %d", len(left), len(before))
	}
	for i := range left {
		if wanted := before[left[i].ID].Add(by); !left[i].Due.Equal(wanted) {
			t.Errorf("%s was moved by %v, want %v", left[i].ID, left[i].Due.Sub(before[left[i].ID]), by)
		}
	}
}

// A shift moves each task once: moved forward it is met again, calls are repeated and come late,
// the process ends in between.
func TestShiftMovesATaskOnce(t *testing.T) {
	for _, by := range []time.Duration{7 * time.Second, time.Hour, -20 * time.Second, time.Millisecond} {
		t.Run(by.String(), func(t *testing.T) {
			rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
				now := func() *Scheduler { return r.Scheduler }
				before := campaign(t, now, 60)
				a := Act{Action: MoveAction, Shift: by, Query: Query{Topic: "x", Limit: 5}}
				first, err := r.Admin().Act(t.Context(), a)
				if rig.Want(t, "Act", err, nil); first.Done != 0 || first.Matched != 0 || first.Cursor == "" {
					t.Fatalf("the first call: %+v", first)
				}
				rng := rand.New(rand.NewPCG(uint64(by), 1))
				cursors, done := []string{first.Cursor}, 0
				for last := first.Cursor; last != ""; {
					if len(cursors) > 10*len(before) {
						t.Fatal("it does not end")
					}
					for range 2 {
						a.Query.Cursor = pick(rng, cursors...) // a call that comes late
						late, err := r.Admin().Act(t.Context(), a)
						rig.Want(t, "Act", err, nil)
						done += late.Done
					}
					if rng.IntN(5) == 0 {
						r.Restart()
					}
					a.Query.Cursor = last
					next, err := r.Admin().Act(t.Context(), a)
					if rig.Want(t, "Act", err, nil); len(next.Failed) > 0 {
						t.Errorf("refused: %+v", next.Failed)
					}
					done += next.Done
					if last = next.Cursor; last != "" {
						cursors = append(cursors, last)
					}
				}
				if done != len(before) {
					t.Errorf("%d moves of %d tasks", done, len(before))
				}
				wantShifted(t, r.Scheduler, before, by)
				// Another shift moves them again, after a change of one too.
				_, err = r.Reschedule(t.Context(), "t0", Move{Payload: []byte(`1`)})
				rig.Want(t, "Reschedule", err, nil)
				rig.Pass(2 * time.Second)
				a.Query.Cursor = ""
				if again := acted(t, now, a); again.Done != len(before) {
					t.Errorf("the second shift: %+v", again)
				}
				wantShifted(t, r.Scheduler, before, 2*by)
				// A late call of the first one finds them changed since.
				a.Query.Cursor = first.Cursor
				if late := acted(t, now, a); late.Done != 0 || len(late.Failed) != len(before) || !errors.Is(late.Failed[0].Err, ErrRevision) {
					t.Errorf("the first shift once more: %+v", late)
				}
				wantShifted(t, r.Scheduler, before, 2*by)
			})
		})
	}
}

// Named tasks are moved once, too.
func TestShiftOfNamedTasksIsDoneOnce(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		before := campaign(t, func() *Scheduler { return r.Scheduler }, 4)
		a := Act{Action: MoveAction, Shift: time.Minute, IDs: append(sortedKeys(before), "none", sortedKeys(before)[0])}
		first, err := r.Admin().Act(t.Context(), a)
		rig.Want(t, "Act", err, nil)
		for range 3 {
			a.Query.Cursor = first.Cursor
			got, err := r.Admin().Act(t.Context(), a)
			rig.Want(t, "Act", err, nil)
			if got.Done != 4 || len(got.Failed) != 1 || got.Failed[0].ID != "none" || !errors.Is(got.Failed[0].Err, ErrNotFound) || got.Cursor != "" {
				t.Errorf("got %+v", got)
			}
		}
		wantShifted(t, r.Scheduler, before, time.Minute)
		rig.Pass(2 * time.Second)
		other := Act{Action: MoveAction, Shift: time.Hour, Query: Query{Topic: "x"}}
		acted(t, func() *Scheduler { return r.Scheduler }, other)
		got, err := r.Admin().Act(t.Context(), a)
		if rig.Want(t, "Act", err, nil); len(got.Failed) != 5 || !errors.Is(got.Failed[0].Err, ErrRevision) {
			t.Errorf("after another shift: %+v", got)
		}
	})
}

func sortedKeys(m map[string]time.Time) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Tasks that are fired or requeued again and again, because their attempts fail, are so once in one
// act.
func TestActEndsWhereTasksComeBack(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Retry: Retry{MaxAttempts: 1}})
		for i := range 20 {
			r.Must(Request{ID: fmt.Sprintf("t%02d", i), Topic: "x"})
		}
		fail := func() {
			rig.Pass(time.Second)
			for range rig.MostPages {
				ds, err := r.Reserve(t.Context(), "x", 100, 0, 0)
				if rig.Want(t, "Reserve", err, nil); len(ds) == 0 {
					return
				}
				for i := range ds {
					r.SettleOne(Verdict{Verb: Release, Reason: "no"}, ds[i])
				}
			}
			t.Fatal("the topic is never empty")
		}
		fail()
		calls := 0
		done := acted(t, func() *Scheduler {
			if calls++; calls > 30 {
				t.Fatal("it does not end")
			}
			if calls > 1 {
				fail()
			}
			return r.Scheduler
		}, Act{Action: RequeueAction, Query: Query{Topic: "x", Limit: 3}})
		if done.Done != 20 || r.Counts("x").Failed != 40 {
			t.Errorf("%+v, %d attempts have failed", done, r.Counts("x").Failed)
		}
	})
}

// Shards move, a node dies and comes back, calls are repeated: each task is moved once.
func TestShiftWhileShardsMove(t *testing.T) {
	seed := rand.Uint64()
	for round := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed+round), func(t *testing.T) {
			rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
				rng := rand.New(rand.NewPCG(seed, round))
				live := func() *Scheduler {
					for {
						if n := f.Nodes[rng.IntN(3)]; !n.Dead {
							return n.Scheduler
						}
					}
				}
				before := campaign(t, live, 90)
				by := pick(rng, 20*time.Second, -30*time.Second, time.Hour)
				a := Act{Action: MoveAction, Shift: by, Query: Query{Topic: "x", Limit: 7}}
				problems, dead := 0, false
				cursors := []string{""}
				for step := 0; ; step++ {
					switch {
					case step == 3:
						f.Nodes[1].Crash()
						dead = true
						time.AfterFunc(2*time.Second, func() { f.Nodes[2].Member.AdoptFrom(f.Nodes[1].Member.Member) })
					case dead && step == 8:
						f.Nodes[1].Restart()
						dead = false
					case step > 8 && step%3 == 0:
						to, from := f.Nodes[rng.IntN(3)], f.Nodes[rng.IntN(3)]
						if to != from {
							to.Member.AdoptFrom(from.Member.Member)
						}
					}
					a.Query.Cursor = cursors[len(cursors)-1]
					if rng.IntN(3) == 0 {
						late := a
						late.Query.Cursor = pick(rng, cursors...)
						_, _ = live().Admin().Act(t.Context(), late)
					}
					done, err := live().Admin().Act(t.Context(), a)
					if err != nil {
						if problems++; problems > 100 {
							t.Fatal("Act:", err)
						}
						rig.Pass(time.Second)
						continue
					}
					if len(done.Failed) > 0 {
						t.Errorf("refused: %+v", done.Failed)
					}
					if done.Cursor == "" {
						break
					}
					if len(cursors) > 10*len(before) {
						t.Fatal("it does not end")
					}
					cursors = append(cursors, done.Cursor)
				}
				if dead {
					f.Nodes[1].Restart()
				}
				rig.Pass(30 * time.Second)
				wantShifted(t, f.Nodes[0].Scheduler, before, by)
			})
		})
	}
}

// An act of a node that dies in the middle is finished by repeating it at another one.
func TestActsSurviveACrash(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		before := campaign(t, func() *Scheduler { return f.Nodes[0].Scheduler }, 30)
		for i, n := range f.Nodes {
			n.Must(Request{ID: fmt.Sprint("other", i), Topic: "y", Delay: time.Hour})
		}
		a := Act{Action: CancelAction, Query: Query{Topic: "x", Limit: 8}}
		first, err := f.Nodes[1].Admin().Act(t.Context(), a)
		rig.Want(t, "Act", err, nil)
		f.Nodes[0].Crash()
		a.Query.Cursor = first.Cursor
		got, err := f.Nodes[1].Admin().Act(t.Context(), a)
		if !errors.Is(err, ErrUnavailable) || got.Done > 0 {
			t.Errorf("without the owner: %+v, %v", got, err)
		}
		f.Nodes[2].Member.AdoptFrom(f.Nodes[0].Member.Member)
		rig.Pass(5 * time.Second)
		rest := acted(t, func() *Scheduler { return f.Nodes[2].Scheduler }, a)
		if first.Done != 8 || first.Done+rest.Done != len(before) {
			t.Errorf("%d were cancelled, then %+v", first.Done, rest)
		}
		left, _ := found(t, func() *Scheduler { return f.Nodes[1].Scheduler }, Query{})
		if len(left) != 3 {
			t.Errorf("left are %v", rig.IDsOf(left))
		}
	})
}
