package tasks_test

import (
	"slices"
	"testing"

	"github.com/lapsehq/lapse/tasks"
)

func TestPurgeAtAllNodes(t *testing.T) {
	fleetBubble(t, 3, func(t *testing.T, f *fleet) {
		f.fill(7, "x", "")
		stays := f.fill(2, "y", "")
		f.nodes[2].deliver(tasks.Request{Topic: "x"})
		p, err := f.nodes[1].Purge(t.Context(), "x")
		if err != nil || p != (tasks.Purged{Cancelled: 21, Delivering: 1}) {
			t.Errorf("Purge = %+v, %v", p, err)
		}
		if left := f.nodes[0].pages(tasks.Query{State: tasks.Pending}); !slices.Equal(sorted(left), stays) {
			t.Errorf("left: %v", left)
		}
	})
}

func TestCancelGroupAtAllNodes(t *testing.T) {
	fleetBubble(t, 3, func(t *testing.T, f *fleet) {
		for _, m := range f.nodes {
			group, topic := "g"+m.name, "y"+m.name
			f.fill(5, "x", group)
			stays := f.fill(2, "x", "other"+m.name)
			var out []string
			for _, o := range f.nodes {
				out = append(out, o.deliver(tasks.Request{Topic: topic, Group: group}))
			}
			got, err := m.CancelGroup(t.Context(), group)
			if err != nil || got.Cancelled != 15 || !slices.Equal(sorted(got.Delivering), sorted(out)) || got.More != 0 {
				t.Errorf("CancelGroup at %s = %+v, %v; want 15, %v", m.name, got, err, out)
			}
			for _, o := range f.nodes {
				if left := o.pages(tasks.Query{Group: group}); !slices.Equal(sorted(left), sorted(out)) {
					t.Errorf("left at %s: %v", o.name, left)
				}
				if left := o.pages(tasks.Query{Group: "other" + m.name}); !slices.Equal(sorted(left), stays) {
					t.Errorf("of another group, left at %s: %v", o.name, left)
				}
			}
			got, err = m.CancelGroup(t.Context(), group)
			if err != nil || got.Cancelled != 0 || len(got.Delivering) != 3 {
				t.Errorf("CancelGroup again = %+v, %v", got, err)
			}
		}
	})
}
