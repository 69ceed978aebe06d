package tasks

import (
	"encoding/json"
	"errors"
	"math"
	"time"
)

const (
	settingPrefix      = "topic/"
	defaultConcurrency = 64
	maxDelivery        = 16 << 10 // bytes of a topic's delivery object
)

// withDefaults fills in what is zero.
func (t TopicSettings) withDefaults() TopicSettings {
	t.Retry.bound(t.CountCrashes)
	orDefault(&t.Retry.MinBackoff, time.Second)
	orDefault(&t.Retry.MaxBackoff, max(10*time.Minute, t.Retry.MinBackoff))
	orDefault(&t.Lease, 30*time.Second)
	orDefault(&t.Concurrency, defaultConcurrency)
	if t.Rate.PerSecond > 0 && t.Rate.PerSecond <= maxPerSecond {
		orDefault(&t.Rate.Burst, int(math.Ceil(t.Rate.PerSecond)))
	}
	orDefault(&t.Weight, 1)
	orDefault(&t.Misfire, MisfireDeliver)
	orDefault(&t.DeadRetention, 7*24*time.Hour)
	return t
}

const maxPerSecond = 1_000_000

// stored is what the ledger keeps: with the defaults that hold today, except for a
// Concurrency that was not set, so that a backlog may raise it. Records of before
// have 64 there whether it was set or not; they count as set and are never raised.
func (t TopicSettings) stored() TopicSettings {
	full := t.withDefaults()
	full.Concurrency = t.Concurrency
	if full.Retry.MaxAttempts == MaxRetryAttempts && !full.CountCrashes {
		full.Retry.MaxAttempts = 0 // versions without MaxAge take their own default
	}
	return full
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Validate reports everything that is out of range, as an *InvalidError. Whether a
// process can deliver so is another question: see Config.Ways.
func (t TopicSettings) Validate() error { return t.faults().err() }

func (t TopicSettings) faults() (f faults) {
	t = t.withDefaults()
	f.checkDelivery(t)
	within := func(ok bool, field, problem string) {
		if !ok {
			f.add(field, problem)
		}
	}
	within(t.Retry.MaxAttempts >= 1 && t.Retry.MaxAttempts <= MaxRetryAttempts, "retry.max_attempts", "must be from 1 to 1000000")
	within(t.Retry.MaxAge == 0 || t.Retry.MaxAge >= time.Second && t.Retry.MaxAge <= MaxAhead, "retry.max_age", "must be from 1 s to 3660 days")
	within(t.Retry.MinBackoff >= time.Millisecond && t.Retry.MinBackoff <= 24*time.Hour, "retry.min_backoff", "must be from 1 ms to 24 h")
	within(t.Retry.MaxBackoff >= t.Retry.MinBackoff && t.Retry.MaxBackoff <= 30*24*time.Hour, "retry.max_backoff", "must be from min_backoff to 30 days")
	within(t.Lease >= MinLease && t.Lease <= MaxLease, "lease", leaseText)
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
		f.add("misfire", "must be deliver, skip or coalesce")
	}
	within(t.DeadRetention >= time.Minute && t.DeadRetention <= MaxAhead, "dead_retention", "must be from 1 min to 3660 days")
	return f
}

func (f *faults) checkDelivery(t TopicSettings) {
	switch {
	case t.Kind != "" && !validName(string(t.Kind)):
		f.add("delivery.kind", nameProblem)
	case len(t.Delivery) == 0:
	case t.Kind == "" || t.Kind == Pull || t.Kind == Handler:
		f.add("delivery", "must have nothing but its kind, unless that is another way of delivery")
	case len(t.Delivery) > maxDelivery:
		f.add("delivery", "must be at most 16 KiB long")
	case t.Delivery[0] != '{' || !json.Valid(t.Delivery):
		f.add("delivery", "must be a JSON object")
	}
}

// take gives a topic other equipment.
func (t *topic) take(e equipment) {
	t.settings, t.own = e.set.withDefaults(), e.set.Concurrency != 0
	t.limit()
	t.deliverer, t.unfit = e.by, e.unfit
	if t.handler != nil && !t.unread() {
		t.deliverer, t.unfit = t.handler, nil
	}
}

// equipLocked gives a topic other equipment; revision 0 means that no caller has stored its
// settings. Deliveries under way are not touched: they end by what held when they began.
func (s *Scheduler) equipLocked(t *topic, e equipment, revision int64) {
	pulled, spread, unfit := t.pulled(), t.settings.Spread, t.unfit != nil
	t.take(e)
	t.setRevision(revision)
	t.seen = max(t.seen, revision)
	if t.later { // of the deliverer before; this one may be another
		t.later = false
		s.freeLocked(0, t.busy)
	}
	// While a topic is unfit its tasks keep their places: its window may not be known.
	if t.slots > 0 && t.unfit == nil && (t.settings.Spread != spread || unfit || t.undecided) {
		s.revisitLocked(t)
	}
	s.countBacklogLocked(t)
	if pulled && !t.pulled() {
		t.reservers.wakeAll()
	}
	s.wakeLocked(t)
}

// setRevision notes the revision of the settings that a topic has now.
func (t *topic) setRevision(revision int64) {
	t.deleted = revision == 0 && (t.deleted || t.revision != 0)
	t.revision = revision
}

// equipment is what a topic has, to change some of it.
func (t *topic) equipment() equipment {
	return equipment{set: t.given(), by: t.deliverer, unfit: t.unfit}
}

// given is what was set, without the default of Concurrency.
func (t *topic) given() TopicSettings {
	set := t.settings
	if !t.own {
		set.Concurrency = 0
	}
	return set
}

// kind is how a topic's tasks are delivered.
func (t *topic) kind() Kind {
	switch {
	case t.handler != nil:
		return Handler
	case t.deliverer != nil || t.unfit != nil && t.settings.Kind != "":
		return t.settings.Kind
	}
	return Pull
}

// pulled tells that receivers ask for the topic's tasks.
func (t *topic) pulled() bool { return t.deliverer == nil && t.unfit == nil }

// unread tells that the topic's settings are not known yet, see loadTopics.
func (t *topic) unread() bool { return errors.Is(t.unfit, errSettingsUnread) }

// stopped reports whether no receiver may have the topic's tasks.
func (t *topic) stopped() bool { return t.settings.Paused || t.unfit != nil }

// deliverableBy tells whether settings may choose a way of delivery in this process.
func (t *topic) deliverableBy(k Kind) error {
	var problem string
	switch {
	case k == "":
	case t.handler != nil && k != Handler:
		problem = "must be handler: this process has one for the topic"
	case t.handler == nil && k == Handler:
		problem = "must be pull or another way of delivery: this process has no handler for the topic"
	}
	if problem == "" {
		return nil
	}
	return &InvalidError{Fields: []FieldError{{"delivery.kind", problem}}}
}
