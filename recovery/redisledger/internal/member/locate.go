package member

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

// Locate returns the holder of a shard, see recovery.Fleet.
func (m *Member) Locate(ctx context.Context, shardID recovery.ShardID, anew bool) (recovery.Holder, error) {
	if s := m.table.Load().byShardID[shardID]; s != nil && s.isHeld() {
		return recovery.Holder{Shard: s.Number, Node: m.Self.Node, Live: true}, nil
	}
	w := &m.peers
	if !anew {
		w.mu.Lock()
		t, known := w.tokens[shardID]
		live := known && t.Node != "" && !t.Retired() && m.livenessLocked(t.Token) == living
		w.mu.Unlock()
		if live {
			return recovery.Holder{Shard: -1, Node: t.Node, Live: true}, nil
		}
	}
	node, err := m.nodeOf(ctx, shardID.Node())
	if err != nil {
		return recovery.Holder{}, err
	}
	none := recovery.Holder{Shard: -1}
	if node == "" {
		return none, nil
	}
	keys := m.Keys.Shard(node, shardID.Shard())
	raw, err := m.Client.HGet(ctx, keys.Tasks(), layout.OwnerField).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return none, err
	}
	t := layout.ReadToken(raw)
	w.noteToken(shardID, t)
	if none.Retired = t.Retired(); none.Retired {
		return none, nil
	}
	if t == (layout.Token{}) {
		return none, m.tokenMissing(shardID)
	}
	w.mu.Lock()
	s := w.nodes[t.Node]
	known := s != nil && s.entry.Incarnation == t.Incarnation
	w.mu.Unlock()
	if !known { // it may have been registered since the last poll
		if err := m.Poll(ctx); err != nil {
			return none, err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return recovery.Holder{Shard: -1, Node: t.Node, Live: m.livenessLocked(t) == living}, nil
}

// noteToken remembers the token of a shard.
func (w *watch) noteToken(shardID recovery.ShardID, t layout.Token) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteTokenLocked(shardID, seenToken{Token: t})
}

// tokenMissing returns the error for a shard without a token: none for one that no node has used.
func (m *Member) tokenMissing(shardID recovery.ShardID) error {
	w := &m.peers
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, s := w.byNumberLocked(shardID.Node()); s != nil && s.fault == nil && shardID.Shard() >= s.entry.shards() {
		return nil
	}
	return fmt.Errorf("%w: shard %d of node number %d has no token", recovery.ErrOwnerLost, shardID.Shard(), shardID.Node())
}

// isHeld reports whether a process holds a shard, as far as is known.
func (w *watch) isHeld(shardID recovery.ShardID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.tokens[shardID]
	return t.Node != "" && !t.Retired()
}

// nodeOf returns the node that has a number; "" means that none has. While the registry may lack a
// node, that is recovery.ErrOwnerLost.
func (m *Member) nodeOf(ctx context.Context, number uint16) (string, error) {
	w := &m.peers
	for _, look := range []bool{false, true} {
		if look {
			if err := m.Poll(ctx); err != nil {
				return "", err
			}
		}
		w.mu.Lock()
		name, s := w.byNumberLocked(number)
		w.mu.Unlock()
		if s != nil {
			return name, nil
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return "", m.completeLocked()
}

// KeysOf returns the keys of the shard of an id: of the shard id that it tells, or else of this
// node.
func (m *Member) KeysOf(ctx context.Context, id string) (layout.ShardKeys, error) {
	own := m.Keys.Shard(m.Self.Node, layout.ShardOf([]byte(id), m.Shards))
	shardID, tells := recovery.ShardIDOf(id)
	if !tells {
		return own, nil
	}
	if s := m.table.Load().byShardID[shardID]; s != nil {
		return s.Keys, nil
	}
	node, err := m.nodeOf(ctx, shardID.Node())
	if err != nil || node == "" {
		return own, err
	}
	return m.Keys.Shard(node, shardID.Shard()), nil
}

// ownersFresh is how old a read of the owners may be for nodes with counts.
const ownersFresh = time.Second

// What is known of the other nodes is of the last poll that was answered. It holds until
// missedPolls are overdue, or two in a row were refused, and for leastUnseen: one refused poll
// may be a connection that broke.
const (
	missedPolls = 3
	leastUnseen = time.Second
)

// Nodes lists the nodes, and with counts how many shards each holds.
func (m *Member) Nodes(ctx context.Context, counts bool) ([]recovery.Node, error) {
	w := &m.peers
	w.mu.Lock()
	unseen := w.answered.IsZero()
	w.mu.Unlock()
	if unseen || counts {
		if err := m.Poll(ctx); err != nil && unseen {
			return nil, err
		}
	}
	if counts {
		m.refreshAll(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	looked := time.Since(w.asked)
	unseen = w.unseenLocked(m.FailoverAfter, time.Now())
	var own, adopted map[layout.Holder]int
	if counts {
		own, adopted = w.shardCountsLocked()
	}
	all := maps.Clone(w.nodes)
	for name, s := range w.vanished {
		all[name] = s.peerState
	}
	nodes := make([]recovery.Node, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		s := all[name]
		process, silence := layout.Holder{Node: name, Incarnation: s.entry.Incarnation}, m.silenceLocked(s)
		n := recovery.Node{
			Name: name, Number: s.number, Self: name == m.Self.Node,
			Live: !s.entry.Released && !m.deadLocked(s), Released: s.entry.Released,
			Silent: max(w.silentLocked(s), w.asked.Sub(silence.lastSign)), Looked: looked, Unseen: unseen, Incarnation: s.entry.Incarnation,
			Process: s.entry.Process.String(), Version: s.entry.Version, Address: s.entry.Address,
			Format: s.entry.Format, Shards: s.entry.shards(), Indexed: s.entry.Indexed, Spools: s.entry.Spool != "",
			MissingSpools: s.entry.MissingSpools,
			Held:          own[process], Adopted: adopted[process],
			Quiet: silence.quiet, Gone: silence.gone,
		}
		if s.status != "" {
			n.LastStatus = []byte(s.status)
		}
		if n.Live && !n.Gone { // other nodes have adopted the tasks of a dead one, or are about to
			n.Status = n.LastStatus
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// unseenLocked reports whether the other nodes cannot be seen now.
func (w *watch) unseenLocked(failoverAfter time.Duration, now time.Time) bool {
	holds := leastUnseen
	if w.refused < 2 {
		holds = max(holds, missedPolls*failoverAfter/pollsPerFailover)
	}
	return now.Sub(w.answered) > holds
}

// shardCountsLocked counts the shards that each process holds: own ones of its node, and others.
func (w *watch) shardCountsLocked() (own, adopted map[layout.Holder]int) {
	own, adopted = make(map[layout.Holder]int), make(map[layout.Holder]int)
	for shardID, t := range w.tokens {
		if s := w.nodes[t.Node]; s != nil && shardID.Node() == s.number {
			own[t.Holder()]++
		} else {
			adopted[t.Holder()]++
		}
	}
	return own, adopted
}
