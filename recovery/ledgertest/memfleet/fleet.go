package memfleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/internal/memshard"
	"github.com/lapsehq/lapse/recovery/memledger"
)

// What the cluster asks a ledger for by type assertion: a Member that lacks a method would pass for
// a ledger of one node.
var _ interface {
	recovery.Fleet
	recovery.Directory
	recovery.DirectoryScanner
	recovery.Bus
	recovery.Archive
} = (*Member)(nil)

// A Fleet is what several nodes of one process share, for tests of code that works with a
// [recovery.Fleet]. Nothing in it depends on time: the test says which node dies, adopts, is cut
// off or is uncertain.
type Fleet struct {
	mu         sync.Mutex // guards everything below, and all of the members
	members    map[string]*Member
	shards     map[recovery.ShardID]*fleetShard
	dirEntries map[string]recovery.DirectoryEntry
	settings   *memledger.Ledger // keeps what the nodes share besides
	drop       func(from, to string, message []byte) bool
}

// A fleetShard is one shard's records, whichever member holds it.
type fleetShard struct {
	memshard.Shard
	shardID recovery.ShardID
	holder  *Member // nil: no member has ever held it
	batches int     // that were applied
}

// New makes a fleet without nodes.
func New() *Fleet {
	settings := memledger.New()
	_, _ = settings.Adopt(context.Background()) // no other handle can hold it
	return &Fleet{
		members:    map[string]*Member{},
		shards:     map[recovery.ShardID]*fleetShard{},
		dirEntries: map[string]recovery.DirectoryEntry{},
		settings:   settings,
	}
}

// Drop calls lost for every message: if it returns true, the message is lost.
func (f *Fleet) Drop(drop func(from, to string, message []byte) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop = drop
}

// Holder names the node that holds a shard; empty if none does.
func (f *Fleet) Holder(shardID recovery.ShardID) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.shards[shardID]; s != nil && s.holder != nil {
		return s.holder.name
	}
	return ""
}

// A Member is one process in a fleet. It implements recovery.Fleet, Settings, Finder,
// Directory, Bus and Archive.
type Member struct {
	f      *Fleet
	name   string
	number uint16
	count  int // of its own shards

	terms     []*fleetShard // by number; nil: lost, transferred or forgotten
	shardIDs  []recovery.ShardID
	forgotten []bool
	adopted   bool
	dead      bool
	died      time.Time // zero: it lives
	cut       bool      // reaches neither the records nor other members
	uncertain bool
	unindexed bool
	suspect   bool     // it has acquired shards whose ids may not be registered
	spool     string   // see recovery.Fleet.OpenSpool
	missing   []string // see recovery.Node.MissingSpools
	watcher   recovery.Watcher
	receive   func([]byte)
	acquiring int    // shards that the watcher was not notified of yet
	status    []byte // its last status

	news *news // for the watcher
	mail *news // messages of other members
}

// Join makes a process of a node name, with so many shards of its own. The earlier process of that
// name is dead from now on.
func (f *Fleet) Join(name string, shards int) *Member {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := &Member{f: f, name: name, count: shards, number: uint16(len(f.members) + 1), news: newNews(), mail: newNews()}
	if before := f.members[name]; before != nil {
		before.dieLocked()
		m.number, m.count, m.spool, m.missing = before.number, max(shards, before.count), before.spool, before.missing
	}
	f.members[name] = m
	return m
}

// Crash ends a process without any clean-up.
func (m *Member) Crash() {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.dieLocked()
}

func (m *Member) dieLocked() {
	if !m.dead {
		m.dead, m.died = true, time.Now()
		m.news.end()
		m.mail.end()
	}
}

// Cut cuts a process off from the records and from other members, or ends that. A process that is
// cut off does not notice what it loses.
func (m *Member) Cut(cut bool) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.cut = cut
	if cut {
		return
	}
	for n, s := range m.terms {
		if s != nil && s.holder != m {
			m.revokeLocked(n)
		}
	}
}

// Uncertain sets whether Standing reports Certain.
func (m *Member) Uncertain(uncertain bool) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.uncertain = uncertain
}

// AdoptFrom makes a process adopt the shards of another one, dead or not, as far as its memory has
// room. It returns how many it adopted.
func (m *Member) AdoptFrom(other *Member) int {
	m.f.mu.Lock()
	room := m.watcher.Room
	m.f.mu.Unlock()
	left := -1
	if room != nil {
		left = room()
	}
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	count := 0
	for _, shardID := range slices.Sorted(maps.Keys(m.f.shards)) {
		s := m.f.shards[shardID]
		if s.holder != other || left >= 0 && len(s.Pending) > left {
			continue
		}
		left -= len(s.Pending)
		if n := slices.Index(other.terms, s); n >= 0 && !other.cut && !other.dead {
			other.revokeLocked(n)
		}
		m.acquireLocked(s, false)
		count++
	}
	return count
}

func (m *Member) acquireLocked(s *fleetShard, transferred bool) {
	s.holder = m
	n := m.takeLocked(s)
	for _, o := range m.f.members {
		if o != m && o.unindexed {
			m.unindexed, m.suspect = true, true
		}
	}
	m.acquiring++
	m.news.add(func(w recovery.Watcher) {
		if w.Acquired != nil {
			w.Acquired(n, transferred)
		}
		m.f.mu.Lock()
		m.acquiring--
		m.f.mu.Unlock()
	}, m)
}

// takeLocked gives a shard a number.
func (m *Member) takeLocked(s *fleetShard) int {
	n := slices.Index(m.forgotten, true)
	if n < 0 {
		n = len(m.terms)
		m.terms, m.shardIDs, m.forgotten = append(m.terms, nil), append(m.shardIDs, 0), append(m.forgotten, false)
	}
	m.terms[n], m.shardIDs[n], m.forgotten[n] = s, s.shardID, false
	return n
}

func (m *Member) revokeLocked(n int) {
	m.terms[n] = nil
	err := m.lost(n)
	m.news.add(func(w recovery.Watcher) {
		if w.Lost != nil {
			w.Lost(n, err)
		}
	}, m)
}

func (m *Member) lost(n int) error {
	return fmt.Errorf("%w: shard %d of node %s", recovery.ErrLost, n, m.name)
}

// lock locks the fleet for a call, or returns why the call must fail.
func (m *Member) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.f.mu.Lock()
	switch {
	case m.dead || !m.adopted:
		m.f.mu.Unlock()
		return fmt.Errorf("memory ledger of node %s: %w", m.name, recovery.ErrClosed)
	case m.cut:
		m.f.mu.Unlock()
		return errCut
	}
	return nil
}

var errCut = errors.New("memory ledger: cut off")

// lockShard is lock for a call that concerns one shard.
func (m *Member) lockShard(ctx context.Context, n int) (*fleetShard, error) {
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	if s := m.terms[n]; s != nil && s.holder == m {
		return s, nil
	}
	if m.terms[n] != nil {
		m.revokeLocked(n)
	}
	m.f.mu.Unlock()
	return nil, m.lost(n)
}
