package tasks_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// busFaults are the ways in which the bus of a member takes no messages.
var busFaults = map[string]func(m *faultyMember){
	"Silent":  func(m *faultyMember) { m.hold("Send") },
	"Failing": func(m *faultyMember) { m.fail("Send", slices.Repeat([]error{recovery.ErrUnheard}, 10_000)...) },
}

// A receiver that takes tasks in turn does not wait for the owner of a task while no message can be
// sent.
func TestSettleElsewhereInAnOutage(t *testing.T) {
	for name, stop := range busFaults {
		t.Run(name, func(t *testing.T) {
			fleetBubble(t, 2, func(t *testing.T, f *fleet) {
				a, b := f.nodes[0], f.nodes[1]
				for range 3 {
					b.create(Request{Topic: "x"})
				}
				ds := append(a.pullAny("x"), append(a.pullAny("x"), a.pullAny("x")...)...)
				if len(ds) != 3 {
					t.Fatalf("reserved %d", len(ds))
				}
				patience := a.Engine().Config.AnswerWithin / engine.PatienceShare
				stop(a.member)
				for i, limit := range []time.Duration{patience, patience / 5, patience / 5} {
					began := time.Now()
					answer, err := a.Settle(t.Context(), Verdict{Verb: Ack}, []string{ds[i].Receipt()})
					want(t, "Settle", err, nil)
					if e := answer[0].Err; !errors.Is(e, ErrUnavailable) && !errors.Is(e, ErrUnknown) {
						t.Errorf("the answer is %v", e)
					}
					if took := time.Since(began); took > limit {
						t.Errorf("the answer came after %v", took)
					}
				}
				a.member.heal()
				pass(3 * time.Second) // the bus has had time for what it was given
				for i := range ds {
					answer, err := a.Settle(t.Context(), Verdict{Verb: Ack}, []string{ds[i].Receipt()})
					want(t, "Settle", err, nil)
					want(t, "its answer", answer[0].Err, nil)
				}
			})
		})
	}
}

// pullAny reserves one task that is ready anywhere.
func (n *node) pullAny(topic string) []Delivery {
	n.t.Helper()
	ds, err := n.Reserve(n.t.Context(), topic, 1, 0, 0)
	want(n.t, "Reserve", err, nil)
	return ds
}

// What falls due while no message can be sent reaches the receivers of other nodes soon after that,
// and not when they announce their demand again.
func TestOffersAfterAnOutage(t *testing.T) {
	for name, stop := range busFaults {
		t.Run(name, func(t *testing.T) {
			fleetBubble(t, 2, func(t *testing.T, f *fleet) {
				a, b := f.nodes[0], f.nodes[1]
				waits := a.reserve(t.Context(), "x", 1, time.Minute, 0)
				pass(time.Millisecond) // its demand is known
				stop(a.member)
				stop(b.member)
				b.create(Request{Topic: "x"}) // offered in vain
				pass(3 * time.Second)
				b.create(Request{Topic: "x"})
				if len(waits) > 0 {
					t.Fatal("a task came without a message")
				}
				a.member.heal()
				b.member.heal()
				pass(1500 * time.Millisecond)
				if len(waits) == 0 {
					t.Error("no task came")
				}
			})
		})
	}
}
