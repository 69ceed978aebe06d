package tasks

import (
	"slices"
	"testing"
)

func TestPurgeAtAllNodes(t *testing.T) {
	crewed(t, 3, func(t *testing.T, c *crew) {
		c.fill(7, "x", "")
		stays := c.fill(2, "y", "")
		c.nodes[2].deliver(Request{Topic: "x"})
		p, err := c.nodes[1].Purge(t.Context(), "x")
		if err != nil || p != (Purged{Cancelled: 21, Delivering: 1}) {
			t.Errorf("Purge = %+v, %v", p, err)
		}
		if left := c.nodes[0].pages(Query{State: Pending}); !slices.Equal(sorted(left), stays) {
			t.Errorf("left: %v", left)
		}
	})
}

func TestCancelGroupAtAllNodes(t *testing.T) {
	crewed(t, 3, func(t *testing.T, c *crew) {
		for _, m := range c.nodes {
			group, topic := "g"+m.name, "y"+m.name
			c.fill(5, "x", group)
			stays := c.fill(2, "x", "other"+m.name)
			var out []string
			for _, o := range c.nodes {
				out = append(out, o.deliver(Request{Topic: topic, Group: group}))
			}
			got, err := m.CancelGroup(t.Context(), group)
			if err != nil || got.Cancelled != 15 || !slices.Equal(sorted(got.Delivering), sorted(out)) || got.More != 0 {
				t.Errorf("CancelGroup at %s = %+v, %v; want 15, %v", m.name, got, err, out)
			}
			for _, o := range c.nodes {
				if left := o.pages(Query{Group: group}); !slices.Equal(sorted(left), sorted(out)) {
					t.Errorf("left at %s: %v", o.name, left)
				}
				if left := o.pages(Query{Group: "other" + m.name}); !slices.Equal(sorted(left), stays) {
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
