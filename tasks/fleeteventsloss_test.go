package tasks_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
)

// Messages may be lost: each event comes once, and in the order of its node.
func TestFleetEventsOverALossyBus(t *testing.T) {
	fleetBubble(t, 3, func(t *testing.T, f *fleet) {
		seed := rand.Uint64()
		t.Log("seed", seed)
		rng := rand.New(rand.NewPCG(seed, 1))
		a := f.nodes[0]
		a.t = t
		u := a.subscribe(EventFilter{Kinds: []EventKind{EventScheduled}})
		wanted, got := map[string][]string{}, map[string][]string{}
		lost := make(chan bool, 1)
		lost <- false
		f.lose(func(_, _ string, _ []byte) bool {
			drop := <-lost
			lost <- drop
			return drop && rand.IntN(2) == 0
		})
		read := func(patience time.Duration) {
			for {
				n, err := next(u, patience)
				if err != nil {
					want(t, "Next", err, context.DeadlineExceeded)
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
			n := f.nodes[rng.IntN(3)]
			n.t = t
			for range rng.IntN(5) {
				id := n.idAt(rng.IntN(fleetShards))
				want(t, "Create", n.createOwned(Request{ID: id, Topic: "x", Delay: time.Hour}), nil)
				wanted[n.name] = append(wanted[n.name], id)
			}
			<-lost
			lost <- rng.IntN(2) == 0
			read(time.Duration(1+rng.IntN(400)) * time.Millisecond)
		}
		<-lost
		lost <- false
		read(5 * time.Second)
		for _, n := range f.nodes {
			if !slices.Equal(got[n.name], wanted[n.name]) {
				t.Errorf("node %s: told %d, want %d", n.name, len(got[n.name]), len(wanted[n.name]))
			}
		}
	})
}
