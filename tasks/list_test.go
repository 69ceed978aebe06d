package tasks

import (
	"cmp"
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
			r.must(Request{ID: fmt.Sprint("t", i), Topic: []string{"x", "y", "z"}[rng.IntN(3)], Delay: time.Duration(rng.IntN(60)) * time.Second})
		}
		pass(20 * time.Second)
		_, err := r.Reserve(t.Context(), "x", 10, 0, time.Hour)
		want(t, "Reserve", err, nil)
		everything := r.pages(Query{Limit: 1000})
		if len(everything) != 400 {
			t.Fatalf("%d listed", len(everything))
		}
		for _, topic := range []string{"", "x", "none"} {
			for _, state := range []State{0, Pending, Ready, Delivering} {
				for _, limit := range []int{1, 7, 1000} {
					var wanted []Task
					for _, task := range everything {
						if (topic == "" || task.Topic == topic) && (state == 0 || task.State == state) {
							wanted = append(wanted, task)
						}
					}
					slices.SortFunc(wanted, func(a, b Task) int { return cmp.Or(a.Next.Compare(b.Next), cmp.Compare(a.ID, b.ID)) })
					got := r.pages(Query{Topic: topic, State: state, Limit: limit})
					if !slices.Equal(idsOf(got), idsOf(wanted)) {
						t.Errorf("topic %q, %v, %d at a time: %d listed, want %d in their order", topic, state, limit, len(got), len(wanted))
					}
				}
			}
		}
	})
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
