package tasks_test

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// Pages together are what a sorted selection would be.
func TestListAgainstSort(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 0))
		for i := range 400 {
			r.must(tasks.Request{ID: fmt.Sprint("t", i), Topic: []string{"x", "y", "z"}[rng.IntN(3)], Group: []string{"", "a", "b"}[rng.IntN(3)], Delay: time.Duration(rng.IntN(60)) * time.Second})
		}
		pass(20 * time.Second)
		_, err := r.Reserve(t.Context(), "x", 10, 0, time.Hour)
		want(t, "Reserve", err, nil)
		everything := r.pages(tasks.Query{Limit: 1000})
		if len(everything) != 400 {
			t.Fatalf("%d listed", len(everything))
		}
		for _, topic := range []string{"", "x", "none"} {
			for _, group := range []string{"", "a", "none"} {
				for _, state := range []tasks.State{0, tasks.Pending, tasks.Ready, tasks.Delivering} {
					for _, limit := range []int{1, 7, 1000} {
						r.listsSorted(everything, tasks.Query{Topic: topic, Group: group, State: state, Limit: limit})
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
func (r *rig) listsSorted(everything []tasks.Task, q tasks.Query) {
	r.t.Helper()
	var wanted []tasks.Task
	for _, task := range everything {
		if (q.Topic == "" || task.Topic == q.Topic) && (q.Group == "" || task.Group == q.Group) && (q.State == 0 || task.State == q.State) {
			wanted = append(wanted, task)
		}
	}
	slices.SortFunc(wanted, func(a, b tasks.Task) int { return cmp.Or(a.Next.Compare(b.Next), cmp.Compare(a.ID, b.ID)) })
	if got := r.pages(q); !slices.Equal(idsOf(got), idsOf(wanted)) {
		r.t.Errorf("%+v: %d listed, want %d in their order", q, len(got), len(wanted))
	}
}

// pages reads all pages of a query.
func (r *rig) pages(q tasks.Query) (all []tasks.Task) {
	r.t.Helper()
	for range mostPages {
		page, err := r.List(r.t.Context(), q)
		if err != nil {
			r.t.Fatal("List:", err)
		}
		all = append(all, page.Tasks...)
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return all
		}
		if len(page.Tasks) != q.Limit {
			r.t.Fatalf("a page of %d, with another behind it", len(page.Tasks))
		}
	}
	r.t.Fatalf("List(%+v) does not end", q)
	return nil
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
