package memfleet

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/lapsehq/lapse/recovery"
)

// Lookup implements recovery.Directory.
func (m *Member) Lookup(ctx context.Context, ids []string) ([]recovery.DirectoryEntry, error) {
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	defer m.f.mu.Unlock()
	found := make([]recovery.DirectoryEntry, len(ids))
	for i, id := range ids {
		found[i] = m.f.dirEntries[id]
	}
	return found, nil
}

// Update implements recovery.Directory.
func (m *Member) Update(ctx context.Context, changes []recovery.DirectoryUpdate) ([]recovery.DirectoryEntry, error) {
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	defer m.f.mu.Unlock()
	now := make([]recovery.DirectoryEntry, len(changes))
	for i, c := range changes {
		if m.f.dirEntries[c.ID] == c.Old {
			m.f.dirEntries[c.ID] = c.New
		}
		now[i] = m.f.dirEntries[c.ID]
		if now[i] == (recovery.DirectoryEntry{}) {
			delete(m.f.dirEntries, c.ID)
		}
	}
	return now, nil
}

// ScanDirectory implements recovery.DirectoryScanner.
func (m *Member) ScanDirectory(ctx context.Context, position string, visit func(id string, f recovery.DirectoryEntry)) (string, error) {
	if err := m.lock(ctx); err != nil {
		return "", err
	}
	ids := slices.Sorted(maps.Keys(m.f.dirEntries))
	from, found := slices.BinarySearch(ids, position)
	if found {
		from++
	}
	ids = ids[from:min(from+entriesAtOnce, len(ids))]
	dirEntries := make([]recovery.DirectoryEntry, len(ids))
	for i, id := range ids {
		dirEntries[i] = m.f.dirEntries[id]
	}
	m.f.mu.Unlock()
	for i, id := range ids {
		visit(id, dirEntries[i])
	}
	if len(ids) < entriesAtOnce {
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
		return errors.New("shards were acquired whose ids may not be registered: register them and call again")
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
