package engine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine/dispatch"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A task may have a target of its own: settings of its delivery, a retry, or both. The settings are
// for one kind of delivery, that of the topic when they were accepted. A topic whose kind has
// changed, or that does not allow targets any more, must not send the task to its own receiver.
// Such a task is a stray: it stays ready, and waits outside of its topic's queue until the settings
// of the topic change. So is one that no receiver wants (task.ErrUnwanted), until one may have
// come.

// A receiving says where the tasks of a topic go.
type receiving struct {
	receiver string         // what Deliverer delivers to, if it says so
	targeter bool           // Deliverer delivers tasks to targets of their own
	Strays   dispatch.Queue // in the order in which they have become so
	// lacking says why Deliverer has no receiver, if the line lacks one. arrivals counts how often
	// it was said that there may be one again; lookAgain is when the workers look for one.
	lacking   string
	arrivals  uint64
	lookAgain *time.Timer
	unwanted  unwantedTasks
	// oldestStray is the least time of the strays, or less once that one is gone.
	oldestStray int64
	// returning is how many of them a goroutine still has to look at again; 0: there is none.
	returning int
}

// TargetFor returns a target of a task of a topic in its encoded form; nil if it says nothing.
// Errors: *InvalidError; a kind of ErrReplaying while the settings of the topic are not known.
func (s *Engine) TargetFor(topic string, t *task.Target) ([]byte, error) {
	if t.IsZero() {
		return nil, nil
	}
	p, err := s.targetPolicy(topic)
	if err != nil {
		return nil, err
	}
	own, err := p.Check(t)
	if err != nil || own == nil {
		return nil, err
	}
	return EncodeTarget(own), nil
}

// EncodeTarget returns a target as a record has it; nil if it says nothing.
func EncodeTarget(t *task.Target) []byte {
	if t.IsZero() {
		return nil
	}
	return record.AppendTarget(nil, &record.Target{
		Kind: []byte(t.Kind), Receiver: []byte(t.Receiver), Settings: t.Settings,
		MaxAttempts: uint64(t.Retry.MaxAttempts), MaxAge: record.RoundUpMillis(t.Retry.MaxAge),
		MinBackoff: record.RoundUpMillis(t.Retry.MinBackoff), MaxBackoff: record.RoundUpMillis(t.Retry.MaxBackoff),
	})
}

func (s *Engine) targetPolicy(topic string) (task.TargetPolicy, error) {
	s.mu.Lock()
	defer s.unlock()
	t, known := s.TopicTable.ByName[topic]
	if !isClosed(s.Reading.settingsRead) && (!known || t.unread()) {
		return task.TargetPolicy{}, errSettingsUnread
	}
	if !known {
		e := s.Config.Resolved[topic]
		return task.TargetPolicy{Allowed: e.Set.TaskDelivery, Kind: cmp.Or(e.Set.Kind, task.Pull), By: e.By, Undeliverable: e.Undeliverable}, nil
	}
	return task.TargetPolicy{Allowed: t.Settings.TaskDelivery, Kind: t.Kind(), By: t.Deliverer, Undeliverable: t.undeliverable}, nil
}

// moveTarget returns the encoded target that a move gives a task, and whether it gives one.
func (s *Engine) moveTarget(ctx context.Context, id string, m *task.Move) (target []byte, given bool, err error) {
	if m.Target == nil {
		return nil, false, nil
	}
	if m.Target.IsZero() {
		return nil, true, nil
	}
	n, sl, err := s.lockTask(ctx, id)
	if err != nil {
		return nil, false, err
	}
	t, err := s.readLocked(n, sl, task.ConditionsOf(ctx))
	s.unlock()
	if err != nil {
		return nil, false, err
	}
	// If the task gets another topic meanwhile, the target is for the kind of this one.
	target, err = s.TargetFor(t.Topic, m.Target)
	return target, true, err
}

