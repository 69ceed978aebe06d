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

// setting also returns the revision of a deleted setting: the next value gets
// a higher one, so that nobody who knew the old value mistakes it for that.
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
	}
	e, err := l.use(ctx)
	if err != nil {
		return 0, err
	}
	defer e.users.Done()
	w := e.db.NewBatch()
	if err := w.Set(appendSetting(nil, name), encodeSetting(revision+1, value), nil); err != nil {
		return 0, err
	}
	if err := e.commit(w); err != nil || value == nil {
		return 0, err
	}
	return revision + 1, nil
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
			if len(name) < len(prefix) || name[:len(prefix)] != prefix {
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
