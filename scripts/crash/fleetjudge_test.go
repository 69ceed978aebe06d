package crash

import (
	"strings"
	"testing"
	"time"
)

// on is a span of 10 ms at a node that begins ms after the start.
func on(node string, ms int) Span {
	s := at(1, ms)
	s.Node = node
	return s
}

// long is a span of another length.
func long(node string, ms, length int) Span {
	s := on(node, ms)
	s.End = s.Start.Add(time.Duration(length) * time.Millisecond)
	return s
}

// by is a delivery of a task of one node, asked for at another.
func by(owner string, s Span, attempt, dueMS int, settled ...Settlement) *Delivery {
	d := deliver(s, attempt, dueMS, settled...)
	d.Owner = owner
	return d
}

// signed is a webhook that says when it began.
func signed(d *Delivery, ms int) *Delivery {
	d.Signed = due(ms).Truncate(time.Second)
	return d
}

func fault(trouble Trouble, node string, from, to int) Fault {
	return Fault{Trouble: trouble, Node: node, Start: due(from), End: due(to)}
}

// lost is a loss of what was written since an instant.
func lost(since, from, to int) Fault {
	f := fault(Rewound, "", from, to)
	f.Lost = due(since)
	return f
}

func look(s Span, o Outcome) Change { return Change{Span: s, Kind: Look, Outcome: o} }

func fire(s Span, o Outcome, dueMS int) Change {
	return Change{Span: s, Kind: Fire, Outcome: o, Due: due(dueMS)}
}

func replace(s Span, o Outcome, dueMS int, anew bool) Change {
	return Change{Span: s, Kind: Replace, Outcome: o, Due: due(dueMS), Anew: anew}
}

