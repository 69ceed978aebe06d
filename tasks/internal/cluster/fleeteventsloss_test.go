package cluster_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// Messages may be lost: each event comes once, and in the order of its node.
func TestFleetEventsOverALossyBus(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		seed := rand.Uint64()
		t.Log("seed", seed)
		rng := rand.New(rand.NewPCG(seed, 1))
		a := f.Nodes[0]
		a.T = t
		u := subscribeFleet(a, EventFilter{Kinds: []EventKind{EventScheduled}})
		wanted, got := map[string][]string{}, map[string][]string{}
		lost := make(chan bool, 1)
		lost <- false
		f.Lose(func(_, _ string, _ []byte) bool {
			drop := <-lost
			lost <- drop
			return drop && rand.IntN(2) == 0
		})
		read := func(patience time.Duration) {
			for {
				n, err := next(u, patience)
				if err != nil {
					rig.Want(t, "Next", err, context.DeadlineExceeded)
					return
				}
				if n.Gap || n.Lost > 0 {
					t.Fatalf("told %v", textOf(&n))
				}
				for _, e := range n.Events {
					got[n.Node] = append(got[n.Node], e.ID)
				}
			}
		}
		for range 60 {
			n := f.Nodes[rng.IntN(3)]
			n.T = t
			for range rng.IntN(5) {
				id := n.IDAt(rng.IntN(rig.FleetShards))
				rig.Want(t, "Create", n.CreateOwned(Request{ID: id, Topic: "x", Delay: time.Hour}), nil)
				wanted[n.Name] = append(wanted[n.Name], id)
			}
			<-lost
			lost <- rng.IntN(2) == 0
			read(time.Duration(1+rng.IntN(400)) * time.Millisecond)
		}
		<-lost
		lost <- false
		read(5 * time.Second)
		for _, n := range f.Nodes {
			if !slices.Equal(got[n.Name], wanted[n.Name]) {
				t.Errorf("node %s: told %d, want %d", n.Name, len(got[n.Name]), len(wanted[n.Name]))
			}
		}
	})
}
