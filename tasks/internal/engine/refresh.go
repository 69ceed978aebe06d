package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// This file is how settings come from the ledger: at the start, when another node has
// changed them, and when a change was refused because it was based on older ones.

// refreshEvery is the time between two reads of the settings of a ledger that other nodes use. A
// change of which this node was not told, see RefreshSettings, holds here within a second.
const refreshEvery = 400 * time.Millisecond

// refreshLoop takes over settings that other nodes have changed. It does not log errors: an outage
// is logged elsewhere, and changes made meanwhile are found when it is over.
func (s *Engine) refreshLoop() {
	if _, shared := s.Ledger.(recovery.SharedSettings); !shared || !s.Life.Outlast(s.Reading.settingsRead) {
		return
	}
	refresh := func() { s.RefreshSettings(s.Life.Context) }
	refresh()
	s.Life.Every(refreshEvery, refresh)
}

// RefreshSettings takes over settings that other nodes have changed before it was called. It gives
// up if another refresh is under way until ctx ends.
func (s *Engine) RefreshSettings(ctx context.Context) {
	shared, ok := s.Ledger.(recovery.SharedSettings)
	if !ok || !isClosed(s.Reading.settingsRead) {
		return
	}
	select {
	case s.stored.refreshing <- struct{}{}:
		defer func() { <-s.stored.refreshing }()
		s.stored.version = s.RefreshOnce(shared, s.stored.version)
	case <-ctx.Done():
	}
}

// RefreshOnce takes over what has changed since a version of the settings, or everything if
// there is none, and returns the version that it has taken over.
func (s *Engine) RefreshOnce(shared recovery.SharedSettings, seen *recovery.SettingsVersion) *recovery.SettingsVersion {
	if seen != nil {
		version, err := s.refreshChanged(shared, *seen)
		switch {
		case err == nil:
			return &version
		case errors.Is(err, recovery.ErrRewound): // and perhaps nothing else was lost
			s.restoreSettings()
			seen = nil
		case !errors.Is(err, recovery.ErrNoHistory):
			return seen
		}
	}
	version, err := shared.SettingsVersion(s.Life.Context)
	if err != nil || s.Refresh(shared) != nil {
		return seen
	}
	return &version // read before: what came in between is found the next time
}

// refreshChanged takes over the settings that have changed since a version, and returns the
// version up to which these are all.
func (s *Engine) refreshChanged(shared recovery.SharedSettings, seen recovery.SettingsVersion) (recovery.SettingsVersion, error) {
	s.stored.restoring.Lock() // what the ledger has lost is no deletion
	defer s.stored.restoring.Unlock()
	news := make(map[string]storedSetting)
	version, err := shared.ChangedSettings(s.Life.Context, seen, task.SettingPrefix, func(name string, value []byte, revision int64) {
		news[strings.TrimPrefix(name, task.SettingPrefix)] = storedSetting{bytes.Clone(value), revision}
	})
	if err != nil || len(news) == 0 {
		return version, err
	}
	if lost, err := s.Signer.Lost(s.Life.Context, shared); err != nil || lost {
		return seen, errors.Join(err, errSettingsLost)
	}
	for name, set := range news {
		if set.value != nil {
			s.takeSetting(name, set)
			continue
		}
		s.mu.Lock()
		// A higher revision is that of settings that were set anew since.
		if t, ok := s.TopicTable.ByName[name]; ok && t.stored.revision != 0 && t.stored.revision <= set.revision {
			s.applyLocked(t, s.Config.Resolved[name], 0)
		}
		s.unlock()
	}
	return version, nil
}

// takeSetting lets stored settings hold, if they are news.
func (s *Engine) takeSetting(name string, set storedSetting) {
	s.mu.Lock()
	had, ok := s.TopicTable.ByName[name]
	known := ok && had.stored.revision == set.revision
	s.mu.Unlock()
	if known { // as they are when this node has set them
		return
	}
	e := s.understand(name, set.value)
	s.mu.Lock()
	defer s.unlock()
	t := s.keptTopicLocked([]byte(name)) // MaxTopics was minded when they were set
	// A lower revision is news if there are no settings: see revisedLocked.
	if set.revision > t.stored.seen || t.stored.revision == 0 && set.revision < t.stored.seen {
		t.revisedLocked(set.revision)
		s.applyLocked(t, e, set.revision)
	}
}

