package memledger

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/recovery"
)

// A setting is a small named value. A deleted one keeps its revision, so that
// revisions only grow.
type setting struct {
	value    []byte // nil when deleted
	revision int64
}

// Setting implements recovery.Settings.
func (l *Ledger) Setting(ctx context.Context, name string) ([]byte, int64, error) {
	if err := l.lock(ctx); err != nil {
		return nil, 0, err
	}
	defer l.s.mu.Unlock()
	v := l.s.settings[name]
	if v.value == nil {
		return nil, 0, nil
	}
	return bytes.Clone(v.value), v.revision, nil
}

// PutSetting implements recovery.Settings.
func (l *Ledger) PutSetting(ctx context.Context, name string, ifRevision int64, value []byte) (int64, error) {
	if err := l.lock(ctx); err != nil {
		return 0, err
	}
	defer l.s.mu.Unlock()
	v := l.s.settings[name]
	current := v.revision
	if v.value == nil {
		current = 0
	}
	switch {
	case (v.value == nil) == (value == nil) && bytes.Equal(v.value, value):
		return current, nil
	case current != ifRevision:
		return 0, recovery.ErrConflict
	}
	v.revision++
	v.value = nil
	if value != nil {
		v.value = append([]byte{}, value...)
	}
	l.s.settings[name] = v
	if value == nil {
		return 0, nil
	}
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
		if v := all[name]; v.value != nil && strings.HasPrefix(name, prefix) {
			visit(name, bytes.Clone(v.value), v.revision)
		}
	}
	return nil
}
