package tasks

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Pages together are what a sorted selection would be.
func TestListAgainstSort(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 0))
		for i := range 400 {
			r.must(Request{ID: fmt.Sprint("t", i), Topic: []string{"x", "y", "z"}[rng.IntN(3)], Group: []string{"", "a", "b"}[rng.IntN(3)], Delay: time.Duration(rng.IntN(60)) * time.Second})
		}
		pass(20 * time.Second)
		_, err := r.Reserve(t.Context(), "x", 10, 0, time.Hour)
		want(t, "Reserve", err, nil)
		everything := r.pages(Query{Limit: 1000})
		if len(everything) != 400 {
			t.Fatalf("%d listed", len(everything))
		}
		for _, topic := range []string{"", "x", "none"} {
			for _, group := range []string{"", "a", "none"} {
				for _, state := range []State{0, Pending, Ready, Delivering} {
					for _, limit := range []int{1, 7, 1000} {
						r.listsSorted(everything, Query{Topic: topic, Group: group, State: state, Limit: limit})
					}
				}
			}
		}
		_, err = r.List(t.Context(), Query{Topic: "x", Group: "a", State: Dead})
		want(t, "List", err, ErrInvalid)
		_, err = r.List(t.Context(), Query{Topic: "-", Group: "-", State: Dead + 1})
		if e := (*InvalidError)(nil); !errors.As(err, &e) || len(e.Fields) != 3 {
			t.Errorf("List = %v; want three faults", err)
		}
	})
}

// listsSorted compares the pages of a query with what it should select of everything.
func (r *rig) listsSorted(everything []Task, q Query) {
	r.t.Helper()
	var wanted []Task
	for _, task := range everything {
		if (q.Topic == "" || task.Topic == q.Topic) && (q.Group == "" || task.Group == q.Group) && (q.State == 0 || task.State == q.State) {
			wanted = append(wanted, task)
		}
	}
	slices.SortFunc(wanted, func(a, b Task) int { return cmp.Or(a.Next.Compare(b.Next), cmp.Compare(a.ID, b.ID)) })
	if got := r.pages(q); !slices.Equal(idsOf(got), idsOf(wanted)) {
		r.t.Errorf("%+v: %d listed, want %d in their order", q, len(got), len(wanted))
	}
}

// pages reads all pages of a query.
func (r *rig) pages(q Query) (all []Task) {
	r.t.Helper()
	for {
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
}

func TestStateNames(t *testing.T) {
	for _, s := range []State{Pending, Ready, Delivering, Dead} {
		if got, ok := ParseState(s.String()); !ok || got != s {
			t.Errorf("ParseState(%q) = %v, %v", s, got, ok)
		}
	}
	for _, name := range []string{"", "unknown", "PENDING"} {
		if _, ok := ParseState(name); ok {
			t.Errorf("%q is a state", name)
		}
	}
	if s := State(99).String(); s != "unknown" {
		t.Errorf("State(99) is %q", s)
	}
}