// takeEqualSetting lets stored settings hold that have the revision of those in memory and are
// others.
func (s *Engine) takeEqualSetting(name string, set storedSetting) {
	e := s.understand(name, set.value)
	s.mu.Lock()
	defer s.unlock()
	if t, ok := s.TopicTable.ByName[name]; ok && t.stored.revision == set.revision {
		s.applyLocked(t, e, set.revision)
	}
}

// Refresh makes the settings of all topics those that the ledger has.
func (s *Engine) Refresh(settings recovery.Settings) error {
	s.stored.restoring.Lock() // what the ledger has lost is no deletion
	defer s.stored.restoring.Unlock()
	gone := s.topicsSet()
	news := make(map[string]storedSetting)
	if err := settings.EachSetting(s.Life.Context, task.SettingPrefix, func(name string, value []byte, revision int64) {
		name = strings.TrimPrefix(name, task.SettingPrefix)
		if t, known := gone[name]; !known || t.stored.revision < revision {
			news[name] = storedSetting{bytes.Clone(value), revision}
		}
		delete(gone, name)
	}); err != nil {
		return err
	}
	if lost, err := s.Signer.Lost(s.Life.Context, settings); err != nil || lost {
		return errors.Join(err, errSettingsLost)
	}
	for name, set := range news {
		s.takeSetting(name, set)
	}
	for name, before := range gone {
		s.mu.Lock()
		if t, ok := s.TopicTable.ByName[name]; ok && t.stored.revision == before.stored.revision {
			s.applyLocked(t, s.Config.Resolved[name], 0)
		}
		s.unlock()
	}
	return nil
}

var (
	errSettingsLost      = errors.New("the ledger has lost its settings")
	errIllegibleSettings = errors.New("the stored settings cannot be read")
)

// understand resolves stored settings. If this process cannot read or follow them, it logs that and
// returns settings with which the topic's tasks wait.
func (s *Engine) understand(topic string, value []byte) task.Resolved {
	var stored task.TopicSettings
	if err := json.Unmarshal(value, &stored); err != nil {
		s.Config.Log.Error("the stored settings of a topic cannot be read; its tasks wait", "node", s.Config.Node, "topic", topic, "error", err)
		return task.Resolved{Undeliverable: fmt.Errorf("%w: %w", errIllegibleSettings, err)}
	}
	e, err := s.Config.ByKind.Resolve(topic, stored)
	if err != nil {
		s.Config.Log.Error("this process cannot deliver the tasks of a topic; they wait", "node", s.Config.Node, "topic", topic, "error", err)
	}
	return e
}

// reloadTopic takes over what the ledger has for a topic, after it has refused a
// change that was based on the revision known. It returns an error if that is no
// news, so that the same is not tried again for ever.
func (s *Engine) reloadTopic(ctx context.Context, name string, t *Topic, known int64) error {
	settings, ok := s.Ledger.(recovery.Settings)
	if !ok {
		return recovery.ErrConflict
	}
	lost, err := s.Signer.Lost(ctx, settings)
	if err != nil {
		return err
	}
	value, revision, err := settings.Setting(ctx, task.SettingPrefix+name)
	if err != nil {
		return err
	}
	if lost || revision != 0 && revision < known {
		// The news is that memory knows better. Who asks for it first writes it again.
		if _, err = s.RestoreOnce(ctx, settings); errors.Is(err, recovery.ErrConflict) {
			err = nil // another caller does already
		}
		return err
	}
	if revision == known {
		return recovery.ErrConflict
	}
	e := s.Config.Resolved[name]
	if revision != 0 {
		e = s.understand(name, value)
	}
	s.mu.Lock()
	defer s.unlock()
	if t.stored.revision == known { // else the call that was faster has brought the news
		t.revisedLocked(revision)
		s.applyLocked(t, e, revision)
	}
	return nil
}

