package memfleet

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/lapsehq/lapse/recovery"
)

// Look implements recovery.Directory.
func (m *Member) Look(ctx context.Context, ids []string) ([]recovery.Filing, error) {
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	defer m.f.mu.Unlock()
	found := make([]recovery.Filing, len(ids))
	for i, id := range ids {
		found[i] = m.f.filings[id]
	}
	return found, nil
}

// File implements recovery.Directory.
func (m *Member) File(ctx context.Context, changes []recovery.Refiling) ([]recovery.Filing, error) {
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	defer m.f.mu.Unlock()
	now := make([]recovery.Filing, len(changes))
	for i, c := range changes {
		if m.f.filings[c.ID] == c.Old {
			m.f.filings[c.ID] = c.New
		}
		now[i] = m.f.filings[c.ID]
		if now[i] == (recovery.Filing{}) {
			delete(m.f.filings, c.ID)
		}
	}
	return now, nil
}

// ScanFilings implements recovery.FilingScanner.
func (m *Member) ScanFilings(ctx context.Context, position string, visit func(id string, f recovery.Filing)) (string, error) {
	if err := m.lock(ctx); err != nil {
		return "", err
	}
	ids := slices.Sorted(maps.Keys(m.f.filings))
	from, found := slices.BinarySearch(ids, position)
	if found {
		from++
	}
	ids = ids[from:min(from+filingsAtOnce, len(ids))]
	filings := make([]recovery.Filing, len(ids))
	for i, id := range ids {
		filings[i] = m.f.filings[id]
	}
	m.f.mu.Unlock()
	for i, id := range ids {
		visit(id, filings[i])
	}
	if len(ids) < filingsAtOnce {
		return "", nil
	}
	return ids[len(ids)-1], nil
}

// MarkIndexed implements recovery.Directory. A member counts as indexed until it clears the mark.
func (m *Member) MarkIndexed(ctx context.Context, indexed bool) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.f.mu.Unlock()
	if indexed && m.suspect {
		m.suspect = false
		return errors.New("shards were acquired whose ids may not be filed: file them and call again")
	}
	m.unindexed = !indexed
	return nil
}

// holdsLocked reports whether a process, dead or not, holds shards.
func (f *Fleet) holdsLocked(m *Member) bool {
	for _, s := range f.shards {
		if s.holder == m {
			return true
		}
	}
	return false
}

// Unindexed implements recovery.Directory.
func (m *Member) Unindexed(ctx context.Context) ([]string, error) {
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	defer m.f.mu.Unlock()
	var names []string
	for name, o := range m.f.members {
		if o != m && o.unindexed && (!o.dead || m.f.holdsLocked(o)) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}
