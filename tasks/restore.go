package tasks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// restoreSettings writes again what the ledger has lost of what it keeps beside the
// tasks: the key of receipts, without which no receipt would count after the next
// start, and the settings of topics. What it holds and memory does not is left: it
// may be what this version cannot read. What stands there under memory's revision was set
// after the loss, by a node that did not know this one's change: it holds. It goes on until it
// has succeeded, or Close has begun.
func (s *engine) restoreSettings() {
	settings, ok := s.ledger.(recovery.Settings)
	if !ok {
		return
	}
	s.restoring.Lock() // shards lose writes together: the first one restores for all
	defer s.restoring.Unlock()
	for n := 0; !s.isClosing(); n++ {
		restored, err := s.restoreOnce(s.ctx, settings)
		if restored > 0 {
			s.cfg.Log.Error("the ledger had lost settings; they were written again", "node", s.cfg.Node, "written", restored)
		}
		if err == nil || errors.Is(err, recovery.ErrClosed) || (recovery.Backoff{}).Wait(s.ctx, n) != nil {
			return
		}
	}
}

// storedSetting is a setting as the ledger holds it.
type storedSetting struct {
	value    []byte
	revision int64
}

func (s *engine) restoreOnce(ctx context.Context, settings recovery.Settings) (restored int, err error) {
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
		case has.revision == t.revision && !bytes.Equal(has.value, value):
			s.takeEqualSetting(name, has)
			continue
		case has.revision >= t.revision:
			continue // not lost, or set anew by another node, whose news is still to come
		}
		if has.revision, err = s.restoreSetting(ctx, settings, task.SettingPrefix+name, has.revision, value, t.revision); err != nil {
			return restored, err
		}
		restored++
		s.mu.Lock()
		if have, ok := s.topics[name]; ok && have.revision == t.revision {
			have.revisedLocked(has.revision)
		}
		s.mu.Unlock()
	}
	// The key comes last, see settingsLost.
	again, err := s.signer.Restore(ctx, settings)
	if again {
		restored++
	}
	return restored, err
}

// restoreSetting writes a setting again. If the ledger can, it gets the revision that it had.
func (s *engine) restoreSetting(ctx context.Context, settings recovery.Settings, name string, ifRevision int64, value []byte, revision int64) (int64, error) {
	if r, ok := settings.(recovery.SettingsRestorer); ok {
		return r.RestoreSetting(ctx, name, ifRevision, value, revision)
	}
	return settings.PutSetting(ctx, name, ifRevision, value)
}

// settingsLost tells that the ledger has lost its settings, and that restoreOnce has
// not written all of them again yet: the key of receipts is never deleted.
func (s *engine) settingsLost(ctx context.Context, settings recovery.Settings) (bool, error) {
	return s.signer.Lost(ctx, settings)
}

// topicsSet returns copies of the topics that have settings of their own.
func (s *engine) topicsSet() map[string]topic {
	set := make(map[string]topic)
	s.eachTopic(func(t *topic) {
		if t.revision != 0 {
			set[t.name] = topic{settings: t.settings, own: t.own, revision: t.revision, undeliverable: t.undeliverable}
		}
	})
	return set
}
