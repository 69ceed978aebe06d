package engine

import (
	"errors"

	"github.com/lapsehq/lapse/tasks/task"
)

// take gives a topic other equipment.
func (t *Topic) take(e task.Resolved) {
	t.Settings, t.stored.own = e.Set.WithDefaults(), e.Set.Concurrency != 0
	t.limit()
	t.Deliverer, t.undeliverable = e.By, e.Undeliverable
	if t.Handler != nil && !t.unread() {
		t.Deliverer, t.undeliverable = t.Handler, nil
	}
}

// applyLocked gives a topic other resolved settings; revision 0 means that no caller has stored its
// settings. Deliveries under way are not touched: they end by what held when they began.
func (s *Engine) applyLocked(t *Topic, e task.Resolved, revision int64) {
	pulled, spread, unfit := t.Pulled(), t.Settings.Spread, t.undeliverable != nil
	t.take(e)
	t.setRevision(revision)
	t.stored.seen = max(t.stored.seen, revision)
	if t.AsyncSettle { // of the deliverer before; this one may be another
		t.AsyncSettle = false
		s.freeLocked(0, t.Busy)
	}
	// While a topic is undeliverable its tasks keep their places: its window may not be known.
	if t.Slots > 0 && t.undeliverable == nil && (t.Settings.Spread != spread || unfit || t.Undecided) {
		s.misfirePassLocked(t)
	}
	s.countBacklogLocked(t)
	if pulled && !t.Pulled() {
		t.Reservers.wakeAll()
	}
	s.WakeLocked(t)
}

// setRevision notes the revision of the settings that a topic has now.
func (t *Topic) setRevision(revision int64) {
	t.stored.deleted = revision == 0 && (t.stored.deleted || t.stored.revision != 0)
	t.stored.revision = revision
}

// resolved returns the resolved settings of a topic, to change some of it.
func (t *Topic) resolved() task.Resolved {
	return task.Resolved{Set: t.explicit(), By: t.Deliverer, Undeliverable: t.undeliverable}
}

// given is what was set, without the default of Concurrency.
func (t *Topic) explicit() task.TopicSettings {
	set := t.Settings
	if !t.stored.own {
		set.Concurrency = 0
	}
	return set
}

// Kind is how a topic's tasks are delivered.
func (t *Topic) Kind() task.Kind {
	switch {
	case t.Handler != nil:
		return task.Handler
	case t.Deliverer != nil || t.undeliverable != nil && t.Settings.Kind != "":
		return t.Settings.Kind
	}
	return task.Pull
}

// Pulled tells that receivers ask for the topic's tasks.
func (t *Topic) Pulled() bool { return t.Deliverer == nil && t.undeliverable == nil }

// unread tells that the topic's settings are not known yet, see loadSettings.
func (t *Topic) unread() bool { return errors.Is(t.undeliverable, errSettingsUnread) }

// Stopped reports whether no receiver may have the topic's tasks.
func (t *Topic) Stopped() bool { return t.Settings.Paused || t.undeliverable != nil }

// deliverableBy tells whether settings may choose a way of delivery in this process.
func (t *Topic) deliverableBy(k task.Kind) error {
	var problem string
	switch {
	case k == "":
	case t.Handler != nil && k != task.Handler:
		problem = "must be handler: this process has one for the topic"
	case t.Handler == nil && k == task.Handler:
		problem = "must be pull or another way of delivery: this process has no handler for the topic"
	}
	if problem == "" {
		return nil
	}
	return task.Invalid("delivery.kind", problem)
}

// Reconsider is tasks.Scheduler.Reconsider.
func (s *Engine) Reconsider() {
	type candidate struct {
		name     string
		set      task.TopicSettings
		revision int64
	}
	var all []candidate
	s.EachTopic(func(t *Topic) {
		// Settings that could not be read have no kind; only better ones help.
		if t.undeliverable != nil && t.Settings.Kind != "" {
			all = append(all, candidate{t.Name, t.explicit(), t.stored.revision})
		}
	})
	for _, c := range all {
		e, err := s.Config.ByKind.Resolve(c.name, c.set)
		if err != nil {
			continue
		}
		s.Mu.Lock()
		// Else a caller has set it anew meanwhile, or it was forgotten.
		if t, ok := s.TopicTable.ByName[c.name]; ok && t.undeliverable != nil && t.stored.revision == c.revision {
			s.applyLocked(t, e, c.revision)
		}
		s.Unlock()
	}
}
