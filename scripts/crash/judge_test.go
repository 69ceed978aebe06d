package crash

import (
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// at is a span of 10 ms that begins ms after the start.
func at(run, ms int) Span {
	from := start.Add(time.Duration(ms) * time.Millisecond)
	return Span{Run: run, Start: from, End: from.Add(10 * time.Millisecond)}
}

func due(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }

func create(s Span, o Outcome, dueMS int) Change {
	return Change{Span: s, Kind: Create, Outcome: o, Due: due(dueMS)}
}

func move(s Span, o Outcome, dueMS int) Change {
	return Change{Span: s, Kind: Move, Outcome: o, Due: due(dueMS)}
}

func cancel(s Span, o Outcome) Change { return Change{Span: s, Kind: Cancel, Outcome: o} }

// deliver has a lease of one second.
func deliver(s Span, attempt, dueMS int, settled ...Settlement) *Delivery {
	return &Delivery{Span: s, Attempt: attempt, Due: due(dueMS), LeaseUntil: s.End.Add(time.Second), Settlements: settled}
}

func ack(s Span, o Outcome, recorded bool) Settlement {
	return Settlement{Span: s, Verb: Ack, Outcome: o, Recorded: recorded}
}

func TestJudge(t *testing.T) {
	acked := ack(at(1, 230), Done, true)
	tests := []struct {
		name       string
		changes    []Change
		deliveries []*Delivery
		fault      string // part of the only fault; empty: there is none
		again      string // the reason for the second delivery
	}{
		{"delivered once", []Change{create(at(1, 0), Done, 100)}, []*Delivery{deliver(at(1, 200), 1, 100, acked)}, "", ""},
		{"refused", []Change{create(at(1, 0), Refused, 100)}, nil, "", ""},
		{"unanswered, and never came", []Change{create(at(1, 0), Unknown, 100)}, nil, "", ""},
		{"unanswered, and came", []Change{create(at(1, 0), Unknown, 100)}, []*Delivery{deliver(at(1, 200), 1, 100, acked)}, "", ""},
		{"lost", []Change{create(at(1, 0), Done, 100)}, nil, "lost", ""},
		{"delivered, never acknowledged", []Change{create(at(1, 0), Done, 100)}, []*Delivery{deliver(at(1, 200), 1, 100)}, "lost", ""},
		{"never asked for", nil, []*Delivery{deliver(at(1, 200), 1, 100, acked)}, "never asked for", ""},
		{"delivered though refused", []Change{create(at(1, 0), Refused, 100)}, []*Delivery{deliver(at(1, 200), 1, 100, acked)}, "never asked for", ""},
		{"early", []Change{create(at(1, 0), Done, 211)}, []*Delivery{deliver(at(1, 200), 1, 211, acked)}, "early by 1ms", ""},

		{"moved", []Change{create(at(1, 0), Done, 100), move(at(1, 20), Done, 150)}, []*Delivery{deliver(at(1, 200), 1, 150, acked)}, "", ""},
		{"old deadline after a move", []Change{create(at(1, 0), Done, 100), move(at(1, 20), Done, 150)}, []*Delivery{deliver(at(1, 200), 1, 100, acked)}, "not in force", ""},
		{"old deadline in a later run", []Change{create(at(1, 0), Done, 100), move(at(1, 20), Done, 150)}, []*Delivery{deliver(at(2, 25), 1, 100, ack(at(2, 40), Done, true))}, "not in force", ""},
		{"unanswered move, not taken", []Change{create(at(1, 0), Done, 100), move(at(1, 20), Unknown, 150)}, []*Delivery{deliver(at(1, 200), 1, 100, acked)}, "", ""},
		{"unanswered move, taken", []Change{create(at(1, 0), Done, 100), move(at(1, 20), Unknown, 150)}, []*Delivery{deliver(at(1, 200), 1, 150, acked)}, "", ""},
		{"move while it is handed out", []Change{create(at(1, 0), Done, 100), move(at(1, 205), Done, 150)}, []*Delivery{deliver(at(1, 200), 1, 100, acked)}, "", ""},

		{"cancelled", []Change{create(at(1, 0), Done, 100), cancel(at(1, 20), Done)}, nil, "", ""},
		{"unanswered cancellation", []Change{create(at(1, 0), Done, 100), cancel(at(1, 20), Unknown)}, nil, "", ""},
		{"refused cancellation", []Change{create(at(1, 0), Done, 100), cancel(at(1, 20), Refused)}, nil, "lost", ""},
		{"delivered though cancelled", []Change{create(at(1, 0), Done, 100), cancel(at(1, 20), Done)}, []*Delivery{deliver(at(1, 200), 1, 100, acked)}, "cancellation", ""},
		{"delivered after a crash though cancelled", []Change{create(at(1, 0), Done, 100), cancel(at(1, 120), Done)}, []*Delivery{deliver(at(2, 110), 1, 100, acked)}, "cancellation", ""},
		{"cancelled after an attempt", []Change{create(at(1, 0), Done, 100), cancel(at(1, 1500), Done)}, []*Delivery{deliver(at(1, 200), 1, 100)}, "", ""},

		{"again after a recorded ack", []Change{create(at(1, 0), Done, 100)}, []*Delivery{deliver(at(1, 200), 1, 100, acked), deliver(at(2, 500), 1, 100)}, "without a reason", ""},
		{"again after a crash", []Change{create(at(1, 0), Done, 100)}, []*Delivery{deliver(at(1, 200), 1, 100), deliver(at(2, 300), 1, 100, ack(at(2, 400), Done, true))}, "", NotRecorded},
		{"again after an unrecorded ack and a crash", []Change{create(at(1, 0), Done, 100)}, []*Delivery{deliver(at(1, 200), 1, 100, ack(at(1, 230), Done, false)), deliver(at(2, 300), 1, 100, ack(at(2, 400), Done, true))}, "", NotRecorded},
		{"again after an unrecorded ack, no crash", []Change{create(at(1, 0), Done, 100)}, []*Delivery{deliver(at(1, 200), 1, 100, ack(at(1, 230), Done, false)), deliver(at(1, 300), 2, 100, ack(at(1, 400), Done, true))}, "without a reason", ""},
		{"ack unanswered, then refused by the next run", []Change{create(at(1, 0), Done, 100)}, []*Delivery{deliver(at(1, 200), 1, 100, ack(at(1, 230), Unknown, false), ack(at(2, 300), Refused, false))}, "", ""},
		{"ack refused", []Change{create(at(1, 0), Done, 100)}, []*Delivery{deliver(at(1, 200), 1, 100, ack(at(2, 300), Refused, false))}, "lost", ""},
		{"again after the lease", []Change{create(at(1, 0), Done, 100)}, []*Delivery{deliver(at(1, 200), 1, 100), deliver(at(1, 1210), 2, 100, ack(at(1, 1300), Done, true))}, "", LeaseOut},
		{"again within the lease", []Change{create(at(1, 0), Done, 100)}, []*Delivery{deliver(at(1, 200), 1, 100), deliver(at(1, 900), 2, 100, ack(at(1, 1000), Done, true))}, "without a reason", ""},
		{"again after a release", []Change{create(at(1, 0), Done, 100)}, []*Delivery{deliver(at(1, 200), 1, 100, Settlement{Span: at(1, 220), Outcome: Done}), deliver(at(1, 300), 2, 100, ack(at(1, 400), Done, true))}, "", GivenBack},
		{"the same attempt twice", []Change{create(at(1, 0), Done, 100)}, []*Delivery{deliver(at(1, 200), 1, 100), deliver(at(1, 1500), 1, 100, ack(at(1, 1600), Done, true))}, "without a reason", ""},
		{"created again after it was finished", []Change{create(at(1, 0), Unknown, 100), create(at(2, 300), Done, 100)}, []*Delivery{deliver(at(1, 200), 1, 100, acked), deliver(at(2, 400), 1, 100, ack(at(2, 500), Done, true))}, "", AskedAgain},
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
			v := Judge(h)
			switch {
			case test.fault == "" && len(v.Faults) > 0:
				t.Errorf("unexpected fault: %v", v)
			case test.fault != "" && (len(v.Faults) == 0 || !strings.Contains(strings.Join(v.Faults, "\n"), test.fault)):
				t.Errorf("want a fault about %q, got %v", test.fault, v)
			case test.again != "" && v.Again[test.again] != 1:
				t.Errorf("want one delivery again because %q, got %v", test.again, v)
			}
		})
	}
}
