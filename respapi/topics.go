package respapi

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lapsehq/lapse/respapi/internal/keyid"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

const (
	// topicsAgain is the longest pause before a topic is tried again that could not be set.
	topicsAgain = 30 * time.Second
	// dueBuffer is how many expired events of topics with another way of delivery may wait.
	dueBuffer = 100_000
	// dueAtOnce is how many of them are published at once.
	dueAtOnce = 256
	// readWithin bounds a read of the key of a task whose id does not tell it.
	readWithin = time.Second
	// keyeventsAtOnce is the concurrency of topics that are set up for Keyevent: 16 batches.
	keyeventsAtOnce = 16 * 256
	// tellLostEvery is how often the log tells of lost events.
	tellLostEvery = time.Minute
)

// topicNames returns the topics of Config.Topics.
func (s *Server) topicNames() []string { return slices.Sorted(maps.Keys(s.hasKeys)) }

// setTopics has the topics that were never set delivered by Keyevent. While the ledger is away, it
// tries again. It takes a topic out of unset once that is done.
func (s *Server) setTopics(scheduler tasks.Admin, unset *sync.Map) {
	names := s.topicNames()
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, topicsAgain) {
		var failed error
		names = slices.DeleteFunc(names, func(name string) bool {
			err := s.setTopic(scheduler, name)
			if err != nil {
				failed = err
				return false
			}
			unset.Delete(name)
			return true
		})
		if len(names) == 0 || s.ending.Err() != nil || errors.Is(failed, tasks.ErrClosed) {
			return
		}
		s.log.Warn("topics of keys could not be set up, and are tried again", "topics", len(names), "error", failed, "again_in", pause)
		select {
		case <-time.After(pause):
		case <-s.ending.Done():
			return
		}
	}
}

// setTopic has a topic delivered by Keyevent, unless it was set up otherwise. Publishing costs a
// million at one instant little, and the default concurrency is for receivers that work.
func (s *Server) setTopic(scheduler tasks.Admin, name string) error {
	if t, err := scheduler.Topic(name); err == nil && (t.Revision > 0 || t.Settings.Kind == task.Handler) {
		return nil
	}
	_, err := scheduler.SetTopic(s.ending, name, task.TopicSettings{Kind: KindKeyevent, Concurrency: keyeventsAtOnce}, 0)
	switch {
	case errors.Is(err, tasks.ErrRevision):
		return nil // another node, or a caller, has set it
	case errors.Is(err, tasks.ErrInvalid):
		s.log.Error("a topic of keys cannot be delivered as expired events", "topic", name, "error", err)
		return nil
	case err == nil:
		s.log.Info("a topic of keys is delivered as expired events", "topic", name)
	}
	return err
}

// otherTopics returns the topics of keys whose expired events are published beside their delivery:
// those that Keyevent does not deliver, nor will once they are set up.
func (s *Server) otherTopics(scheduler tasks.Admin, unset *sync.Map) (names []string) {
	for _, name := range s.topicNames() {
		if _, waits := unset.Load(name); !waits && s.isOther(scheduler, name) {
			names = append(names, name)
		}
	}
	return names
}

// isOther reports whether Keyevent does not deliver a topic: it has another way of delivery, or
// there are monitors alone, which hear its events, and its tasks wait for a receiver.
func (s *Server) isOther(scheduler tasks.Admin, topic string) bool {
	if s.wanted()&anyReceiver == 0 {
		return true
	}
	t, err := scheduler.Topic(topic)
	return err == nil && t.Settings.Kind != KindKeyevent
}

// followDue publishes the expired events of topics with another way of delivery, once, as long as
// there are subscribers of them.
func (s *Server) followDue(scheduler tasks.Admin, unset *sync.Map) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	var names []string
	stop := func() {}
	defer func() { stop() }()
	for {
		want := []string(nil)
		if s.wanted()&classExpired != 0 {
			want = s.otherTopics(scheduler, unset)
		}
		if !slices.Equal(want, names) {
			stop()
			stop = s.publishDue(scheduler, want)
			names = want
		}
		select {
		case <-ticker.C:
		case <-s.due:
		case <-s.ending.Done():
			return
		}
	}
}

// publishDue begins to publish the expired events of topics, and returns what ends it.
func (s *Server) publishDue(scheduler tasks.Admin, topics []string) (stop func()) {
	if len(topics) == 0 {
		return func() {}
	}
	filter := task.EventFilter{Kinds: []task.EventKind{task.EventDue}, Topics: topics, Buffer: dueBuffer}
	if len(topics) > task.MaxEventTopics {
		filter.Topics = nil
	}
	subscription, err := scheduler.Subscribe(filter)
	if err != nil {
		s.log.Warn("expired events of topics with another way of delivery are not published", "error", err)
		return func() {}
	}
	known := make(map[string]bool)
	for _, name := range topics {
		known[name] = true
	}
	ctx, cancel := context.WithCancel(s.ending)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var told time.Time
		for {
			all, lost, err := subscription.Next(ctx)
			if err != nil {
				return
			}
			if s.counts.lost.Add(lost); lost > 0 && time.Since(told) > tellLostEvery {
				told = time.Now()
				s.log.Warn("expired events were lost, because they came faster than they can be published", "lost", lost)
			}
			s.publishDueEvents(ctx, scheduler, slices.DeleteFunc(all, func(e task.Event) bool { return !known[e.Topic] }))
		}
	}()
	return func() {
		cancel()
		subscription.Close()
		<-done
	}
}

// publishDueEvents publishes the expired events of tasks that are due, but not those that Keyevent
// delivers by now.
func (s *Server) publishDueEvents(ctx context.Context, scheduler tasks.Admin, all []task.Event) {
	for len(all) > 0 {
		topic, keys := all[0].Topic, []string(nil)
		for len(all) > 0 && all[0].Topic == topic && len(keys) < dueAtOnce {
			if key, ok := s.dueKey(ctx, scheduler, all[0].ID); ok {
				keys = append(keys, key)
			} else {
				s.counts.lost.Add(1)
			}
			all = all[1:]
		}
		if s.isOther(scheduler, topic) {
			s.publishEvent(classExpired, topic, expiredEvent, keys...)
		}
	}
}

// dueKey returns the key of a task. It reports false if only the task tells it, and cannot be read.
func (s *Server) dueKey(ctx context.Context, scheduler tasks.Admin, id string) (key string, ok bool) {
	if !keyid.IsHashed(id) {
		return eventKey(id, nil), true
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	t, err := scheduler.Get(ctx, id)
	return eventKey(id, t.Headers), err == nil
}
