package engine

import (
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// emitLocked emits an event of a task: to the subscriptions now, so that they get events in this
// order, and to the observer at Unlock. It costs nothing without either.
func (s *Engine) emitLocked(kind task.EventKind, sl *store.Slot, e task.Event) {
	if s.Config.Observer == nil && !s.Feed.IsHeard() {
		return
	}
	e.Kind, e.Topic = kind, s.TopicTable.ByNumber[sl.Topic].Name
	id := s.Store.ID(sl)
	s.Feed.Offer(&e, id)
	if s.Config.Observer != nil {
		s.Feed.Complete(&e, id)
		s.observed = append(s.observed, e)
	}
}

// emitDueLocked emits EventDue of a task that has become ready, if it is for the first attempt.
func (s *Engine) emitDueLocked(sl *store.Slot, now int64) {
	if !s.Feed.HearsDue() || record.Attempt(s.Store.Record(sl)) != 0 {
		return
	}
	t := s.TopicTable.ByNumber[sl.Topic]
	late := max(0, millisDuration(now-t.deadline(s.Store, sl, true)))
	s.Feed.Offer(&task.Event{Kind: task.EventDue, Topic: t.Name, Lateness: late}, s.Store.ID(sl))
}
