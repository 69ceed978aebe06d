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
// of the topic change.

// A receiving says where the tasks of a topic go.
type receiving struct {
	receiver string         // what Deliverer delivers to, if it says so
	targeter bool           // Deliverer delivers tasks to targets of their own
	Strays   dispatch.Queue // in the order in which they have become so
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
	return record.AppendTarget(nil, &record.Target{
		Kind: []byte(own.Kind), Receiver: []byte(own.Receiver), Settings: own.Settings,
		MaxAttempts: uint64(own.Retry.MaxAttempts), MaxAge: RoundUpMillis(own.Retry.MaxAge),
		MinBackoff: RoundUpMillis(own.Retry.MinBackoff), MaxBackoff: RoundUpMillis(own.Retry.MaxBackoff),
	}), nil
}

func (s *Engine) targetPolicy(topic string) (task.TargetPolicy, error) {
	s.Mu.Lock()
	defer s.Unlock()
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
	s.Unlock()
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

// ownTargetLocked returns the target in the record of a task; the zero Target if it has none.
func (s *Engine) ownTargetLocked(sl *store.Slot) (r record.Target) {
	if record.Flags(s.Store.Record(sl))&record.HasTarget != 0 {
		f := s.Store.Fields(sl)
		r, _ = record.DecodeTarget(f.Target) // Decode has checked it
	}
	return r
}

// isStrayLocked reports whether a topic cannot deliver a task because of its target.
func (s *Engine) isStrayLocked(t *Topic, sl *store.Slot) bool {
	if record.Flags(s.Store.Record(sl))&record.HasTarget == 0 {
		return false
	}
	r := s.ownTargetLocked(sl)
	return t.missesTarget(string(r.Kind)) != ""
}

// strayLocked has a task wait that was taken off its topic's queue, and cannot be delivered.
func (s *Engine) strayLocked(n uint32, t *Topic, sl *store.Slot) {
	sl.Gen++
	sl.Flags |= store.Stray
	t.Strays.Push(dispatch.Item{Value: sl.Value(n)})
}

// unstrayLocked takes a task out that does not wait any more. Its generation is not that of its
// item.
func (s *Engine) unstrayLocked(t *Topic, sl *store.Slot) {
	sl.Flags &^= store.Stray
	t.Strays.Gone()
	t.Strays.Trim(trimAtOnce, s.staleLocked)
	if t.Strays.Crowded() {
		t.Strays.Clean(s.staleLocked)
	}
}

// returnStraysLocked puts the strays of a topic back into its queue, in the background: the
// settings of the topic have changed. Those that cannot be delivered yet stay where they are.
func (s *Engine) returnStraysLocked(t *Topic) {
	if t.Strays.Live == 0 || s.Ended {
		return
	}
	runs := t.returning > 0
	t.returning = t.Strays.Count
	if !runs {
		s.Life.Background.Go(func() {
			for s.returnSomeStrays(t) {
			}
		})
	}
}

// returnSomeStrays looks at some strays again. It reports false if it has seen all.
func (s *Engine) returnSomeStrays(t *Topic) (more bool) {
	s.Mu.Lock()
	defer s.Unlock()
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
		if s.isStrayLocked(t, sl) {
			s.strayLocked(n, t, sl)
			continue
		}
		sl.Flags &^= store.Stray
		s.readyLocked(n, sl)
	}
	return t.returning > 0
}

// retryLocked returns the schedule of attempts of a task.
func (s *Engine) retryLocked(t *Topic, sl *store.Slot) task.Retry {
	if !t.Settings.TaskDelivery || record.Flags(s.Store.Record(sl))&record.HasTarget == 0 {
		return t.Settings.Retry
	}
	r := s.ownTargetLocked(sl)
	ms := func(v int64) time.Duration { return millisDuration(v) }
	return t.Settings.Retry.Of(task.Retry{
		MaxAttempts: int(r.MaxAttempts), MaxAge: ms(r.MaxAge), MinBackoff: ms(r.MinBackoff), MaxBackoff: ms(r.MaxBackoff),
	})
}

// receiverNameLocked returns what a task of a topic is delivered to, if that is known.
func (s *Engine) receiverNameLocked(t *Topic, sl *store.Slot) string {
	r := s.ownTargetLocked(sl)
	return cmp.Or(string(r.Receiver), t.receiver)
}
