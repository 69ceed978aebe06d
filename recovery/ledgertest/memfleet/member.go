package memfleet

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/internal/memshard"
)

// Watch implements recovery.Rewinder.
func (m *Member) Watch(w recovery.Watcher) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.watcher = w
}

// Adopt implements recovery.Ledger.
func (m *Member) Adopt(context.Context) (recovery.Terms, error) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.adopted = true
	go m.news.run()
	go m.mail.run()
	var away []recovery.ShardID
	for i := range m.count {
		shardID := recovery.NewShardID(m.number, i)
		s := m.f.shards[shardID]
		if s == nil {
			s = &fleetShard{shardID: shardID, Shard: memshard.NewShard()}
			m.f.shards[shardID] = s
		}
		if s.holder != nil && s.holder.name != m.name {
			away = append(away, shardID)
			continue
		}
		s.holder = m
		m.takeLocked(s)
	}
	// What an earlier process of this name had adopted.
	for _, s := range m.f.shards {
		if s.shardID.Node() != m.number && s.holder != nil && s.holder.name == m.name && s.holder != m {
			s.holder = m
			m.takeLocked(s)
		}
	}
	return recovery.Terms{
		Shards: len(m.terms), ShardOf: m.shardOf, ShardsOf: m.shardsOf, OwnShardFor: m.ownShardFor, Away: away,
		MaxChanges: 1024, MaxBytes: 1 << 20,
	}, nil
}

// shardOf returns the term for a new record.
func (m *Member) shardOf(id []byte) int {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	shardID, tells := recovery.ShardIDOf(string(id))
	if !tells || m.f.shards[shardID] == nil {
		shardID = m.ownShardFor(id)
	}
	return m.termLocked(shardID)
}

// ownShardFor returns the node's own shard for a record whose id contains no shard id.
func (m *Member) ownShardFor(id []byte) recovery.ShardID {
	sum := 0
	for _, b := range id {
		sum = sum*31 + int(b)
	}
	return recovery.NewShardID(m.number, (sum&0xffff)%m.count)
}

// shardsOf returns the terms in which a record may be: of each node the one where it would have
// created it.
func (m *Member) shardsOf(id []byte) (numbers []int) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	add := func(shardID recovery.ShardID) {
		if n := m.termLocked(shardID); n >= 0 && !slices.Contains(numbers, n) {
			numbers = append(numbers, n)
		}
	}
	if shardID, tells := recovery.ShardIDOf(string(id)); tells {
		add(shardID)
	}
	add(m.ownShardFor(id))
	for _, name := range slices.Sorted(maps.Keys(m.f.members)) {
		add(m.f.members[name].ownShardFor(id))
	}
	return numbers
}

func (m *Member) termLocked(shardID recovery.ShardID) int {
	return slices.IndexFunc(m.terms, func(s *fleetShard) bool { return s != nil && s.shardID == shardID && s.holder == m })
}

// Apply implements recovery.Ledger.
func (m *Member) Apply(ctx context.Context, n int, b *recovery.Batch) error {
	s, err := m.lockShard(ctx, n)
	if err != nil {
		return err
	}
	defer m.f.mu.Unlock()
	s.Apply(b, true)
	s.batches++
	return nil
}

// Get implements recovery.Ledger.
func (m *Member) Get(ctx context.Context, n int, refs []recovery.Ref, found func(i int, e recovery.Entry)) error {
	s, err := m.lockShard(ctx, n)
	if err != nil {
		return err
	}
	var hits []match
	for i, ref := range refs {
		if r, ok := s.Pending[ref.ID]; ok {
			hits = append(hits, match{i, memshard.NewEntry(n, ref.ID, r)})
		}
	}
	m.f.mu.Unlock()
	for _, h := range hits {
		found(h.i, h.HandOut())
	}
	return nil
}

// Find implements recovery.Finder.
func (m *Member) Find(ctx context.Context, id string, found func(e recovery.Entry)) error {
	return m.lookUp(ctx, []string{id}, func(s *fleetShard) map[string]memshard.Record { return s.Pending }, func(_ int, e recovery.Entry) { found(e) })
}

// GetDead implements recovery.Ledger.
func (m *Member) GetDead(ctx context.Context, ids []string, found func(i int, e recovery.Entry)) error {
	return m.lookUp(ctx, ids, func(s *fleetShard) map[string]memshard.Record { return s.Dead }, found)
}

func (m *Member) lookUp(ctx context.Context, ids []string, in func(*fleetShard) map[string]memshard.Record, found func(i int, e recovery.Entry)) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	var hits []match
	for n, s := range m.terms {
		if s == nil || s.holder != m {
			continue
		}
		for i, id := range ids {
			if r, ok := in(s)[id]; ok {
				hits = append(hits, match{i, memshard.NewEntry(n, id, r)})
			}
		}
	}
	m.f.mu.Unlock()
	for _, h := range hits {
		found(h.i, h.HandOut())
	}
	return nil
}

