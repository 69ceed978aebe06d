package member

import (
	"fmt"
	"slices"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

// A table holds the terms of this process. It is replaced as a whole, so that readers need no
// lock.
type table struct {
	terms     []*Shard           // by number; nil: a free number. A lost term stays until Forget
	shardIDs  []recovery.ShardID // by number
	byShardID map[recovery.ShardID]*Shard
	byOrigin  []*originShards // this node's comes first
	number    uint16          // of this node
}

// An originShards holds those shards of one node that this process holds.
type originShards struct {
	node   string
	counts []int // numbers of shards that the node has ever used
	shards map[int]*Shard
}

// An origin is what this process must know of another node to look after its shards.
type origin struct {
	number uint16
	raw    string // its entry in the registry
	counts []int
}

// Terms is how many numbers of terms are in use or were.
func (m *Member) Terms() int { return len(m.table.Load().terms) }

// All returns the shards that this process holds.
func (m *Member) All() []*Shard { return m.table.Load().all() }

// HasDead reports whether there may be dead records.
func (m *Member) HasDead() bool { return m.buried.Load() }

// Held returns the shard of a term that has not ended.
func (m *Member) Held(n int) (*Shard, error) {
	s := m.Term(n)
	if s == nil {
		return nil, fmt.Errorf("%w: shard %d of node %s was forgotten", recovery.ErrLost, n, m.Self.Node)
	}
	return s, s.Loss()
}

// Term returns the shard of a term that was not forgotten, or nil.
func (m *Member) Term(n int) *Shard {
	if t := m.table.Load(); n >= 0 && n < len(t.terms) {
		return t.terms[n]
	}
	return nil
}

// all returns the shards that this process holds.
func (t *table) all() []*Shard {
	return slices.DeleteFunc(slices.Clone(t.terms), func(s *Shard) bool { return s == nil || !s.isHeld() })
}

// enter gives a shard a number that is free.
func (t *table) enter(s *Shard) {
	n := slices.Index(t.terms, nil)
	if n < 0 {
		n = len(t.terms)
		t.terms = append(t.terms, nil)
	}
	s.Number, t.terms[n] = n, s
}

// changeTable changes the table, and updates what depends on it. It calls change with m.mu
// locked.
func (m *Member) changeTable(change func(t *table)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := &table{terms: slices.Clone(m.table.Load().terms), byShardID: map[recovery.ShardID]*Shard{}}
	change(t)
	number := m.entry.Number
	t.number = number
	own := &originShards{node: m.Self.Node, counts: m.counts, shards: map[int]*Shard{}}
	t.shardIDs, t.byOrigin = make([]recovery.ShardID, len(t.terms)), []*originShards{own}
	// Where Redis has lost the list of numbers, another node may have got the number of this
	// one. Ids that were made with it are still found here.
	m.numbers = append(slices.DeleteFunc(m.numbers, func(n uint16) bool { return n == number }), number)
	byOrigin := map[string]*originShards{m.Self.Node: own}
	for n, s := range t.terms {
		if s == nil {
			continue
		}
		numbers := m.numbers
		if s.node != m.Self.Node {
			numbers = []uint16{m.origins[s.node].number}
		}
		t.shardIDs[n] = recovery.NewShardID(numbers[len(numbers)-1], s.index)
		if !s.isHeld() {
			continue
		}
		for _, number := range numbers {
			t.byShardID[recovery.NewShardID(number, s.index)] = s
		}
		e := byOrigin[s.node]
		if e == nil {
			e = &originShards{node: s.node, counts: m.origins[s.node].counts, shards: map[int]*Shard{}}
			byOrigin[s.node] = e
			t.byOrigin = append(t.byOrigin, e)
		}
		e.shards[s.index] = s
	}
	m.table.Store(t)
}

// ShardFor returns the term in which a new record belongs, or -1. A record whose id contains a
// shard id is kept in that shard and nowhere else, as long as any node holds it.
func (m *Member) ShardFor(id []byte) int {
	t := m.table.Load()
	if shardID, tells := recovery.ShardIDOf(string(id)); tells {
		if s := t.byShardID[shardID]; s != nil {
			return s.Number
		}
		if m.peers.isHeld(shardID) {
			return -1
		}
	}
	if s := t.byOrigin[0].shards[layout.ShardOf(id, m.Shards)]; s != nil {
		return s.Number
	}
	return -1
}

// ShardsOf returns the held shards in which an existing record may be: that of the shard id which
// its id tells, and of each node one shard for each number of shards that the node has ever used.
func (m *Member) ShardsOf(id string) []*Shard {
	t := m.table.Load()
	var shards []*Shard
	add := func(s *Shard) {
		if s != nil && s.isHeld() && !slices.Contains(shards, s) {
			shards = append(shards, s)
		}
	}
	if shardID, tells := recovery.ShardIDOf(id); tells {
		add(t.byShardID[shardID])
	}
	for _, e := range t.byOrigin {
		for _, count := range e.counts {
			add(e.shards[layout.ShardOf([]byte(id), count)])
		}
	}
	return shards
}

// AllFor returns the held shards in the order in which an existing record is looked for: those of
// ShardsOf come first. The record is in another one if Redis has lost over how many shards a node
// spread its tasks.
func (m *Member) AllFor(id string) []*Shard {
	shards := m.ShardsOf(id)
	for _, s := range m.table.Load().all() {
		if !slices.Contains(shards, s) {
			shards = append(shards, s)
		}
	}
	return shards
}

// NumbersOf returns the numbers of ShardsOf.
func (m *Member) NumbersOf(id []byte) []int {
	shards := m.ShardsOf(string(id))
	numbers := make([]int, len(shards))
	for i, s := range shards {
		numbers[i] = s.Number
	}
	return numbers
}

// OwnShardFor returns the node's own shard for a record whose id contains no shard id.
func (m *Member) OwnShardFor(id []byte) recovery.ShardID {
	return recovery.NewShardID(m.table.Load().number, layout.ShardOf(id, m.Shards))
}

// ShardID returns the shard of a term, or 0.
func (m *Member) ShardID(n int) recovery.ShardID {
	if t := m.table.Load(); n >= 0 && n < len(t.shardIDs) {
		return t.shardIDs[n]
	}
	return 0
}

// Forget frees the number of a term. It does nothing for a term that has not ended.
func (m *Member) Forget(n int) {
	m.changeTable(func(t *table) {
		if n >= 0 && n < len(t.terms) && t.terms[n] != nil && t.terms[n].Loss() != nil {
			t.terms[n] = nil
		}
	})
}

// endInTurn ends a term: nothing is written to the shard any more, and a token by which the shard
// was or may have been transferred is remembered. It reports false if the term had ended before.
func (m *Member) endInTurn(s *Shard, why error) bool {
	if !s.ended.CompareAndSwap(nil, &why) {
		return false
	}
	m.changeTable(func(*table) {
		if s.transfer != (layout.Token{}) {
			m.transferred[shardName{s.node, s.index}] = s.transfer
		}
	})
	return true
}

// revokeInTurn ends a term that was lost, and notifies memory. Until that is done, this process is
// not certain of its shards.
func (m *Member) revokeInTurn(s *Shard, why string) error {
	m.losing.Add(1) // before a heartbeat can pass the shard over
	defer m.Notices.Add(func(recovery.Watcher) { m.losing.Add(-1) })
	return m.endTermInTurn(s, fmt.Errorf("%w: shard %d: %s", recovery.ErrLost, s.Number, why))
}

// endTermInTurn ends a term with a kind of ErrLost, and notifies memory.
func (m *Member) endTermInTurn(s *Shard, err error) error {
	n := s.Number
	if m.endInTurn(s, err) {
		m.Notices.Add(func(w recovery.Watcher) {
			if w.Lost != nil {
				w.Lost(n, err)
			}
		})
	}
	return s.Loss()
}
