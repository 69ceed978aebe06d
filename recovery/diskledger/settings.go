package diskledger

import (
	"bytes"
	"context"

	"github.com/lapsehq/lapse/recovery"
)

// Setting implements recovery.Settings.
func (l *Ledger) Setting(ctx context.Context, name string) ([]byte, int64, error) {
	revision, value, err := l.setting(ctx, name)
	if value == nil {
		revision = 0
	}
	return value, revision, err
}

// setting returns a value and its revision. Without a value, the next one gets a higher revision
// than the one returned: a caller that has seen an old value cannot take the next one for it.
func (l *Ledger) setting(ctx context.Context, name string) (revision int64, value []byte, err error) {
	e, err := l.use(ctx)
	if err != nil {
		return 0, nil, err
	}
	r := reader{engine: e}
	there := r.get(appendSetting(nil, name))
	if err := r.handOut(nil); err != nil || !there {
		return 0, nil, err
	}
	return decodeSetting(r.value)
}

// PutSetting implements recovery.Settings.
func (l *Ledger) PutSetting(ctx context.Context, name string, ifRevision int64, value []byte) (int64, error) {
	l.settings.Lock()
	defer l.settings.Unlock()
	revision, held, err := l.setting(ctx, name)
	if err != nil {
		return 0, err
	}
	current := revision
	if held == nil {
		current = 0
	}
	switch {
	case (held == nil) == (value == nil) && bytes.Equal(held, value):
		return current, nil
	case current != ifRevision:
		return 0, recovery.ErrConflict
	case value == nil:
		return 0, l.dropSettings(ctx, []string{name}, revision)
	case held == nil:
		deleted, _, err := l.setting(ctx, deletedName)
		if err != nil {
			return 0, err
		}
		revision = max(revision, deleted)
	}
	e, err := l.use(ctx)
	if err != nil {
		return 0, err
	}
	defer e.users.Done()
	return revision + 1, e.write(func(d *draft) { d.put(appendSetting(nil, name), encodeSetting(revision+1, value)) })
}

// dropSettings removes settings that have revisions up to this one. The caller holds
// l.settings.
func (l *Ledger) dropSettings(ctx context.Context, names []string, revision int64) error {
	deleted, _, err := l.setting(ctx, deletedName)
	if err != nil {
		return err
	}
	e, err := l.use(ctx)
	if err != nil {
		return err
	}
	defer e.users.Done()
	return e.write(func(d *draft) {
		for _, name := range names {
			d.remove(appendSetting(nil, name))
		}
		d.put(appendSetting(nil, deletedName), encodeSetting(max(deleted, revision), nil))
	})
}

// EachSetting implements recovery.Settings. It removes the revisions that an earlier version has
// kept of deleted settings.
func (l *Ledger) EachSetting(ctx context.Context, prefix string, visit func(name string, value []byte, revision int64)) error {
	p := page{next: appendSetting(nil, prefix)}
	for !p.last {
		e, err := l.use(ctx)
		if err != nil {
			return err
		}
		err = p.read(e, e.db, []byte{kindSetting + 1})
		e.users.Done()
		if err != nil {
			return err
		}
		var left []string
		for i := range p.items {
			name := string(p.key(i)[1:])
			if len(name) < len(prefix) || name[:len(prefix)] != prefix {
				p.last = true
				break
			}
			revision, value, err := decodeSetting(p.value(i))
			switch {
			case err != nil:
				return err
			case value != nil:
				visit(name, value, revision)
			case name != deletedName:
				left = append(left, name)
			}
		}
		if err := l.prune(ctx, left); err != nil {
			return err
		}
	}
	return nil
}

// prune removes the revisions of deleted settings, unless they were set anew.
func (l *Ledger) prune(ctx context.Context, left []string) error {
	if len(left) == 0 {
		return nil
	}
	l.settings.Lock()
	defer l.settings.Unlock()
	var names []string
	highest := int64(0)
	for _, name := range left {
		revision, value, err := l.setting(ctx, name)
		if err != nil {
			return err
		}
		if value == nil {
			names, highest = append(names, name), max(highest, revision)
		}
	}
	return l.dropSettings(ctx, names, highest)
}