// Scan implements recovery.Ledger. It only nominates.
func (m *Member) Scan(ctx context.Context, page func([]recovery.Entry) error) error {
	m.f.mu.Lock()
	count := len(m.terms)
	m.f.mu.Unlock()
	for n := range count {
		if err := m.ScanShard(ctx, n, page); err != nil && !errors.Is(err, recovery.ErrLost) {
			return err
		}
	}
	return nil
}

// ScanShard implements recovery.Rewinder.
func (m *Member) ScanShard(ctx context.Context, n int, page func([]recovery.Entry) error) error {
	if err := m.nominate(ctx, n, func(s *fleetShard) map[string]memshard.Record { return s.Pending }, page); err != nil {
		return err
	}
	_, err := m.lockShard(ctx, n) // a read of a shard that is lost by now is void
	if err == nil {
		m.f.mu.Unlock()
	}
	return err
}

// ScanDead implements recovery.Fleet.
func (m *Member) ScanDead(ctx context.Context, n int, visit func(e recovery.Entry)) error {
	return m.nominate(ctx, n, func(s *fleetShard) map[string]memshard.Record { return s.Dead }, func(page []recovery.Entry) error {
		for _, e := range page {
			visit(e)
		}
		return nil
	})
}

// nominate visits the ids of one shard, without their records.
func (m *Member) nominate(ctx context.Context, n int, in func(*fleetShard) map[string]memshard.Record, page func([]recovery.Entry) error) error {
	s, err := m.lockShard(ctx, n)
	if err != nil {
		return err
	}
	var all []recovery.Entry
	for id, r := range in(s) {
		e := memshard.NewEntry(n, id, r).HandOut()
		e.Data = nil
		all = append(all, e)
	}
	m.f.mu.Unlock()
	for chunk := range slices.Chunk(all, idsAtOnce) {
		if err := page(chunk); err != nil {
			return err
		}
	}
	return nil
}

// ListDead implements recovery.Ledger.
func (m *Member) ListDead(ctx context.Context, label string, after recovery.Ref, visit func(e recovery.Entry) bool) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	var all []memshard.Entry
	for n, s := range m.terms {
		if s != nil && s.holder == m {
			all = append(all, s.Buried(n, label, after)...)
		}
	}
	m.f.mu.Unlock()
	memshard.VisitDead(all, visit)
	return nil
}

// Close implements recovery.Ledger.
func (m *Member) Close() error {
	m.Crash()
	return nil
}

// Setting implements recovery.Settings.
func (m *Member) Setting(ctx context.Context, name string) ([]byte, int64, error) {
	if err := m.reach(ctx); err != nil {
		return nil, 0, err
	}
	return m.f.settings.Setting(ctx, name)
}

// PutSetting implements recovery.Settings.
func (m *Member) PutSetting(ctx context.Context, name string, ifRevision int64, value []byte) (int64, error) {
	if err := m.reach(ctx); err != nil {
		return 0, err
	}
	return m.f.settings.PutSetting(ctx, name, ifRevision, value)
}

// EachSetting implements recovery.Settings.
func (m *Member) EachSetting(ctx context.Context, prefix string, visit func(name string, value []byte, revision int64)) error {
	if err := m.reach(ctx); err != nil {
		return err
	}
	return m.f.settings.EachSetting(ctx, prefix, visit)
}

// Keep implements recovery.Archive.
func (m *Member) Keep(ctx context.Context, s recovery.Series, now time.Time, rows []recovery.Row) error {
	if err := m.reach(ctx); err != nil {
		return err
	}
	return m.f.settings.Keep(ctx, s, now, rows)
}

// Rows implements recovery.Archive.
func (m *Member) Rows(ctx context.Context, s recovery.Series, part string, from, to time.Time, visit func(recovery.Row) bool) error {
	if err := m.reach(ctx); err != nil {
		return err
	}
	return m.f.settings.Rows(ctx, s, part, from, to, visit)
}

func (m *Member) reach(ctx context.Context) error {
	err := m.lock(ctx)
	if err == nil {
		m.f.mu.Unlock()
	}
	return err
}

// A match is an entry that was found, with its position in the request.
type match struct {
	i int
	memshard.Entry
}

// SpoolMark implements recovery.SpoolMarks.
func (m *Member) SpoolMark(ctx context.Context, spool, id string) (int64, error) {
	if err := m.lock(ctx); err != nil {
		return 0, err
	}
	defer m.f.mu.Unlock()
	shardID, _ := recovery.ShardIDOf(id)
	if s := m.f.shards[shardID]; s != nil {
		return s.Marks[spool], nil
	}
	return 0, nil
}

// idsAtOnce and entriesAtOnce are small, so that tests with few records see several pages.
const idsAtOnce, entriesAtOnce = 64, 64
