package ledgertest

import (
	"context"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// Adopt implements recovery.Ledger.
func (f *Faulty) Adopt(ctx context.Context) (terms recovery.Terms, err error) {
	err = f.do(ctx, Adopt, func() (err error) {
		terms, err = f.inner.Adopt(ctx)
		return err
	})
	return terms, err
}

// Apply implements recovery.Ledger.
func (f *Faulty) Apply(ctx context.Context, shard int, b *recovery.Batch) error {
	return f.do(ctx, Apply, func() error {
		f.mu.Lock()
		full := f.full
		f.mu.Unlock()
		if !full {
			return f.inner.Apply(ctx, shard, b)
		}
		var rest recovery.Batch
		for i := range b.Len() {
			if c := b.At(i); !c.Creation() {
				rest.Add(c)
			}
		}
		if err := f.inner.Apply(ctx, shard, &rest); err != nil || rest.Len() == b.Len() {
			return err
		}
		return recovery.ErrFull
	})
}

// Get implements recovery.Ledger.
func (f *Faulty) Get(ctx context.Context, shard int, refs []recovery.Ref, found func(i int, e recovery.Entry)) error {
	return f.do(ctx, Get, func() error { return f.inner.Get(ctx, shard, refs, found) })
}

// Scan implements recovery.Ledger.
func (f *Faulty) Scan(ctx context.Context, page func([]recovery.Entry) error) error {
	return f.do(ctx, Scan, func() error {
		return f.inner.Scan(ctx, func(entries []recovery.Entry) error {
			return f.do(ctx, Page, func() error { return page(entries) })
		})
	})
}

// GetDead implements recovery.Ledger.
func (f *Faulty) GetDead(ctx context.Context, ids []string, found func(i int, e recovery.Entry)) error {
	return f.do(ctx, GetDead, func() error { return f.inner.GetDead(ctx, ids, found) })
}

// ListDead implements recovery.Ledger.
func (f *Faulty) ListDead(ctx context.Context, label string, after recovery.Ref, visit func(e recovery.Entry) bool) error {
	return f.do(ctx, ListDead, func() error { return f.inner.ListDead(ctx, label, after, visit) })
}

// Close implements recovery.Ledger.
func (f *Faulty) Close() error {
	return f.do(context.Background(), Close, f.inner.Close)
}

func (f *Faulty) settings() (recovery.Settings, error) {
	if s, ok := f.inner.(recovery.Settings); ok {
		return s, nil
	}
	return nil, fmt.Errorf("%T keeps no settings", f.inner)
}

// Setting implements recovery.Settings.
func (f *Faulty) Setting(ctx context.Context, name string) (value []byte, revision int64, err error) {
	err = f.do(ctx, Setting, func() error {
		s, err := f.settings()
		if err != nil {
			return err
		}
		value, revision, err = s.Setting(ctx, name)
		return err
	})
	return value, revision, err
}

// PutSetting implements recovery.Settings.
func (f *Faulty) PutSetting(ctx context.Context, name string, ifRevision int64, value []byte) (revision int64, err error) {
	err = f.do(ctx, PutSetting, func() error {
		s, err := f.settings()
		if err != nil {
			return err
		}
		revision, err = s.PutSetting(ctx, name, ifRevision, value)
		return err
	})
	return revision, err
}

// EachSetting implements recovery.Settings.
func (f *Faulty) EachSetting(ctx context.Context, prefix string, visit func(name string, value []byte, revision int64)) error {
	return f.do(ctx, EachSetting, func() error {
		s, err := f.settings()
		if err != nil {
			return err
		}
		return s.EachSetting(ctx, prefix, visit)
	})
}

// Find implements recovery.Finder.
func (f *Faulty) Find(ctx context.Context, id string, found func(e recovery.Entry)) error {
	return f.do(ctx, Find, func() error {
		finder, ok := f.inner.(recovery.Finder)
		if !ok {
			return fmt.Errorf("%T finds nothing by id", f.inner)
		}
		return finder.Find(ctx, id, found)
	})
}

// FindMany implements recovery.ManyFinder. It counts as one Find.
func (f *Faulty) FindMany(ctx context.Context, ids []string, found func(i int, e recovery.Entry)) error {
	return f.do(ctx, Find, func() error {
		finder, ok := f.inner.(recovery.Finder)
		if !ok {
			return fmt.Errorf("%T finds nothing by id", f.inner)
		}
		return recovery.FindMany(ctx, finder, ids, found)
	})
}

// SpoolMark implements recovery.SpoolMarks.
func (f *Faulty) SpoolMark(ctx context.Context, spool, id string) (number int64, err error) {
	err = f.do(ctx, SpoolMark, func() error {
		marks, ok := f.inner.(recovery.SpoolMarks)
		if !ok {
			return fmt.Errorf("%T takes nothing over from a spool", f.inner)
		}
		number, err = marks.SpoolMark(ctx, spool, id)
		return err
	})
	return number, err
}

func (f *Faulty) archive() (recovery.Archive, error) {
	if a, ok := f.inner.(recovery.Archive); ok {
		return a, nil
	}
	return nil, fmt.Errorf("%T has no archive", f.inner)
}

// Keep implements recovery.Archive.
func (f *Faulty) Keep(ctx context.Context, s recovery.Series, now time.Time, rows []recovery.Row) error {
	return f.do(ctx, Keep, func() error {
		a, err := f.archive()
		if err != nil {
			return err
		}
		return a.Keep(ctx, s, now, rows)
	})
}

// Rows implements recovery.Archive.
func (f *Faulty) Rows(ctx context.Context, s recovery.Series, part string, from, to time.Time, visit func(recovery.Row) bool) error {
	return f.do(ctx, Rows, func() error {
		a, err := f.archive()
		if err != nil {
			return err
		}
		return a.Rows(ctx, s, part, from, to, visit)
	})
}

// Condition implements recovery.Conditioner.
func (f *Faulty) Condition() error {
	f.mu.Lock()
	err := f.condition
	f.mu.Unlock()
	if c, ok := f.inner.(recovery.Conditioner); ok && err == nil {
		return c.Condition()
	}
	return err
}
