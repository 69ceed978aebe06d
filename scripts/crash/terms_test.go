package crash

import (
	"testing"
	"time"
)

// TestTerms: what a topic promises beside what holds for all tasks, holds, exports and imports.
func TestTerms(t *testing.T) {
	const patience = 500 * time.Millisecond
	final := ack(on("b", 230), Done, true)
	first := func() *Delivery { return by("a", on("a", 200), 1, 100, final) }
	unrecorded := func() *Delivery { return by("a", on("a", 200), 1, 100, ack(on("b", 230), Done, false)) }
	again := func(ms int) *Delivery { return by("b", on("b", ms), 1, 100, ack(on("b", ms+50), Done, true)) }
	of := func(kind Kind, s Span, o Outcome, dueMS int) Change {
		c := Change{Span: s, Kind: kind, Outcome: o}
		if dueMS != 0 {
			c.Due = due(dueMS)
		}
		return c
	}
	created := create(on("a", 0), Done, 100)
	kept, mortal := Terms{Kept: true}, Terms{Mortal: true}
	tests := []struct {
		name       string
		terms      Terms
		changes    []Change
		deliveries []*Delivery
		faults     []Fault
		broken     Promise // the only one; empty: none
		excuse     string
		again      string
	}{
		{name: "kept, and found", terms: kept, changes: []Change{created, create(on("b", 900), Done, 100), look(on("b", 950), Done)}, deliveries: []*Delivery{first()}},
		{name: "kept, and made again", terms: kept, changes: []Change{created, anew(create(on("b", 900), Done, 100))}, deliveries: []*Delivery{first(), again(1000)}, broken: NotKept, again: AskedAgain},
		{name: "kept, and delivered again", terms: kept, changes: []Change{created, create(on("b", 900), Done, 100)}, deliveries: []*Delivery{first(), again(1000)}, broken: AfterAck},
		{name: "kept, and unknown", terms: kept, changes: []Change{created, look(on("b", 900), Missing)}, deliveries: []*Delivery{first()}, broken: NotKept},
		{name: "kept, and left out of an export", terms: kept, changes: []Change{created, of(Exported, on("b", 900), Missing, 0)}, deliveries: []*Delivery{first()}, broken: NotKept},
		{name: "kept, and lost by an empty Redis", terms: kept, changes: []Change{created, look(on("b", 900), Missing)}, deliveries: []*Delivery{first()}, faults: []Fault{fault(Drained, "c", -900, 100), lost(-1000, 600, 610)}, broken: NotKept},
		{name: "kept, and lost by an empty Redis after its node was restarted", terms: kept, changes: []Change{created, look(on("b", 900), Missing)}, deliveries: []*Delivery{first()}, faults: []Fault{fault(Drained, "a", 300, 500), lost(-1000, 600, 610)}, excuse: "a was drained"},
		{name: "kept, not recorded, and lost by an empty Redis after its node was restarted", terms: kept, changes: []Change{created, look(on("b", 900), Missing)}, deliveries: []*Delivery{unrecorded()}, faults: []Fault{fault(Drained, "a", 300, 500), lost(-1000, 600, 610)}, excuse: "a was drained"},
		{name: "kept, not answered, and lost by an empty Redis after its node was restarted", terms: kept, changes: []Change{created, look(on("b", 900), Missing)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100, ack(on("b", 230), Unknown, false))}, faults: []Fault{fault(Drained, "a", 300, 500), lost(-1000, 600, 610)}, excuse: "a was drained"},
		{name: "kept, cancelled without an answer, and lost by an empty Redis after its node was restarted", terms: kept, changes: []Change{created, cancel(on("b", 50), Unknown), of(Exported, on("b", 900), Missing, 0)}, faults: []Fault{fault(Drained, "a", 300, 500), lost(-1000, 600, 610)}, excuse: "a was drained"},
		{name: "kept, cancelled without an answer, and lost by an empty Redis", terms: kept, changes: []Change{created, cancel(on("b", 50), Unknown), of(Exported, on("b", 900), Missing, 0)}, faults: []Fault{lost(-1000, 600, 610)}, broken: LeftOut},
		{name: "kept, and a node was restarted long after the loss", terms: kept, changes: []Change{created, look(on("b", 1900), Missing)}, deliveries: []*Delivery{first()}, faults: []Fault{fault(Drained, "a", 1300, 1500), lost(-1000, 600, 610)}, broken: NotKept},
		{name: "kept, and exported as finished after it was cancelled", terms: kept, changes: []Change{created, cancel(on("b", 50), Done), of(Exported, on("b", 900), Done, 0)}},
		{name: "kept, and unknown after it was cancelled", terms: kept, changes: []Change{created, cancel(on("b", 50), Done), look(on("b", 900), Missing)}, broken: NotKept},
		{name: "finished, and not kept", changes: []Change{created, look(on("b", 900), Missing)}, deliveries: []*Delivery{first()}},
		{name: "finished while Redis takes no new tasks", terms: kept, changes: []Change{created, look(on("b", 1900), Missing)}, deliveries: []*Delivery{first()}, faults: []Fault{fault(Full, "", 210, 300)}, broken: NotKept},
		{name: "finished in the spool", terms: kept, changes: []Change{spooled(created), look(on("b", 1900), Missing)}, deliveries: []*Delivery{first()}},

		{name: "left out of an export", changes: []Change{created, of(Exported, long("b", 20, 100), Missing, 0)}, deliveries: []*Delivery{first()}, broken: LeftOut},
		{name: "left out of an export while it is finished", changes: []Change{created, of(Exported, long("b", 20, 1000), Missing, 0)}, deliveries: []*Delivery{first()}},

		{name: "imported twice", changes: []Change{of(Import, on("a", 0), Done, 100), of(Import, on("b", 900), Done, 100)}, deliveries: []*Delivery{first()}},
		{name: "imported again after it was requeued", changes: []Change{of(Import, on("a", 0), Done, 100), of(Requeue, on("b", 300), Done, 400), present(of(Import, on("b", 500), Done, 100))},
			deliveries: []*Delivery{by("a", on("a", 200), 1, 100, Settlement{Span: on("a", 210), Outcome: Done, Verb: Bury, Recorded: true}), by("a", on("a", 900), 2, 400, final)}, again: Requeued},
		{name: "made anew by an import after it was requeued", changes: []Change{of(Import, on("a", 0), Done, 100), of(Requeue, on("b", 300), Done, 400), of(Import, on("b", 500), Done, 100)},
			deliveries: []*Delivery{by("a", on("a", 200), 1, 100, Settlement{Span: on("a", 210), Outcome: Done, Verb: Bury, Recorded: true}), by("a", on("a", 900), 2, 400, final)}, broken: NotInForce},
		{name: "imported again after its end", changes: []Change{of(Import, on("a", 0), Done, 100), of(Import, on("b", 900), Done, 100)}, deliveries: []*Delivery{first(), again(1000)}, broken: AfterAck},
		{name: "imported again after its end, and a server was restarted", changes: []Change{of(Import, on("a", 0), Done, 100), of(Import, on("b", 900), Done, 100)}, deliveries: []*Delivery{first(), again(1000)}, faults: []Fault{fault(Restarted, "c", 400, 600)}, again: ImportedAgain},

		{name: "imported again after an end that was not recorded, and a server was restarted", changes: []Change{of(Import, on("a", 0), Done, 100), of(Import, on("b", 900), Done, 100)}, deliveries: []*Delivery{unrecorded(), again(1000)}, faults: []Fault{fault(Restarted, "c", 400, 600)}, again: ImportedAgain},

		{name: "held, and resumed", changes: []Change{created, of(Hold, on("b", 20), Done, 0), of(Resume, on("b", 120), Done, 200)}, deliveries: []*Delivery{by("a", on("a", 210), 1, 200, final)}},
		{name: "delivered while it is held", changes: []Change{created, of(Hold, on("b", 20), Done, 0), of(Resume, on("b", 900), Done, 980)}, deliveries: []*Delivery{first()}, broken: NotInForce},
		{name: "delivered, and the hold was not answered", changes: []Change{created, of(Hold, on("b", 20), Unknown, 0)}, deliveries: []*Delivery{first()}},
		{name: "resumed too early", changes: []Change{created, of(Hold, on("b", 20), Done, 0), of(Resume, on("b", 120), Done, 200)}, deliveries: []*Delivery{first()}, broken: NotInForce},
		{name: "held, and never resumed", changes: []Change{created, of(Hold, on("b", 20), Done, 0)}, broken: Lost},
		{name: "held, and moved", changes: []Change{created, of(Hold, on("b", 20), Done, 0), move(on("b", 40), Done, 180)}, deliveries: []*Delivery{by("a", on("a", 210), 1, 180, final)}},

		{name: "buried for good", terms: mortal, changes: []Change{created}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100, buried(on("b", 230), Done))}},
		{name: "mortal, and lost", terms: mortal, changes: []Change{created}, broken: Lost},
		{name: "skipped", terms: Terms{Skippable: true, Skipped: true}, changes: []Change{created}},
		{name: "skippable, and lost", terms: Terms{Skippable: true}, changes: []Change{created}, broken: Lost},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := NewHistory()
			h.Agree(7, test.terms)
			for _, c := range test.changes {
				h.Change(7, c)
			}
			for _, d := range test.deliveries {
				h.Deliver(7, d)
			}
			h.faults = test.faults
			v := Bench{Patience: patience, FailoverAfter: patience / 2}.Judge(h)
			if test.broken == "" && len(v.Faults) > 0 || test.broken != "" && (len(v.Faults) != 1 || v.Broken[test.broken] != 1) {
				t.Errorf("want %q broken, got %v", test.broken, v)
			}
			one(t, "excuse", v.Excused, test.excuse)
			if test.again != "" && v.Again[test.again] != 1 {
				t.Errorf("want one delivery again because %q, got %v", test.again, v)
			}
		})
	}
}