func TestBench(t *testing.T) {
	const patience = 500 * time.Millisecond
	created := create(on("a", 0), Done, 100)
	final := ack(on("a", 230), Done, true)
	loose := ack(on("a", 230), Done, false) // not recorded
	later := func(ms int) Settlement { return ack(on("b", ms), Done, true) }
	first := by("a", on("a", 200), 1, 100, final)
	release := Settlement{Span: on("b", 220), Outcome: Done}
	tests := []struct {
		name       string
		deliver    bool
		changes    []Change
		deliveries []*Delivery
		faults     []Fault
		fault      string // part of the only fault; empty: there is none
		excuse     string // part of the only excuse; empty: there is none
		again      string // the reason for the last delivery
	}{
		{name: "delivered once", changes: []Change{created}, deliveries: []*Delivery{first}},
		{name: "received at another node than the one asked before", changes: []Change{created}, deliveries: []*Delivery{by("a", on("b", 200), 1, 100, later(300))}},
		{name: "lost", changes: []Change{created}, faults: []Fault{fault(Killed, "a", 50, 90)}, fault: "lost"},
		{name: "early", changes: []Change{create(on("a", 0), Done, 211)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 211, final)}, fault: "early by 1ms"},
		{name: "early is never excused by less than a move", deliver: true, changes: []Change{create(on("a", 0), Done, 211)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 211, final)}, faults: []Fault{fault(Killed, "a", 100, 300)}, fault: "early by 1ms"},
		{name: "never asked for", deliveries: []*Delivery{first}, fault: "never asked for"},

		{name: "old deadline after a move elsewhere", changes: []Change{created, move(on("b", 20), Done, 150)}, deliveries: []*Delivery{first}, fault: "not in force"},
		{name: "old deadline while it is being moved", changes: []Change{created, move(long("b", 20, 200), Done, 250)}, deliveries: []*Delivery{first}},
		{name: "old deadline by a node that is cut off", deliver: true, changes: []Change{created, move(on("b", 120), Done, 150)}, deliveries: []*Delivery{first}, faults: []Fault{fault(CutOff, "a", 50, 400)}, excuse: "a was cut off"},
		{name: "old deadline by a node that is cut off and should pause", changes: []Change{created, move(on("b", 120), Done, 150)}, deliveries: []*Delivery{first}, faults: []Fault{fault(CutOff, "a", 50, 400)}, fault: "not in force"},
		{name: "a move whose answer was lost comes late", changes: []Change{created, move(on("b", 20), Unknown, 150), move(on("b", 40), Done, 180)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 150, final)}},
		{name: "a move whose answer was lost comes too late", changes: []Change{created, move(on("b", 20), Unknown, 150), move(on("b", 900), Done, 990)}, deliveries: []*Delivery{by("a", on("a", 1200), 1, 150, final)}, fault: "not in force"},
		{name: "a move whose answer was lost, held up by a fault", changes: []Change{created, move(on("b", 20), Unknown, 150), move(on("b", 900), Done, 990)}, deliveries: []*Delivery{by("a", on("a", 1200), 1, 150, final)}, faults: []Fault{fault(Stopped, "a", 25, 800)}},
		{name: "fired", changes: []Change{create(on("a", 0), Done, 5000), fire(on("b", 50), Done, 55)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 55, final)}},
		{name: "fired without an answer", changes: []Change{create(on("a", 0), Done, 5000), fire(on("b", 50), Unknown, 0)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 55, final)}},
		{name: "fired without an answer, and due before that", changes: []Change{create(on("a", 0), Done, 5000), fire(on("b", 50), Unknown, 0)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 45, final)}, fault: "not in force"},
		{name: "fired, and then moved", changes: []Change{create(on("a", 0), Done, 5000), fire(on("b", 50), Done, 55), move(on("b", 70), Done, 4000)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 55, final)}, fault: "not in force"},

		{name: "delivered after a cancellation elsewhere", changes: []Change{created, cancel(on("b", 150), Done)}, deliveries: []*Delivery{first}, fault: "cancellation"},
		{name: "cancelled while it is handed out", changes: []Change{created, cancel(on("b", 205), Done)}, deliveries: []*Delivery{by("a", long("a", 200, 100), 1, 100)}, fault: "cancellation"},
		{name: "cancelled while its node stood still", changes: []Change{created, cancel(on("b", 900), Done)}, deliveries: []*Delivery{by("a", long("a", 200, 1000), 1, 100)}, faults: []Fault{fault(Stopped, "a", 210, 1190)}},
		{name: "cancelled, by a node that is cut off", deliver: true, changes: []Change{created, cancel(on("b", 150), Done)}, deliveries: []*Delivery{first}, faults: []Fault{fault(CutOff, "a", 50, 400)}, excuse: "a was cut off"},
		{name: "cancelled, by a node that is cut off later", deliver: true, changes: []Change{created, cancel(on("b", 150), Done)}, deliveries: []*Delivery{first}, faults: []Fault{fault(CutOff, "a", 180, 400)}, fault: "cancellation"},
		{name: "not found, and lost its node in the act", changes: []Change{created, cancel(long("b", 50, 500), Missing)}, faults: []Fault{fault(Killed, "a", 60, 400)}},
		{name: "not found, and nothing happened", changes: []Change{created, cancel(on("b", 50), Missing)}, faults: []Fault{fault(Killed, "a", 3000, 4000)}, fault: "404"},
		{name: "seen, then not found", changes: []Change{created, look(on("b", 50), Missing)}, deliveries: []*Delivery{first}, fault: "404"},
		{name: "not found after its node was killed", changes: []Change{created, look(on("b", 50), Missing)}, deliveries: []*Delivery{first}, faults: []Fault{fault(Killed, "a", 40, 90)}, fault: "404"},
		{name: "not found after it was acknowledged", changes: []Change{created, look(on("b", 235), Missing)}, deliveries: []*Delivery{first}},
		{name: "not found before its creation was answered", changes: []Change{create(long("a", 0, 80), Done, 100), look(on("b", 50), Missing)}, deliveries: []*Delivery{first}},

		{name: "again after a recorded ack", changes: []Change{created}, deliveries: []*Delivery{first, by("b", on("b", 500), 1, 100)}, fault: "acknowledgement was recorded"},
		{name: "again after a recorded ack, though its node was killed", deliver: true, changes: []Change{created}, deliveries: []*Delivery{first, by("b", on("b", 500), 1, 100)}, faults: []Fault{fault(Killed, "a", 300, 900)}, fault: "acknowledgement was recorded"},
		{name: "again after a recorded ack, by a node that is cut off", deliver: true, changes: []Change{created}, deliveries: []*Delivery{first, by("b", on("b", 500), 1, 100, later(600))}, faults: []Fault{fault(Stopped, "b", 10, 30), fault(CutOff, "b", 50, 900)}, excuse: "b was cut off", again: FinishedElsewhere},
		{name: "again after a recorded ack, by a node that should pause", changes: []Change{created}, deliveries: []*Delivery{first, by("b", on("b", 500), 1, 100, later(600))}, faults: []Fault{fault(CutOff, "b", 50, 900)}, fault: "acknowledgement was recorded"},
		{name: "again after a recorded ack, by a node that has woken up", deliver: true, changes: []Change{created}, deliveries: []*Delivery{first, by("b", on("c", 1000), 1, 100)}, faults: []Fault{fault(Stopped, "b", 50, 900)}, excuse: "b was stopped"},
		{name: "again after a recorded ack, by a node that woke up long ago", deliver: true, changes: []Change{created}, deliveries: []*Delivery{first, by("b", on("c", 1500), 1, 100)}, faults: []Fault{fault(Stopped, "b", 50, 900)}, fault: "acknowledgement was recorded"},
		{name: "again after a recorded ack, and another node was cut off", deliver: true, changes: []Change{created}, deliveries: []*Delivery{first, by("b", on("b", 500), 1, 100)}, faults: []Fault{fault(CutOff, "c", 50, 900)}, fault: "acknowledgement was recorded"},
		{name: "again after a recorded ack, and its node was cut off only then", deliver: true, changes: []Change{created}, deliveries: []*Delivery{first, by("b", on("b", 500), 1, 100)}, faults: []Fault{fault(CutOff, "b", 300, 900)}, fault: "acknowledgement was recorded"},
		{name: "handed out before the ack, received after it", changes: []Change{created}, deliveries: []*Delivery{first, by("b", long("b", 150, 900), 1, 100)}, faults: []Fault{fault(Stopped, "b", 160, 1000)}, again: "a node was stopped"},
		{name: "a webhook that was sent after its node had woken up", changes: []Change{created}, deliveries: []*Delivery{first, signed(by("b", on("b", 2500), 1, 100), 2100)}, faults: []Fault{fault(Stopped, "b", 150, 2050)}, fault: "acknowledgement was recorded"},
		{name: "a webhook of the second of its ack, and another node was stopped", changes: []Change{created}, deliveries: []*Delivery{first, signed(by("b", on("b", 500), 1, 100), 450)}, faults: []Fault{fault(Stopped, "c", 100, 450)}, fault: "acknowledgement was recorded"},
		{name: "a webhook of the second of its ack, and its node was stopped later", changes: []Change{created}, deliveries: []*Delivery{first, signed(by("b", on("b", 500), 1, 100), 450)}, faults: []Fault{fault(Stopped, "b", 600, 900)}, fault: "acknowledgement was recorded"},
		{name: "a webhook in which its node was stopped", changes: []Change{created}, deliveries: []*Delivery{first, signed(by("b", on("b", 2060), 1, 100), 150)}, faults: []Fault{fault(Stopped, "b", 160, 2050)}, again: "a node was stopped"},

		{name: "again after a crash", changes: []Change{created}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100), by("b", on("b", 800), 1, 100, later(900))}, faults: []Fault{fault(Killed, "a", 250, 2000)}, again: "a node was killed"},
		{name: "again after a node has woken up, and before it had noticed", deliver: true, changes: []Change{created}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100), by("b", on("b", 300), 1, 100, later(400))}, faults: []Fault{fault(Stopped, "a", -900, 190)}, again: "a node was stopped"},
		{name: "again after a node has woken up, which should have paused", changes: []Change{created}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100), by("b", on("b", 300), 1, 100, later(400))}, faults: []Fault{fault(Stopped, "a", -900, 190)}, fault: "without a reason"},
		{name: "again after a node has woken up long ago", deliver: true, changes: []Change{created}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100), by("b", on("b", 300), 1, 100, later(400))}, faults: []Fault{fault(Stopped, "a", -2900, -400)}, fault: "without a reason"},
		{name: "again after a node was started anew", deliver: true, changes: []Change{created}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100), by("b", on("b", 300), 1, 100, later(400))}, faults: []Fault{fault(Killed, "a", -900, 190)}, fault: "without a reason"},
		{name: "again after a short cut, by a node that was certain still", changes: []Change{created}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100), by("b", on("b", 800), 1, 100, later(900))}, faults: []Fault{fault(CutOff, "a", 50, 120)}, again: "a node was cut off"},
		{name: "again after a short cut, by a node that should have paused", changes: []Change{created}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100), by("b", on("b", 800), 1, 100, later(900))}, faults: []Fault{fault(CutOff, "a", -70, 120)}, fault: "without a reason"},
		{name: "again after another node's crash", changes: []Change{created}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100), by("b", on("b", 800), 1, 100, later(900))}, faults: []Fault{fault(Killed, "c", 250, 2000)}, fault: "without a reason"},
		{name: "again within its lease after a hand-over", changes: []Change{created}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100), by("b", on("b", 800), 1, 100, later(900))}, faults: []Fault{fault(HandedOver, "a", 250, 2000)}, fault: "without a reason"},
		{name: "again within its lease after a hand-over without Redis", changes: []Change{created}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100), by("b", on("b", 800), 1, 100, later(900))}, faults: []Fault{fault(HandedOver, "a", 250, 2000), fault(Down, "", 240, 500)}, again: "a node was handed over"},
		{name: "again within its lease after a hand-over before Redis was away", changes: []Change{created}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100), by("b", on("b", 800), 1, 100, later(900))}, faults: []Fault{fault(HandedOver, "a", 250, 600), fault(Down, "", 700, 900)}, fault: "without a reason"},
		{name: "again after an unrecorded ack and a crash", changes: []Change{created}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100, loose), by("b", on("b", 800), 1, 100, later(900))}, faults: []Fault{fault(Killed, "a", 250, 2000)}, again: "a node was killed"},
		{name: "again after an unrecorded ack, and nothing happened", changes: []Change{created}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100, loose), by("b", on("b", 1800), 2, 100, later(1900))}, fault: "without a reason"},
		{name: "again after an unrecorded ack, at a third node that was cut off then", changes: []Change{created}, deliveries: []*Delivery{by("b", on("b", 200), 1, 100, loose), by("b", on("b", 1800), 2, 100, later(1900))}, faults: []Fault{fault(CutOff, "c", 150, 1700)}, again: "a node was cut off"},
		{name: "again after an unrecorded ack, and a third node was cut off later", changes: []Change{created}, deliveries: []*Delivery{by("b", on("b", 200), 1, 100, loose), by("b", on("b", 2800), 2, 100, later(2900))}, faults: []Fault{fault(CutOff, "c", 1250, 2700)}, fault: "without a reason"},
		{name: "again after a recorded ack, and a third node was cut off then", changes: []Change{created}, deliveries: []*Delivery{by("b", on("b", 200), 1, 100, final), by("b", on("b", 1800), 2, 100, later(1900))}, faults: []Fault{fault(CutOff, "c", 150, 1700)}, fault: "acknowledgement was recorded"},
		{name: "again long after an unrecorded ack", changes: []Change{created}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100, loose), by("b", on("b", 2800), 1, 100, later(2900))}, faults: []Fault{fault(Killed, "a", 1250, 4000)}, fault: "without a reason"},
		{name: "again after the lease", changes: []Change{created}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100), by("a", on("b", 1210), 2, 100, later(1300))}, again: LeaseOut},
		{name: "again within the lease", changes: []Change{created}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100), by("a", on("b", 800), 2, 100, later(900))}, fault: "without a reason"},
		{name: "again after a release", changes: []Change{created}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100, release), by("a", on("a", 300), 2, 100, later(400))}, again: GivenBack},
		{name: "the same attempt after a release", changes: []Change{created}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100, release), by("a", on("a", 300), 1, 100, later(400))}, fault: "without a reason"},
		{name: "the same attempt, of what was put in its place after a release", changes: []Change{created, replace(on("b", 230), Done, 280, false)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100, release), by("a", on("a", 300), 1, 280, later(400))}, again: GivenBack},
		{name: "the same attempt, of what was put in its place without an answer", changes: []Change{created, replace(on("b", 230), Unknown, 280, false)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100, release), by("a", on("a", 300), 1, 280, later(400))}, again: GivenBack},
		{name: "the same attempt, of what had been put in its place before a release", changes: []Change{created, replace(on("b", 20), Done, 100, false)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100, release), by("a", on("a", 300), 1, 100, later(400))}, fault: "without a reason"},
		{name: "the same attempt, of what is put in its place only later", changes: []Change{created, replace(on("b", 350), Done, 360, false)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100, release), by("a", on("a", 300), 1, 100, later(400))}, fault: "without a reason"},
		{name: "the same attempt after a release and a move", changes: []Change{created, move(on("b", 230), Done, 280)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100, release), by("a", on("a", 300), 1, 280, later(400))}, fault: "without a reason"},
		{name: "put in its place within its lease", changes: []Change{created, replace(on("b", 230), Done, 280, false)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100), by("a", on("a", 300), 1, 280, later(400))}, fault: "without a reason"},
		{name: "the same attempt twice", changes: []Change{created}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100), by("a", on("a", 1500), 1, 100, later(1600))}, fault: "without a reason"},

		{name: "lost with the process that knew it", changes: []Change{created}, faults: []Fault{lost(-50, 300, 400), fault(Killed, "a", 290, 900)}, excuse: "a was killed"},
		{name: "lost by an empty Redis, with the process that knew it", changes: []Change{created}, faults: []Fault{lost(-60000, 300, 400), fault(Killed, "a", 290, 900)}, excuse: "a was killed"},
		{name: "lost, and a process was ended that had handed over", changes: []Change{created}, faults: []Fault{lost(-50, 300, 400), fault(HandedOver, "a", 290, 900)}, fault: "lost"},
		{name: "lost, and a process was ended that hands nothing over", changes: []Change{created}, faults: []Fault{lost(-50, 300, 400), fault(Restarted, "a", 290, 900)}, excuse: "a was restarted"},
		{name: "lost, and a process was killed later", changes: []Change{created}, faults: []Fault{lost(-50, 300, 400), fault(Killed, "a", 950, 1900)}, fault: "lost"},
		{name: "lost, and a process had been killed before", changes: []Change{created}, faults: []Fault{lost(200, 800, 900), fault(Killed, "a", -20, 900)}, fault: "lost"},
		{name: "lost, but for long before the loss", changes: []Change{create(on("a", -2000), Done, 100)}, faults: []Fault{lost(-50, 300, 400), fault(Killed, "a", 290, 900)}, fault: "lost"},
		{name: "lost, and a process stood still until it was replaced", changes: []Change{created}, faults: []Fault{lost(-50, 300, 400), fault(Stopped, "a", 290, 900)}, excuse: "a was stopped"},
		{name: "lost, and a process stood still for a moment", changes: []Change{created}, faults: []Fault{lost(-50, 300, 400), fault(Stopped, "a", 290, 400)}, fault: "lost"},
		{name: "created again after it was finished", changes: []Change{create(on("a", 0), Unknown, 100), create(on("b", 300), Done, 100)}, deliveries: []*Delivery{first, by("b", on("b", 400), 1, 100, later(500))}, again: AskedAgain},
		{name: "created again long before it was finished", changes: []Change{create(on("a", 0), Unknown, 100), create(on("b", 20), Done, 100)}, deliveries: []*Delivery{first, by("b", on("b", 400), 1, 100, later(500))}, fault: "acknowledgement was recorded"},
		{name: "replaced after it was finished", changes: []Change{created, replace(on("b", 300), Done, 350, true)}, deliveries: []*Delivery{first, by("b", on("b", 400), 1, 350, later(500))}, again: AskedAgain},
		{name: "replaced after it was finished, and lost", changes: []Change{created, replace(on("b", 300), Done, 350, true)}, deliveries: []*Delivery{first}, fault: "lost"},
		{name: "replaced after its lease, and moved", changes: []Change{created, replace(on("b", 1300), Done, 1350, false), move(on("b", 1320), Done, 1400)}, deliveries: []*Delivery{by("a", on("a", 200), 1, 100), by("a", on("b", 1500), 1, 1400, later(1600))}, again: LeaseOut},
		{name: "moved after its lease, and replaced before", changes: []Change{created, replace(on("b", 50), Done, 100, false), move(on("b", 1320), Done, 1400)}, deliveries: []*Delivery{by("a", on("a", 700), 1, 100), by("a", on("b", 1800), 1, 1400, later(1900))}, fault: "without a reason"},
		{name: "replaced before it is delivered", changes: []Change{created, replace(on("b", 30), Done, 350, false)}, deliveries: []*Delivery{by("a", on("b", 400), 1, 350, later(500))}},
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
			one(t, "fault", v.Faults, test.fault)
			one(t, "excuse", v.Excused, test.excuse)
			if test.again != "" && v.Again[test.again] != 1 {
				t.Errorf("want one delivery again because %q, got %v", test.again, v)
			}
		})
	}
}

// one checks that a list has one text with a part, or no text if there is no part.
func one(t *testing.T, what string, list []string, part string) {
	t.Helper()
	if part == "" && len(list) > 0 || part != "" && (len(list) != 1 || !strings.Contains(list[0], part)) {
		t.Errorf("want one %s about %q, got %q", what, part, list)
	}
}
