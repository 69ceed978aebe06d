package task

import (
	"encoding/json"
	"math"
	"time"
)

const (
	// SettingPrefix begins the names under which a ledger keeps the settings of topics.
	SettingPrefix = "topic/"
	// DefaultConcurrency is that of a topic which has none of its own.
	DefaultConcurrency = 64
	maxDelivery        = 16 << 10  // bytes of a topic's delivery object
	maxPerSecond       = 1_000_000 // of Rate.PerSecond and Rate.Burst
	// MaxPerGroup bounds TopicSettings.ConcurrencyPerGroup.
	MaxPerGroup = 10_000
	// MaxKeepFinished bounds TopicSettings.KeepFinished.
	MaxKeepFinished = 30 * 24 * time.Hour
)

// TopicSettings say how the tasks of a topic are delivered and retried. The zero value of a field
// means its default, except where it says otherwise.
type TopicSettings struct {
	// Kind is a way of Config.Ways. Default: Handler if one was registered, else Pull.
	Kind Kind
	// Delivery configures the way: a JSON object, see the way's package.
	Delivery json.RawMessage `json:",omitempty"`
	Retry    Retry
	// Lease is how long a delivery may stay unsettled; 1 s to 24 h, default 30 s.
	Lease time.Duration
	// Concurrency bounds the deliveries at once on this node, except for Pull; 1 to 100,000. The
	// default is 64, which a backlog may raise.
	Concurrency int
	Rate        Rate // deliveries a second on this node; default: no bound
	// Weight is the topic's share of the node's places for deliveries when topics compete for them;
	// 1 to 1,000, default 1.
	Weight int
	// Spread is a window from the deadline on. The first attempts of tasks with one deadline are
	// spread evenly over it, by their ids; 0 to 24 h, default 0.
	Spread time.Duration
	// Misfire says what becomes of tasks that fell due while no process held them; default
	// MisfireDeliver.
	Misfire Misfire
	// CountCrashes has each attempt recorded before it is delivered. That is one more write, but a
	// task that kills its process runs out of attempts too.
	CountCrashes bool
	Paused       bool // tasks are accepted, but not delivered
	// DeadRetention is how long dead tasks are kept; 1 min to 3660 days, default 7 days.
	DeadRetention time.Duration
	// KeepFinished is how long finished tasks are kept: they can be read, and a request for the
	// same task is answered as a repeated one. 0 to 30 days; default 0, and then nothing
	// is written for it.
	KeepFinished time.Duration `json:",omitempty"`
	// TaskDelivery lets tasks have a Target: their own receiver, as far as the way of delivery lets
	// them choose it, and their own Retry. Without it, a task that has a receiver of its own waits.
	TaskDelivery bool `json:",omitempty"`
	// ConcurrencyPerGroup bounds the deliveries at once of one group of tasks on this node, by
	// whatever kind, Pull too; 1 to 10,000. Tasks without a group are not bound. 0, the default: no
	// bound.
	ConcurrencyPerGroup int `json:",omitempty"`
	// OnDead has a task that dies followed by one of another topic; the zero value: by none.
	OnDead OnDead `json:",omitzero"`
	// Links are shown with the topic's tasks; at most MaxLinks, default none.
	Links Links `json:",omitempty"`
}

// OnDead says what becomes of a task whose attempts are exhausted, or that its receiver has buried:
// besides the dead task there is a new one, its follow-up, of another topic. It has the payload,
// the group and the headers of the dead task, and headers that tell of the death, see DeadHeader.
// One write of the ledger makes both.
//
// A dead task has no follow-up if its topic was deleted by force, if there is no room for one, or
// if the chain of deaths that led to it has come through that topic before, or is MaxDeaths long.
type OnDead struct {
	Topic string
	Delay time.Duration // from the death to the deadline of the follow-up, 0 to MaxAhead
}

// MaxDeaths bounds a chain of follow-ups that have died.
const MaxDeaths = 10

// DeadHeader begins the names of headers that tell of the death before a follow-up.
const DeadHeader = "lapse-dead-"

