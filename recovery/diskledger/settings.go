package diskledger

import (
	"bytes"
	"context"
	"strings"

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
		return 0, l.dropSetting(ctx, name, revision)
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

// dropSetting removes a setting. The caller holds l.settings.
func (l *Ledger) dropSetting(ctx context.Context, name string, revision int64) error {
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
		d.remove(appendSetting(nil, name))
		d.put(appendSetting(nil, deletedName), encodeSetting(max(deleted, revision), nil))
	})
}

// EachSetting implements recovery.Settings.
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
		for i := range p.items {
			name := string(p.key(i)[1:])
			if !strings.HasPrefix(name, prefix) {
				return nil
			}
			revision, value, err := decodeSetting(p.value(i))
			if err != nil {
				return err
			}
			if value != nil {
				visit(name, value, revision)
			}
		}
	}
	return nil
}