// targetOf returns the target of a record; nil if it has none.
func targetOf(f *record.Fields) *task.Target {
	if len(f.Target) == 0 {
		return nil
	}
	r, err := record.DecodeTarget(f.Target)
	if err != nil {
		return nil // Decode has checked it
	}
	return &task.Target{
		Settings: json.RawMessage(bytes.Clone(r.Settings)), Kind: task.Kind(r.Kind), Receiver: string(r.Receiver),
		Retry: task.Retry{
			MaxAttempts: int(r.MaxAttempts), MaxAge: millisDuration(r.MaxAge),
			MinBackoff: millisDuration(r.MinBackoff), MaxBackoff: millisDuration(r.MaxBackoff),
		},
	}
}

// missesTarget says why a topic cannot deliver a task with settings for this kind; "" if it can.
func (t *Topic) missesTarget(kind string) string {
	switch {
	case kind == "": // it has no settings
	case !t.Settings.TaskDelivery:
		return "the task has a receiver of its own, and the topic does not allow that (task_delivery)"
	case kind != string(t.Kind()):
		return "the task has a receiver of kind " + kind + ", and the topic is delivered by " + string(t.Kind())
	case !t.targeter:
		return "the task has a receiver of its own, and the topic's way of delivery cannot reach it"
	}
	return ""
}

// isStray reports whether the topic cannot deliver a task with this record because of its target.
func (t *Topic) isStray(rec []byte) bool {
	if record.Flags(rec)&record.HasTarget == 0 {
		return false
	}
	own := record.TargetOf(rec)
	return t.missesTarget(string(own.Kind)) != ""
}

// retryOf returns the schedule of attempts of a task with this record.
func (t *Topic) retryOf(rec []byte) task.Retry {
	if !t.Settings.TaskDelivery || record.Flags(rec)&record.HasTarget == 0 {
		return t.Settings.Retry
	}
	own := record.TargetOf(rec)
	return t.Settings.Retry.Of(task.Retry{
		MaxAttempts: int(own.MaxAttempts), MaxAge: millisDuration(own.MaxAge),
		MinBackoff: millisDuration(own.MinBackoff), MaxBackoff: millisDuration(own.MaxBackoff),
	})
}

// receiverOf returns what a task with this record is delivered to, if that is known.
func (t *Topic) receiverOf(rec []byte) string {
	own := record.TargetOf(rec)
	return cmp.Or(string(own.Receiver), t.receiver)
}

// strayLocked has a task wait that was taken off its topic's queue, and cannot be delivered.
func strayLocked(n uint32, t *Topic, sl *store.Slot) {
	sl.Gen++
	sl.Flags |= store.Stray
	if t.Strays.Live == 0 || sl.Next < t.oldestStray {
		t.oldestStray = sl.Next
	}
	t.Strays.Push(dispatch.Item{Value: sl.Value(n)})
}

// unstrayLocked takes a task out that does not wait any more. Its generation is not that of its
// item.
func (s *Engine) unstrayLocked(t *Topic, sl *store.Slot) {
	sl.Flags &^= store.Stray
	t.Strays.Gone()
	t.Strays.Trim(trimAtOnce, s.Store.Stale)
	if t.Strays.Crowded() {
		t.Strays.Clean(s.Store.Stale)
	}
}

// returnStraysLocked puts some strays of a topic back into its queue, in the background: perhaps
// they can be delivered now. Those whose targets cannot be reached yet stay where they are.
func (s *Engine) returnStraysLocked(t *Topic, some int) {
	if t.Strays.Live == 0 || s.Ended {
		return
	}
	runs := t.returning > 0
	t.returning = max(t.returning, min(some, t.Strays.Count))
	if !runs {
		s.Life.Background.Go(func() {
			for s.returnSomeStrays(t) {
			}
		})
	}
}

// returnSomeStrays looks at some strays again. It reports false if it has seen all.
func (s *Engine) returnSomeStrays(t *Topic) (more bool) {
	s.mu.Lock()
	defer s.unlock()
	for range min(AtOnce, t.returning) {
		t.returning--
		it, ok := t.Strays.Pop()
		if !ok || s.Ended {
			t.returning = 0
			break
		}
		n, sl, live := s.Store.Unpack(it.Value, store.Ready)
		if !live {
			continue
		}
		t.Strays.Gone()
		if t.isStray(s.Store.Record(sl)) {
			strayLocked(n, t, sl)
			continue
		}
		sl.Flags &^= store.Stray
		s.readyLocked(n, sl, behind)
	}
	t.unwanted.stepped = s.Now()
	return t.returning > 0
}