// WithDefaults returns the settings with the defaults of fields that are zero.
func (t TopicSettings) WithDefaults() TopicSettings {
	t.Retry.bound(t.CountCrashes)
	orDefault(&t.Retry.MinBackoff, time.Second)
	orDefault(&t.Retry.MaxBackoff, max(10*time.Minute, t.Retry.MinBackoff))
	orDefault(&t.Lease, 30*time.Second)
	orDefault(&t.Concurrency, DefaultConcurrency)
	if t.Rate.PerSecond > 0 && t.Rate.PerSecond <= maxPerSecond {
		orDefault(&t.Rate.Burst, int(math.Ceil(t.Rate.PerSecond)))
	}
	orDefault(&t.Weight, 1)
	orDefault(&t.Misfire, MisfireDeliver)
	orDefault(&t.DeadRetention, 7*24*time.Hour)
	return t
}

// Stored returns the settings as the ledger keeps them: with the defaults that hold today, except
// for a Concurrency that was not set, so that a backlog may raise it.
func (t TopicSettings) Stored() TopicSettings {
	full := t.WithDefaults()
	full.Concurrency = t.Concurrency
	if full.Retry.MaxAttempts == MaxRetryAttempts && !full.CountCrashes {
		full.Retry.MaxAttempts = 0 // the default
	}
	return full
}

// Validate returns an *InvalidError that reports everything that is out of range, nil if nothing
// is. Whether a process can deliver so is another question: see Config.Ways.
func (t TopicSettings) Validate() error { return t.Faults().Err() }

// Faults returns a fault for each field that is out of range.
func (t TopicSettings) Faults() (f Faults) {
	t = t.WithDefaults()
	f.checkDelivery(t)
	within := func(ok bool, field, problem string) {
		if !ok {
			f.Add(field, problem)
		}
	}
	t.Retry.within(&f, "retry.", false)
	within(t.Lease >= MinLease && t.Lease <= MaxLease, "lease", LeaseRange)
	within(t.Concurrency >= 1 && t.Concurrency <= 100_000, "concurrency", "must be from 1 to 100000")
	if r := t.Rate; r != (Rate{}) {
		within(r.PerSecond >= 0.001 && r.PerSecond <= maxPerSecond, "rate.per_second", "must be from 0.001 to 1000000")
		within(r.Burst >= 0 && r.Burst <= maxPerSecond, "rate.burst", "must be from 1 to 1000000")
	}
	within(t.Weight >= 1 && t.Weight <= 1000, "weight", "must be from 1 to 1000")
	within(t.Spread >= 0 && t.Spread <= 24*time.Hour, "spread", "must be from 0 to 24 h")
	switch t.Misfire {
	case MisfireDeliver, MisfireSkip, MisfireCoalesce:
	default:
		f.Add("misfire", "must be deliver, skip or coalesce")
	}
	within(t.DeadRetention >= time.Minute && t.DeadRetention <= MaxAhead, "dead_retention", "must be from 1 min to 3660 days")
	within(t.ConcurrencyPerGroup >= 0 && t.ConcurrencyPerGroup <= MaxPerGroup, "concurrency_per_group", "must be from 0 to 10000")
	switch d := t.OnDead; {
	case d.Topic == "" && d.Delay != 0:
		f.Add("on_dead.topic", "must be given beside on_dead.delay")
	case d.Topic != "" && !ValidName(d.Topic):
		f.Add("on_dead.topic", NameProblem)
	}
	f.CheckDelay("on_dead.delay", t.OnDead.Delay)
	t.Links.within(&f)
	within(t.KeepFinished >= 0 && t.KeepFinished <= MaxKeepFinished, "keep_finished", "must be from 0 to 30 days")
	return f
}

// checkDelivery adds a fault if the kind or the delivery object is wrong.
func (f *Faults) checkDelivery(t TopicSettings) {
	switch {
	case t.Kind != "" && !ValidName(string(t.Kind)):
		f.Add("delivery.kind", NameProblem)
	case len(t.Delivery) == 0:
	case t.Kind == "" || t.Kind == Pull || t.Kind == Handler:
		f.Add("delivery", "must have nothing but its kind, unless that is another way of delivery")
	case len(t.Delivery) > maxDelivery:
		f.Add("delivery", "must be at most 16 KiB long")
	case t.Delivery[0] != '{' || !json.Valid(t.Delivery):
		f.Add("delivery", "must be a JSON object")
	}
}

// orDefault sets a zero value to its default.
func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}
