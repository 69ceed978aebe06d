package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/lapsehq/lapse/recovery"
)

// loadTopics reads the stored settings.
func (s *Scheduler) loadTopics(ctx context.Context) error {
	for name := range s.cfg.Topics {
		_, _ = s.topicLocked(name) // far below MaxTopics
	}
	settings, ok := s.ledger.(recovery.Settings)
	if !ok {
		return nil
	}
	return settings.EachSetting(ctx, settingPrefix, func(name string, value []byte, revision int64) {
		name = strings.TrimPrefix(name, settingPrefix)
		e := s.understand(name, value)
		if t, err := s.topicLocked(name); err == nil {
			s.equipLocked(t, e, revision)
		}
	})
}

// understand makes of stored settings what they ask for. What this process cannot do,
// or cannot read, keeps the topic's tasks waiting, and is told.
func (s *Scheduler) understand(topic string, value []byte) equipment {
	var stored TopicSettings
	if err := json.Unmarshal(value, &stored); err != nil {
		s.cfg.Log.Error("the stored settings of a topic cannot be read; its tasks wait", "topic", topic, "error", err)
		return equipment{unfit: fmt.Errorf("the stored settings cannot be read: %w", err)}
	}
	e, err := s.cfg.ways.equip(topic, stored)
	if err != nil {
		s.cfg.Log.Error("the tasks of a topic cannot be delivered by this process; they wait", "topic", topic, "error", err)
	}
	return e
}

// reloadTopic takes over what the ledger has for a topic, after it has refused a
// change that was based on the revision known. It returns an error if that is no
// news, so that nobody tries the same again for ever.
func (s *Scheduler) reloadTopic(ctx context.Context, name string, t *topic, known int64) error {
	settings, ok := s.ledger.(recovery.Settings)
	if !ok {
		return recovery.ErrConflict
	}
	lost, err := s.settingsLost(ctx, settings)
	if err != nil {
		return err
	}
	value, revision, err := settings.Setting(ctx, settingPrefix+name)
	if err != nil {
		return err
	}
	if lost || revision != 0 && revision < known {
		// The news is that memory knows better. Who asks for it first writes it again.
		if _, err = s.restoreOnce(ctx, settings); errors.Is(err, recovery.ErrConflict) {
			err = nil // somebody else does already
		}
		return err
	}
	if revision == known {
		return recovery.ErrConflict
	}
	e := s.cfg.brought[name]
	if revision != 0 {
		e = s.understand(name, value)
	}
	s.mu.Lock()
	defer s.unlock()
	if t.revision == known { // else the call that was faster has brought the news
		t.revisedLocked(revision)
		s.equipLocked(t, e, revision)
	}
	return nil
}

// revisedLocked takes over the revision that the ledger has. If it is a lower one,
// the ledger has lost the settings and its revisions have begun anew: they must not
// be taken for those of before.
func (t *topic) revisedLocked(revision int64) {
	if revision < t.revision {
		t.seen = revision
	}
	t.revision = revision
}
