package engine_test

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// Pages together are what a sorted selection would be.
func TestListAgainstSort(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 0))
		for i := range 400 {
			r.Must(tasks.Request{ID: fmt.Sprint("t", i), Topic: []string{"x", "y", "z"}[rng.IntN(3)], Group: []string{"", "a", "b"}[rng.IntN(3)], Delay: time.Duration(rng.IntN(60)) * time.Second})
		}
		rig.Pass(20 * time.Second)
		_, err := r.Reserve(t.Context(), "x", 10, 0, time.Hour)
		rig.Want(t, "Reserve", err, nil)
		everything := r.Pages(tasks.Query{Limit: 1000})
		if len(everything) != 400 {
			t.Fatalf("%d listed", len(everything))
		}
		for _, topic := range []string{"", "x", "none"} {
			for _, group := range []string{"", "a", "none"} {
				for _, state := range []tasks.State{0, tasks.Pending, tasks.Ready, tasks.Delivering} {
					for _, limit := range []int{1, 7, 1000} {
						listsSorted(r, everything, tasks.Query{Topic: topic, Group: group, State: state, Limit: limit})
					}
				}
			}
		}
		_, err = r.List(t.Context(), tasks.Query{Topic: "-", Group: "-", State: tasks.Finished + 1})
		if e := (*tasks.InvalidError)(nil); !errors.As(err, &e) || len(e.Fields) != 3 {
			t.Errorf("List = %v; want three faults", err)
		}
	})
}

// listsSorted compares the pages of a query with what it should select of everything.
func listsSorted(r *rig.Rig, everything []tasks.Task, q tasks.Query) {
	r.T.Helper()
	var wanted []tasks.Task
	for _, task := range everything {
		if (q.Topic == "" || task.Topic == q.Topic) && (q.Group == "" || task.Group == q.Group) && (q.State == 0 || task.State == q.State) {
			wanted = append(wanted, task)
		}
	}
	slices.SortFunc(wanted, func(a, b tasks.Task) int { return cmp.Or(a.Next.Compare(b.Next), cmp.Compare(a.ID, b.ID)) })
	if got := r.Pages(q); !slices.Equal(rig.IDsOf(got), rig.IDsOf(wanted)) {
		r.T.Errorf("%+v: %d listed, want %d in their order", q, len(got), len(wanted))
	}
}

func TestStateNames(t *testing.T) {
	for _, s := range []tasks.State{tasks.Pending, tasks.Ready, tasks.Delivering, tasks.Dead, tasks.Retrying} {
		if got, ok := tasks.ParseState(s.String()); !ok || got != s {
			t.Errorf("ParseState(%q) = %v, %v", s, got, ok)
		}
	}
	for _, name := range []string{"", "unknown", "PENDING"} {
		if _, ok := tasks.ParseState(name); ok {
			t.Errorf("%q is a state", name)
		}
	}
	if s := tasks.State(99).String(); s != "unknown" {
		t.Errorf("State(99) is %q", s)
	}
}
