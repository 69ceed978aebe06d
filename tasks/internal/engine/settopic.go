package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// SetTopic is tasks.Scheduler.SetTopic.
func (s *Engine) SetTopic(ctx context.Context, name string, t task.TopicSettings, ifRevision int64) (task.Topic, error) {
	if !task.ValidName(name) {
		return task.Topic{}, task.Invalid("topic", task.NameProblem)
	}
	e, err := s.Config.ByKind.Resolve(name, t)
	if err != nil {
		return task.Topic{}, err
	}
	return s.storeSettings(ctx, name, e, ifRevision)
}

// storeSettings stores settings of a topic, and then applies them.
func (s *Engine) storeSettings(ctx context.Context, name string, e task.Resolved, ifRevision int64) (task.Topic, error) {
	for caughtUp, again := false, false; ; {
		s.mu.Lock()
		have, met := s.TopicTable.ByName[name]
		if !met {
			have = &Topic{} // as it would be
		}
		var err error
		switch {
		case s.Ended:
			err = task.ErrClosed
		case ifRevision >= 0 && !isClosed(s.Reading.settingsRead) && (!met || have.unread()):
			err = errSettingsUnread
		case ifRevision >= 0 && have.stored.revision != ifRevision:
			err = task.ErrRevision
		default:
			err = have.deliverableBy(e.Set.Kind)
		}
		known := have.stored.revision
		if err == nil {
			err = s.checkOnDeadLocked(name, &e.Set)
		}
		if err == nil {
			have, err = s.TopicLocked(name, true)
		}
		if err != nil {
			s.unlock()
			if errors.Is(err, task.ErrRevision) && ifRevision > known && !caughtUp && s.catchUpTopic(ctx, name, known) {
				caughtUp = true
				continue
			}
			return task.Topic{}, err
		}
		revision, seen := have.stored.revision, have.stored.seen
		s.unlock()
		stored, err := s.putTopic(ctx, name, revision, &e.Set)
		if errors.Is(err, recovery.ErrConflict) {
			// Another call was faster, or a write landed whose answer was lost.
			err = s.reloadTopic(ctx, name, have, revision)
			// No news: what the ledger had lost may have been written again meanwhile.
			if err == nil || errors.Is(err, recovery.ErrConflict) && !again {
				again = err != nil
				continue
			}
		}
		if err != nil {
			return task.Topic{}, fmt.Errorf("%w: %w", task.ErrUnknown, err)
		}
		s.mu.Lock()
		have = s.keptTopicLocked([]byte(name)) // it may have been forgotten meanwhile
		if have.stored.revision == revision && have.stored.seen == seen {
			have.stored.seen = 0 // nothing is newer, although revisions may have begun anew
		}
		if stored > have.stored.seen { // else a caller has changed or deleted them since
			s.applyLocked(have, e, stored)
		}
		described := s.DescribeLocked(have)
		s.unlock()
		s.Cluster.TellSettings(ctx)
		return described, nil
	}
}

func (s *Engine) putTopic(ctx context.Context, name string, revision int64, t *task.TopicSettings) (int64, error) {
	settings, ok := s.Ledger.(recovery.Settings)
	if !ok {
		return s.stored.unstored.Add(1), nil
	}
	var value []byte
	if t != nil {
		var err error
		if value, err = json.Marshal(t.Stored()); err != nil {
			return 0, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.Config.AnswerWithin)
	defer cancel()
	return settings.PutSetting(ctx, task.SettingPrefix+name, revision, value)
}

// ChangeTopic is tasks.Admin.ChangeTopic.
func (s *Engine) ChangeTopic(ctx context.Context, name string, ifRevision int64, change func(*task.TopicSettings) error) (task.Topic, error) {
	if !task.ValidName(name) {
		return task.Topic{}, task.Invalid("topic", task.NameProblem)
	}
	for caughtUp := false; ; {
		e, revision, err := s.resolvedOf(name)
		if err != nil {
			return task.Topic{}, err
		}
		if ifRevision >= 0 && revision != ifRevision {
			err = task.ErrRevision
		} else {
			e, err = s.changed(name, e, change)
		}
		if err != nil {
			// What was changed may be older than what another node has just stored.
			if !caughtUp && s.catchUpTopic(ctx, name, revision) {
				caughtUp = true
				continue
			}
			return task.Topic{}, err
		}
		t, err := s.storeSettings(ctx, name, e, revision)
		if !errors.Is(err, task.ErrRevision) || ifRevision >= 0 || ctx.Err() != nil {
			return t, err
		}
	}
}

// changed returns the settings that a change makes of those of a topic.
func (s *Engine) changed(name string, e task.Resolved, change func(*task.TopicSettings) error) (task.Resolved, error) {
	set := e.Set.Stored()
	set.Delivery = bytes.Clone(set.Delivery)
	if err := change(&set); err != nil {
		return e, err
	}
	if set.Kind != e.Set.Kind || !bytes.Equal(set.Delivery, e.Set.Delivery) {
		return s.Config.ByKind.Resolve(name, set)
	}
	e.Set = set
	return e, set.Validate()
}

// catchUpTopic reads the settings of a topic from a ledger that other nodes write to as well, and
// reports whether they were newer than the revision known. Then they hold here.
func (s *Engine) catchUpTopic(ctx context.Context, name string, known int64) bool {
	shared, ok := s.Ledger.(recovery.SharedSettings)
	if !ok {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, s.Config.AnswerWithin)
	defer cancel()
	if _, revision, err := shared.Setting(ctx, task.SettingPrefix+name); err != nil || revision <= known {
		return false
	}
	s.mu.Lock()
	t, err := s.TopicLocked(name, true)
	s.unlock()
	return err == nil && s.reloadTopic(ctx, name, t, known) == nil
}

// resolvedOf returns the resolved settings of a topic, to change some of them, and their revision.
func (s *Engine) resolvedOf(name string) (task.Resolved, int64, error) {
	s.mu.Lock()
	defer s.unlock()
	e, revision := s.Config.Resolved[name], int64(0)
	have, ok := s.TopicTable.ByName[name]
	if ok {
		e, revision = have.resolved(), have.stored.revision
	}
	if !isClosed(s.Reading.settingsRead) && (!ok || have.unread()) {
		return e, 0, errSettingsUnread
	}
	if errors.Is(e.Undeliverable, errIllegibleSettings) {
		return e, 0, fmt.Errorf("%w: %w", task.ErrUnavailable, e.Undeliverable)
	}
	if e.Set.Kind == task.Pull || e.Set.Kind == task.Handler {
		e.Set.Kind = "" // which of them is this process' own matter
	}
	return e, revision, nil
}

// Reconsider is tasks.Admin.Reconsider.
func (s *Engine) Reconsider() {
	s.ReceiverCame()
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
		s.mu.Lock()
		// Else a caller has set it anew meanwhile, or it was forgotten.
		if t, ok := s.TopicTable.ByName[c.name]; ok && t.undeliverable != nil && t.stored.revision == c.revision {
			s.applyLocked(t, e, c.revision)
		}
		s.unlock()
	}
}

// ReceiverCame is tasks.Admin.ReceiverCame.
func (s *Engine) ReceiverCame(topics ...string) {
	if len(topics) == 0 {
		s.EachTopic(s.receiverCameLocked)
		return
	}
	s.mu.Lock()
	defer s.unlock()
	for _, name := range topics {
		if t, ok := s.TopicTable.ByName[name]; ok {
			s.receiverCameLocked(t)
		}
	}
}
