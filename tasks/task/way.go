package task

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/hashicorp/go-multierror"

	"github.com/lapsehq/lapse/internal/choice"
)

// A Way is a way of delivery that topics choose by its kind, at run time: what a program brings
// along in Config.Ways, such as those of packages webhook, stream and pubsub. A way lives as long
// as the program wants; its connections are its own, and the scheduler never closes it.
type Way interface {
	// Kind returns the way's name, as in {"kind": "webhook"}.
	Kind() Kind
	// Deliverer returns what delivers the tasks of one topic, made of the topic's delivery object
	// without its kind: a JSON object, never empty. The scheduler calls it before it accepts the
	// settings, also only to check them. It must not wait for anything, and what it returns holds
	// nothing that must be closed. Error: an *InvalidError that names the fields of the object.
	Deliverer(topic string, settings json.RawMessage) (Deliverer, error)
}

// WayStats is what a way of delivery has counted.
type WayStats struct {
	Kind     Kind
	Outcomes map[string]int64 // attempts by outcome; nil if the way counts none
}

// A Tally is a Way that counts what has become of attempts, by outcome, such as {"2xx": 10,
// "timeout": 1}.
type Tally interface {
	// Tally returns the counts. Metrics call it, from any goroutine.
	Tally() map[string]int64
}

// A Tallier counts outcomes for a Tally. Any goroutine may use it.
type Tallier[O ~int] struct {
	names  []string
	counts []atomic.Int64
}

// NewTallier returns a tallier of outcomes that are numbered as their names are: 0 and up.
func NewTallier[O ~int](names []string) *Tallier[O] {
	return &Tallier[O]{names, make([]atomic.Int64, len(names))}
}

// Count counts an attempt with outcome o.
func (t *Tallier[O]) Count(o O) { t.counts[o].Add(1) }

// Tally returns the counts by outcome. All outcomes are always there.
func (t *Tallier[O]) Tally() map[string]int64 {
	all := make(map[string]int64, len(t.names))
	for i, name := range t.names {
		all[name] = t.counts[i].Load()
	}
	return all
}

// Ways are the ways of delivery that a scheduler has, by kind.
type Ways map[Kind]Way

// NewWays returns the ways by kind. Its error reports every kind that cannot be one of a way, or
// that stands twice.
func NewWays(list []Way) (Ways, error) {
	all := make(Ways, len(list))
	var bad *multierror.Error
	for i, w := range list {
		k := w.Kind()
		switch {
		case !ValidName(string(k)) || k == Pull || k == Handler:
			bad = multierror.Append(bad, fmt.Errorf("ways[%d]: its kind %q cannot be one of a way", i, k))
		case all[k] != nil:
			bad = multierror.Append(bad, fmt.Errorf("ways[%d]: there are two of kind %q", i, k))
		}
		all[k] = w
	}
	return all, bad.ErrorOrNil()
}

// Kinds returns the kinds, in the order of their names.
func (w Ways) Kinds() []Kind { return slices.Sorted(maps.Keys(w)) }

// Stats returns what the ways have counted.
func (w Ways) Stats() []WayStats {
	all := make([]WayStats, 0, len(w))
	for _, k := range w.Kinds() {
		s := WayStats{Kind: k}
		if t, ok := w[k].(Tally); ok {
			s.Outcomes = t.Tally()
		}
		all = append(all, s)
	}
	return all
}

// text returns a list of what delivery.kind may be.
func (w Ways) text() string {
	return choice.Text(slices.Concat([]Kind{Pull}, w.Kinds(), []Kind{Handler}))
}

// A Resolved has what holds for a topic: its settings as they were set, and what follows from them.
type Resolved struct {
	Set           TopicSettings // without defaults
	By            Deliverer     // made by a way; nil: the topic is pulled, or has a handler
	Receiver      string        // what By delivers to, if it is a Receiver
	Undeliverable error         // why this process cannot deliver so
}

// Resolve checks settings and makes what they ask for. It must not be called under a lock. Error:
// *InvalidError, with what results if the settings hold nevertheless, because another node or
// version has accepted them.
func (w Ways) Resolve(topic string, set TopicSettings) (Resolved, error) {
	set.Delivery = bytes.Clone(set.Delivery)
	f := set.Faults()
	e := Resolved{Set: set}
	if len(f) == 0 && set.Kind != "" && set.Kind != Pull && set.Kind != Handler {
		e.By, f = w.deliverer(topic, set)
	}
	if named, ok := e.By.(Receiver); ok {
		e.Receiver = Cut(named.Receiver(), MaxAttemptBy)
	}
	e.Undeliverable = f.Err()
	return e, e.Undeliverable
}

// deliverer returns what delivers the tasks of a topic, or the faults of its settings.
func (w Ways) deliverer(topic string, set TopicSettings) (Deliverer, Faults) {
	way, ok := w[set.Kind]
	if !ok {
		return nil, Faults{{"delivery.kind", "must be a way of delivery that this process has: " + w.text()}}
	}
	settings := set.Delivery
	if len(settings) == 0 {
		settings = json.RawMessage("{}")
	}
	by, err := way.Deliverer(topic, settings)
	if err == nil {
		return by, nil
	}
	var invalid *InvalidError
	if !errors.As(err, &invalid) {
		return nil, Faults{{"delivery", err.Error()}}
	}
	var f Faults
	for _, field := range invalid.Fields {
		f.Add("delivery."+field.Field, field.Problem)
	}
	return nil, f
}