// A topic may bound how many tasks of one group are delivered at once here, see dispatch.Groups. A
// task that has such a place has the flag Occupies, from the moment at which it is taken until it
// leaves the states of a delivery: settled, failed, given back, its lease run out, or its shard
// gone. Tasks that were delivered before there was a bound have none.

// joinGroupLocked queues a ready task with its group. It reports false if it is not bound.
func (s *Engine) joinGroupLocked(n uint32, t *Topic, sl *store.Slot, how arrival) bool {
	if !t.Groups.Bounds() || !s.Store.Grouped(sl) {
		return false
	}
	sl.Flags |= store.InGroup
	if it := itemOf(s, n, sl, how); how == returned {
		t.Groups.Return(s.Store.Group(sl), it)
	} else {
		t.Groups.Add(s.Store.Group(sl), it)
	}
	s.groupsChangedLocked(t)
	return true
}

// leaveGroupLocked takes a ready task out of the queue of its group. Its generation is not that of
// its item any more.
func (s *Engine) leaveGroupLocked(t *Topic, sl *store.Slot) {
	sl.Flags &^= store.InGroup
	t.Groups.Gone(s.Store.Group(sl), trimAtOnce, s.Store.Stale)
	s.groupsChangedLocked(t)
}

// countedReady returns how many ready tasks of a topic count in a backlog, if the topic does.
func (t *Topic) countedReady() int {
	if t.Groups == nil {
		return t.Queue.Live
	}
	return t.Queue.Live + t.Groups.Counted
}

// groupsChangedLocked counts in the backlog what may begin.
func (s *Engine) groupsChangedLocked(t *Topic) {
	change := t.Groups.Free - t.Groups.Counted
	t.Groups.Counted = t.Groups.Free
	if change != 0 && t.Pushed {
		s.Dispatch.Backlog += change
		s.sweepNowLocked()
	}
}

// groupOfLocked begins or ends the delivery of a task in its group. The state of the task is about
// to change.
func (s *Engine) groupOfLocked(t *Topic, sl *store.Slot, to store.State) {
	if to.Occupying() {
		if sl.Flags&store.Occupies == 0 { // else it was taken off the queue
			s.occupyLocked(t, sl)
		}
		return
	}
	if sl.Flags&store.Occupies == 0 {
		return
	}
	sl.Flags &^= store.Occupies
	t.Groups.End(s.Store.Group(sl))
	s.groupsChangedLocked(t)
	s.WakeLocked(t)
}

// occupyLocked takes a place in the group of a task that is about to be delivered.
func (s *Engine) occupyLocked(t *Topic, sl *store.Slot) {
	if t.Groups.Bounds() && s.Store.Grouped(sl) {
		sl.Flags |= store.Occupies
		t.Groups.Begin(s.Store.Group(sl))
		s.groupsChangedLocked(t)
	}
}

// reviewGroupsLocked looks at the groups of a topic again whose bound has changed, in the
// background.
func (s *Engine) reviewGroupsLocked(t *Topic) {
	if t.Groups == nil || s.Ended {
		return
	}
	s.groupsChangedLocked(t)
	if s.reviewSomeLocked(t) {
		s.Life.Background.Go(func() {
			for s.reviewSome(t) {
			}
		})
	}
}

func (s *Engine) reviewSome(t *Topic) (more bool) {
	s.mu.Lock()
	defer s.unlock()
	more = t.Groups != nil && !s.Ended && s.reviewSomeLocked(t)
	s.WakeLocked(t)
	return more
}

// reviewSomeLocked looks at some groups. When there is nothing left of a bound that was taken away,
// the topic has no groups any more.
func (s *Engine) reviewSomeLocked(t *Topic) (more bool) {
	more = t.Groups.Review(AtOnce)
	s.groupsChangedLocked(t)
	if !more && !t.Groups.Bounds() && t.Groups.Empty() {
		t.Groups = nil
	}
	return more
}
