package tasks

import (
	"errors"

	"github.com/lapsehq/lapse/tasks/task"
)

// take gives a topic other equipment.
func (t *topic) take(e task.Resolved) {
	t.settings, t.own = e.Set.WithDefaults(), e.Set.Concurrency != 0
	t.limit()
	t.deliverer, t.undeliverable = e.By, e.Undeliverable
	if t.handler != nil && !t.unread() {
		t.deliverer, t.undeliverable = t.handler, nil
	}
}

// applyLocked gives a topic other resolved settings; revision 0 means that no caller has stored its
// settings. Deliveries under way are not touched: they end by what held when they began.
func (s *engine) applyLocked(t *topic, e task.Resolved, revision int64) {
	pulled, spread, unfit := t.pulled(), t.settings.Spread, t.undeliverable != nil
	t.take(e)
	t.setRevision(revision)
	t.seen = max(t.seen, revision)
	if t.asyncSettle { // of the deliverer before; this one may be another
		t.asyncSettle = false
		s.freeLocked(0, t.busy)
	}
	// While a topic is undeliverable its tasks keep their places: its window may not be known.
	if t.slots > 0 && t.undeliverable == nil && (t.settings.Spread != spread || unfit || t.undecided) {
		s.misfirePassLocked(t)
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

// resolved returns the resolved settings of a topic, to change some of it.
func (t *topic) resolved() task.Resolved {
	return task.Resolved{Set: t.explicit(), By: t.deliverer, Undeliverable: t.undeliverable}
}

// given is what was set, without the default of Concurrency.
func (t *topic) explicit() TopicSettings {
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
	case t.deliverer != nil || t.undeliverable != nil && t.settings.Kind != "":
		return t.settings.Kind
	}
	return Pull
}

// pulled tells that receivers ask for the topic's tasks.
func (t *topic) pulled() bool { return t.deliverer == nil && t.undeliverable == nil }

// unread tells that the topic's settings are not known yet, see loadTopics.
func (t *topic) unread() bool { return errors.Is(t.undeliverable, errSettingsUnread) }

// stopped reports whether no receiver may have the topic's tasks.
func (t *topic) stopped() bool { return t.settings.Paused || t.undeliverable != nil }

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
	return task.Invalid("delivery.kind", problem)
}

// Reconsider is tasks.Scheduler.Reconsider.
func (s *engine) Reconsider() {
	type candidate struct {
		name     string
		set      TopicSettings
		revision int64
	}
	var all []candidate
	s.eachTopic(func(t *topic) {
		// Settings that could not be read have no kind; only better ones help.
		if t.undeliverable != nil && t.settings.Kind != "" {
			all = append(all, candidate{t.name, t.explicit(), t.revision})
		}
	})
	for _, c := range all {
		e, err := s.cfg.ByKind.Resolve(c.name, c.set)
		if err != nil {
			continue
		}
		s.mu.Lock()
		// Else a caller has set it anew meanwhile, or it was forgotten.
		if t, ok := s.topics[c.name]; ok && t.undeliverable != nil && t.revision == c.revision {
			s.applyLocked(t, e, c.revision)
		}
		s.unlock()
	}
}
