package tasks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/go-multierror"
)

// A Way is a way of delivery that topics choose by its kind, at run time: what a
// program brings along in Config.Ways, such as those of packages webhook, stream and
// pubsub. A way lives as long as the program wants; its connections are its own, and
// the scheduler never closes it.
type Way interface {
	// Kind is the way's name, as in {"kind": "webhook"}.
	Kind() Kind
	// Deliverer makes what delivers the tasks of one topic, of the topic's delivery
	// object without its kind: a JSON object, never empty. It is called before
	// the settings are accepted, also only to check them; it must not wait for
	// anything, and what it returns holds nothing that must be closed. Error: an
	// *InvalidError that names the fields of the object.
	Deliverer(topic string, settings json.RawMessage) (Deliverer, error)
}

// WayStats is what a way of delivery has counted.
type WayStats struct {
	Kind     Kind
	Outcomes map[string]int64 // attempts by outcome; nil if the way counts none
}

// ways are the ways of delivery that a scheduler has, by kind.
type ways map[Kind]Way

func newWays(list []Way) (ways, error) {
	all := make(ways, len(list))
	var bad *multierror.Error
	for i, w := range list {
		k := w.Kind()
		switch {
		case !validName(string(k)) || k == Pull || k == Handler:
			bad = multierror.Append(bad, fmt.Errorf("ways[%d]: its kind %q cannot be one of a way", i, k))
		case all[k] != nil:
			bad = multierror.Append(bad, fmt.Errorf("ways[%d]: there are two of kind %q", i, k))
		}
		all[k] = w
	}
	return all, bad.ErrorOrNil()
}

// An equipment is what holds for a topic: its settings as they were set, and what
// follows from them.
type equipment struct {
	set   TopicSettings // without defaults
	by    Deliverer     // made by a way; nil: the topic is pulled, or has a handler
	unfit error         // why this process cannot deliver so
}

// equip checks settings and makes what they ask for. It must not be called under a
// lock. Error: *InvalidError, with the equipment that results if the settings hold
// nevertheless, because another node or version has accepted them.
func (w ways) equip(topic string, set TopicSettings) (equipment, error) {
	set.Delivery = bytes.Clone(set.Delivery)
	f := set.faults()
	e := equipment{set: set}
	if len(f) == 0 && set.Kind != "" && set.Kind != Pull && set.Kind != Handler {
		e.by, f = w.deliverer(topic, set)
	}
	e.unfit = f.err()
	return e, e.unfit
}

func (w ways) deliverer(topic string, set TopicSettings) (Deliverer, faults) {
	way, ok := w[set.Kind]
	if !ok {
		return nil, faults{{"delivery.kind", "must be a way of delivery that this process has: " + w.text()}}
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
		return nil, faults{{"delivery", err.Error()}}
	}
	var f faults
	for _, field := range invalid.Fields {
		f.add("delivery."+field.Field, field.Problem)
	}
	return nil, f
}

// kinds are in the order of their names.
func (w ways) kinds() []Kind { return slices.Sorted(maps.Keys(w)) }

// stats are what the ways have counted.
func (w ways) stats() []WayStats {
	all := make([]WayStats, 0, len(w))
	for _, k := range w.kinds() {
		s := WayStats{Kind: k}
		if t, ok := w[k].(Tally); ok {
			s.Outcomes = t.Tally()
		}
		all = append(all, s)
	}
	return all
}

// text lists what delivery.kind may be.
func (w ways) text() string {
	text := string(Pull)
	for _, k := range w.kinds() {
		text += ", " + string(k)
	}
	return text + " or " + string(Handler)
}