// revisedLocked takes over the revision that the ledger has. If it is lower than one that
// was met, the ledger has lost the settings and its revisions have begun anew: they must
// not be taken for those of before.
func (t *Topic) revisedLocked(revision int64) {
	t.stored.seen = min(t.stored.seen, revision)
	t.setRevision(revision)
}

// restoreSettings writes settings again that the ledger has lost: the key of receipts, without
// which no receipt would count after the next start, and the settings of topics. It leaves settings
// alone that memory does not have: this version may not be able to read them. Stored settings with
// the revision that memory has were set after the loss, by a node that did not know this node's
// change: they hold. It goes on until it has succeeded, or Close has begun.
func (s *Engine) restoreSettings() {
	settings, ok := s.Ledger.(recovery.Settings)
	if !ok {
		return
	}
	s.stored.restoring.Lock() // shards lose writes together: the first one restores for all
	defer s.stored.restoring.Unlock()
	for n := 0; !s.IsClosing(); n++ {
		restored, err := s.RestoreOnce(s.Life.Context, settings)
		if restored > 0 {
			s.Config.Log.Error("the ledger had lost settings; they were written again", "node", s.Config.Node, "written", restored)
		}
		if err == nil || errors.Is(err, recovery.ErrClosed) || (recovery.Backoff{}).Wait(s.Life.Context, n) != nil {
			return
		}
	}
}

// storedSetting is a setting as the ledger holds it.
type storedSetting struct {
	value    []byte
	revision int64
}

// RestoreOnce writes settings again that the ledger has lost, and returns how many.
func (s *Engine) RestoreOnce(ctx context.Context, settings recovery.Settings) (restored int, err error) {
	held := make(map[string]storedSetting)
	if err := settings.EachSetting(ctx, task.SettingPrefix, func(name string, value []byte, revision int64) {
		held[strings.TrimPrefix(name, task.SettingPrefix)] = storedSetting{bytes.Clone(value), revision}
	}); err != nil {
		return restored, err
	}
	for name, t := range s.topicsSet() {
		if errors.Is(t.undeliverable, errIllegibleSettings) {
			continue // memory does not know what they were
		}
		value, err := json.Marshal(t.explicit().Stored())
		if err != nil {
			return restored, err
		}
		has := held[name]
		switch {
		case has.revision == t.stored.revision && !bytes.Equal(has.value, value):
			s.takeEqualSetting(name, has)
			continue
		case has.revision >= t.stored.revision:
			continue // not lost, or set anew by another node, whose news is still to come
		}
		if has.revision, err = restoreSetting(ctx, settings, task.SettingPrefix+name, has.revision, value, t.stored.revision); err != nil {
			return restored, err
		}
		restored++
		s.mu.Lock()
		if have, ok := s.TopicTable.ByName[name]; ok && have.stored.revision == t.stored.revision {
			have.revisedLocked(has.revision)
		}
		s.mu.Unlock()
	}
	// The key, which is never deleted, comes last: while the ledger lacks it, some of the settings
	// may not be written again yet.
	again, err := s.Signer.Restore(ctx, settings)
	if again {
		restored++
	}
	return restored, err
}

// restoreSetting writes a setting again. If the ledger can, it gets the revision that it had.
func restoreSetting(ctx context.Context, settings recovery.Settings, name string, ifRevision int64, value []byte, revision int64) (int64, error) {
	if r, ok := settings.(recovery.SettingsRestorer); ok {
		return r.RestoreSetting(ctx, name, ifRevision, value, revision)
	}
	return settings.PutSetting(ctx, name, ifRevision, value)
}

// topicsSet returns copies of the topics that have settings of their own.
func (s *Engine) topicsSet() map[string]Topic {
	set := make(map[string]Topic)
	s.EachTopic(func(t *Topic) {
		if t.stored.revision != 0 {
			set[t.Name] = Topic{Settings: t.Settings, stored: t.stored, undeliverable: t.undeliverable}
		}
	})
	return set
}
