package cluster_test

import (
	"slices"
	"testing"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

func TestPurgeAtAllNodes(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		fillAll(f, 7, "x", "")
		stays := fillAll(f, 2, "y", "")
		deliver(f.Nodes[2], tasks.Request{Topic: "x"})
		p, err := f.Nodes[1].Admin().Purge(t.Context(), "x")
		if err != nil || p != (tasks.Purged{Cancelled: 21, Delivering: 1}) {
			t.Errorf("Purge = %+v, %v", p, err)
		}
		if left := f.Nodes[0].Pages(tasks.Query{State: tasks.Pending}); !slices.Equal(sorted(left), stays) {
			t.Errorf("left: %v", left)
		}
	})
}

func TestCancelGroupAtAllNodes(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		for _, m := range f.Nodes {
			group, topic := "g"+m.Name, "y"+m.Name
			fillAll(f, 5, "x", group)
			stays := fillAll(f, 2, "x", "other"+m.Name)
			var out []string
			for _, o := range f.Nodes {
				out = append(out, deliver(o, tasks.Request{Topic: topic, Group: group}))
			}
			got, err := m.CancelGroup(t.Context(), group)
			if err != nil || got.Cancelled != 15 || !slices.Equal(sorted(got.Delivering), sorted(out)) || got.More != 0 {
				t.Errorf("CancelGroup at %s = %+v, %v; want 15, %v", m.Name, got, err, out)
			}
			for _, o := range f.Nodes {
				if left := o.Pages(tasks.Query{Group: group}); !slices.Equal(sorted(left), sorted(out)) {
					t.Errorf("left at %s: %v", o.Name, left)
				}
				if left := o.Pages(tasks.Query{Group: "other" + m.Name}); !slices.Equal(sorted(left), stays) {
					t.Errorf("of another group, left at %s: %v", o.Name, left)
				}
			}
			got, err = m.CancelGroup(t.Context(), group)
			if err != nil || got.Cancelled != 0 || len(got.Delivering) != 3 {
				t.Errorf("CancelGroup again = %+v, %v", got, err)
			}
		}
	})
}
