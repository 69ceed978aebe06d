package crash

import (
	"testing"
	"time"
)

// made is a creation whose answer has the id.
func made(s Span, dueMS int, id string) Change {
	c := create(s, Done, dueMS)
	c.ID = id
	return c
}

func spooled(c Change) Change { c.Spooled = true; return c }

func present(c Change) Change { c.Present = true; return c }

func anew(c Change) Change { c.Anew = true; return c }

func grouped(c Change) Change { c.Group = true; return c }

func listed(s Span, o Outcome) Change { return Change{Span: s, Kind: Listed, Outcome: o} }

func requeue(s Span, o Outcome, dueMS int) Change {
	return Change{Span: s, Kind: Requeue, Outcome: o, Due: due(dueMS)}
}

func called(id string, d *Delivery) *Delivery { d.ID = id; return d }

func buried(s Span, o Outcome) Settlement {
	return Settlement{Span: s, Verb: Bury, Outcome: o, Recorded: o == Done}
}

// TestPromisesOfACampaign: the promises of fleets beyond TestBench. Each is reported when it is
// broken, and not when a fault explains it.
func TestPromisesOfACampaign(t *testing.T) {
	const patience = 500 * time.Millisecond
	final := ack(on("b", 230), Done, true)
	first := func() *Delivery { return by("a", on("a", 200), 1, 100, final) }
	later := func(ms int, settled ...Settlement) *Delivery {
		return by("b", on("b", ms), 1, 100, append(settled, ack(on("b", ms+50), Done, true))...)
	}
	loss := Fault{Trouble: Rewound, Lost: due(50), Start: due(300), End: due(400)}
	dead := buried(on("b", 230), Done)
	extended := Settlement{Span: on("b", 300), Verb: Extend, Outcome: Done, Recorded: true, Until: due(5000)}
	tests := []struct {
		name       string
		deliver    bool
		changes    []Change
		deliveries []*Delivery
		faults     []Fault
		broken     Promise // the only one; empty: none
		excuse     string
		again      string
	}{
		{name: "delivered under the id that was told", changes: []Change{made(on("a", 0), 100, "x")}, deliveries: []*Delivery{called("x", first())}},
		{name: "delivered under another id", changes: []Change{made(on("a", 0), 100, "x")}, deliveries: []*Delivery{called("y", first())}, broken: WrongID},
		{name: "delivered under an id that no answer had", changes: []Change{create(on("a", 0), Unknown, 100)}, deliveries: []*Delivery{called("y", first())}},

		{name: "made twice", changes: []Change{made(on("a", 0), 100, "x"), anew(made(on("b", 50), 100, "x"))}, deliveries: []*Delivery{first()}, broken: MadeTwice},
		{name: "made once more after it was finished", changes: []Change{made(on("a", 0), 100, "x"), anew(made(on("b", 300), 100, "x"))}, deliveries: []*Delivery{first(), later(400)}, again: AskedAgain},
		{name: "made when the answer was lost, and asked for again", changes: []Change{create(on("a", 0), Unknown, 100), anew(made(on("b", 50), 100, "x"))}, deliveries: []*Delivery{first()}},
		{name: "a replacement finds nothing", changes: []Change{made(on("a", 0), 100, "x"), replace(on("b", 50), Done, 100, true)}, deliveries: []*Delivery{first()}, broken: MadeTwice},
		{name: "a directory that was lost is no excuse", changes: []Change{made(on("a", 60), 900, "x"), look(on("b", 410), Missing)}, deliveries: []*Delivery{by("a", on("a", 1000), 1, 900, ack(on("a", 1020), Done, true))}, faults: []Fault{loss}, broken: WrongMissing},

		{name: "a list leaves it out", changes: []Change{create(on("a", 0), Done, 5000), listed(on("b", 900), Missing)}, deliveries: []*Delivery{by("a", on("a", 5100), 1, 5000, ack(on("a", 5120), Done, true))}, broken: LeftOut},
		{name: "a list leaves out what falls due", changes: []Change{create(on("a", 0), Done, 1000), listed(on("b", 900), Missing)}, deliveries: []*Delivery{by("a", on("a", 5100), 1, 1000, ack(on("a", 5120), Done, true))}},
		{name: "a list leaves out what moves", changes: []Change{create(on("a", 0), Done, 5000), move(long("a", 890, 50), Done, 6000), listed(on("b", 900), Missing)}, deliveries: []*Delivery{by("a", on("a", 6100), 1, 6000, ack(on("a", 6120), Done, true))}},

		{name: "spooled, and unknown while its node lives", changes: []Change{spooled(create(on("a", 0), Done, 100)), look(on("b", 50), Missing)}, deliveries: []*Delivery{first()}, faults: []Fault{fault(CutOff, "a", -900, 90)}, broken: WrongMissing},
		{name: "spooled, and unknown while its node is down", changes: []Change{spooled(create(on("a", 0), Done, 100)), look(on("b", 50), Missing)}, deliveries: []*Delivery{first()}, faults: []Fault{fault(Killed, "a", 20, 90)}, excuse: "in the spool of a"},
		{name: "spooled, and unknown while its node has another spool", changes: []Change{spooled(create(on("a", 0), Done, 100)), look(on("b", 50), Missing)}, deliveries: []*Delivery{first()}, faults: []Fault{fault(OtherSpool, "a", 20, 90)}, broken: WrongMissing},
		{name: "spooled, and unknown while another node is down", changes: []Change{spooled(create(on("a", 0), Done, 100)), look(on("b", 50), Missing)}, deliveries: []*Delivery{first()}, faults: []Fault{fault(Killed, "c", 20, 90)}, broken: WrongMissing},

		{name: "shown after it was cancelled", changes: []Change{create(on("a", 0), Done, 100), cancel(on("a", 20), Done), look(on("b", 50), Done)}, broken: ShownAfter},
		{name: "shown after it was cancelled, and made anew", changes: []Change{create(on("a", 0), Done, 100), cancel(on("a", 20), Done), replace(on("a", 40), Unknown, 900, false), look(on("b", 60), Done)}},
		{name: "shown while it is cancelled", changes: []Change{create(on("a", 0), Done, 100), cancel(long("a", 20, 40), Done), look(on("b", 50), Done)}},

		{name: "after the cancellation of its group", changes: []Change{create(on("a", 0), Done, 100), grouped(cancel(on("b", 50), Done))}, deliveries: []*Delivery{first()}, broken: AfterCancel},
		{name: "after the cancellation of a group that it may have joined later", changes: []Change{create(on("a", 0), Unknown, 100), grouped(cancel(on("b", 50), Done))}, deliveries: []*Delivery{first()}},
		{name: "dead when its group was cancelled", changes: []Change{create(on("a", 0), Done, 100), grouped(cancel(on("b", 300), Done)), requeue(on("b", 400), Done, 450)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100, dead), by("a", on("a", 500), 1, 450, ack(on("a", 520), Done, true))}, again: Requeued},
		{name: "after its cancellation, which Redis has lost", changes: []Change{create(on("a", 0), Done, 900), cancel(on("b", 100), Done)}, deliveries: []*Delivery{later(950)}, faults: []Fault{loss}, broken: AfterCancel},
		{name: "after its acknowledgement, which Redis has lost", changes: []Change{create(on("a", 0), Done, 100)}, deliveries: []*Delivery{first(), later(900)}, faults: []Fault{loss}, broken: AfterAck},
		{name: "lost with its creation by Redis", changes: []Change{create(on("a", 60), Done, 900)}, faults: []Fault{loss}, broken: Lost},

		{name: "made and buried in what Redis has lost", changes: []Change{create(on("a", 60), Done, 100)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100, dead)}, faults: []Fault{loss}, broken: Lost},
		{name: "made and buried in what Redis has lost, and its shard moved", changes: []Change{create(on("a", 60), Done, 100)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100, dead)}, faults: []Fault{loss, fault(Drained, "a", 250, 600)}, excuse: "lost when it was dead"},
		{name: "made anew and buried in what Redis has lost", changes: []Change{create(on("a", 0), Done, 20), anew(create(on("a", 100), Done, 20))}, deliveries: []*Delivery{by("a", on("a", 30), 1, 20, ack(on("a", 40), Done, true)), by("a", on("a", 200), 1, 20, dead)}, faults: []Fault{loss}, broken: Lost, again: AskedAgain},
		{name: "made anew and buried in what Redis has lost, and its shard moved", changes: []Change{create(on("a", 0), Done, 20), anew(create(on("a", 100), Done, 20))}, deliveries: []*Delivery{by("a", on("a", 30), 1, 20, ack(on("a", 40), Done, true)), by("a", on("a", 200), 1, 20, dead)}, faults: []Fault{loss, fault(Drained, "a", 250, 600)}, excuse: "lost when it was dead", again: AskedAgain},
		{name: "buried in what Redis has lost, and made before", changes: []Change{create(on("a", 0), Done, 100)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100, dead)}, faults: []Fault{loss}, broken: Lost},
		{name: "made in what Redis has lost, and buried after it", changes: []Change{create(on("a", 60), Done, 400)}, deliveries: []*Delivery{by("a", on("a", 450), 1, 400, buried(on("b", 480), Done))}, faults: []Fault{loss}, broken: Lost},

		{name: "after its burial", changes: []Change{create(on("a", 0), Done, 100)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100, dead), later(500)}, broken: AfterBury},
		{name: "after its burial, and requeued", changes: []Change{create(on("a", 0), Done, 100), requeue(on("b", 400), Done, 450)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100, dead), by("b", on("b", 500), 1, 450, ack(on("b", 550), Done, true))}, again: Requeued},
		{name: "buried, and never requeued", changes: []Change{create(on("a", 0), Done, 100)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100, dead)}, broken: Lost},
		{name: "dead, and passed over by a requeue", changes: []Change{create(on("a", 0), Done, 100), requeue(on("b", 400), Missing, 450), requeue(on("b", 800), Done, 850)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100, dead), by("b", on("b", 900), 1, 850, ack(on("b", 950), Done, true))}, broken: WrongMissing},

		{name: "again within a lease that was extended", changes: []Change{create(on("a", 0), Done, 100)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100, extended), by("a", on("a", 2000), 2, 100, ack(on("b", 2100), Done, true))}, broken: Repeated},
		{name: "again after a lease that was extended", changes: []Change{create(on("a", 0), Done, 100)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100, extended), by("a", on("a", 5100), 2, 100, ack(on("b", 5200), Done, true))}, again: LeaseOut},
		{name: "again while Redis was down", changes: []Change{create(on("a", 0), Done, 100)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100), by("b", on("b", 800), 1, 100, ack(on("b", 900), Done, true))}, faults: []Fault{fault(Down, "", 150, 900)}, broken: Repeated},
		{name: "again when its node was half-open", changes: []Change{create(on("a", 0), Done, 100)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100), by("b", on("b", 800), 1, 100, ack(on("b", 900), Done, true))}, faults: []Fault{fault(HalfOpen, "a", 150, 900)}, again: "a node was half-open"},
		{name: "again when its node was deaf", changes: []Change{create(on("a", 0), Done, 100)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100), by("b", on("b", 800), 1, 100, ack(on("b", 900), Done, true))}, faults: []Fault{fault(Deaf, "a", 150, 900)}, broken: Repeated},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := NewHistory()
			for _, c := range test.changes {
				h.Change(7, c)
			}
			for _, d := range test.deliveries {
				h.Deliver(7, d)
			}
			h.faults = test.faults
			v := Bench{Deliver: test.deliver, Patience: patience, FailoverAfter: patience / 2}.Judge(h)
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
