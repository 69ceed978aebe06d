package memledger

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/recovery"
)

// A setting is a small named value.
type setting struct {
	value    []byte
	revision int64
}

// Setting implements recovery.Settings.
func (l *Ledger) Setting(ctx context.Context, name string) ([]byte, int64, error) {
	if err := l.lock(ctx); err != nil {
		return nil, 0, err
	}
	defer l.s.mu.Unlock()
	v := l.s.settings[name]
	return bytes.Clone(v.value), v.revision, nil
}

// PutSetting implements recovery.Settings.
func (l *Ledger) PutSetting(ctx context.Context, name string, ifRevision int64, value []byte) (int64, error) {
	if err := l.lock(ctx); err != nil {
		return 0, err
	}
	defer l.s.mu.Unlock()
	v, there := l.s.settings[name]
	switch {
	case there == (value != nil) && bytes.Equal(v.value, value):
		return v.revision, nil
	case v.revision != ifRevision:
		return 0, recovery.ErrConflict
	case value == nil:
		delete(l.s.settings, name)
		l.s.deletedRevision = max(l.s.deletedRevision, v.revision)
		return 0, nil
	}
	if !there {
		v.revision = l.s.deletedRevision
	}
	v.revision++
	v.value = append([]byte{}, value...)
	l.s.settings[name] = v
	return v.revision, nil
}

// EachSetting implements recovery.Settings.
func (l *Ledger) EachSetting(ctx context.Context, prefix string, visit func(name string, value []byte, revision int64)) error {
	if err := l.lock(ctx); err != nil {
		return err
	}
	all := maps.Clone(l.s.settings)
	l.s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if v := all[name]; strings.HasPrefix(name, prefix) {
			visit(name, bytes.Clone(v.value), v.revision)
		}
	}
	return nil
}
