package cluster_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// busFaults are the ways in which the bus of a member takes no messages.
var busFaults = map[string]func(m *rig.FaultyMember){
	"Silent":  func(m *rig.FaultyMember) { m.Hold("Send") },
	"Failing": func(m *rig.FaultyMember) { m.Fail("Send", slices.Repeat([]error{recovery.ErrUnheard}, 10_000)...) },
}

// A receiver that takes tasks in turn does not wait for the owner of a task while no message can be
// sent.
func TestSettleElsewhereInAnOutage(t *testing.T) {
	for name, stop := range busFaults {
		t.Run(name, func(t *testing.T) {
			rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
				a, b := f.Nodes[0], f.Nodes[1]
				for range 3 {
					b.Create(Request{Topic: "x"})
				}
				ds := append(pullWaiting(a, "x"), append(pullWaiting(a, "x"), pullWaiting(a, "x")...)...)
				if len(ds) != 3 {
					t.Fatalf("reserved %d", len(ds))
				}
				patience := a.Engine().Config.AnswerWithin / engine.PatienceShare
				stop(a.Member)
				for i, limit := range []time.Duration{patience, patience / 5, patience / 5} {
					began := time.Now()
					answer, err := a.Settle(t.Context(), Verdict{Verb: Ack}, []string{ds[i].Receipt()})
					rig.Want(t, "Settle", err, nil)
					if e := answer[0].Err; !errors.Is(e, ErrUnavailable) && !errors.Is(e, ErrUnknown) {
						t.Errorf("the answer is %v", e)
					}
					if took := time.Since(began); took > limit {
						t.Errorf("the answer came after %v", took)
					}
				}
				a.Member.Heal()
				rig.Pass(3 * time.Second) // the bus has had time for what it was given
				for i := range ds {
					answer, err := a.Settle(t.Context(), Verdict{Verb: Ack}, []string{ds[i].Receipt()})
					rig.Want(t, "Settle", err, nil)
					rig.Want(t, "its answer", answer[0].Err, nil)
				}
			})
		})
	}
}

// pullWaiting reserves one task that is ready anywhere.
func pullWaiting(n *rig.Node, topic string) []Delivery {
	n.T.Helper()
	ds, err := n.Reserve(n.T.Context(), topic, 1, 0, 0)
	rig.Want(n.T, "Reserve", err, nil)
	return ds
}

// What falls due while no message can be sent reaches the receivers of other nodes soon after that,
// and not when they announce their demand again.
func TestOffersAfterAnOutage(t *testing.T) {
	for name, stop := range busFaults {
		t.Run(name, func(t *testing.T) {
			rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
				a, b := f.Nodes[0], f.Nodes[1]
				waits := a.StartReserve(t.Context(), "x", 1, time.Minute, 0)
				rig.Pass(time.Millisecond) // its demand is known
				stop(a.Member)
				stop(b.Member)
				b.Create(Request{Topic: "x"}) // offered in vain
				rig.Pass(3 * time.Second)
				b.Create(Request{Topic: "x"})
				if len(waits) > 0 {
					t.Fatal("a task came without a message")
				}
				a.Member.Heal()
				b.Member.Heal()
				rig.Pass(1500 * time.Millisecond)
				if len(waits) == 0 {
					t.Error("no task came")
				}
			})
		})
	}
}
