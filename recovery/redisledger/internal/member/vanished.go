package member

import (
	"context"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/clock"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

// What Redis does not have is not what does not exist: a FLUSHALL, a failover or another program
// may have removed it, and the replication id may be the same afterwards. Three things are always
// there unless they were lost:
//
//	this process's entry in the registry   without it all entries may be lost
//	the entry of a node that was alive     only a node that was dead for long is removed
//	the token of a shard in use            a retired shard keeps a marker
//
// While one of them is missing, calls about what it would tell fail with recovery.ErrOwnerLost.
// That ends by itself. A node that lives writes its entry and its tokens with its next heartbeat.
// The entry of a dead node is written again by another one, after FailoverAfter. A shard that has
// had no token for FailoverAfter is adopted: its owner is dead, or has given it up.

// isUnlisted reports whether Redis has lost the entry of this process, and so the registry.
func (m *Member) isUnlisted(v view) bool {
	me := m.Registration()
	if me.Generation == 0 || m.ended.Load() {
		return false
	}
	held, err := decodeEntry(m.Self.Node, v.entries[m.Self.Node])
	return err != nil || held.Incarnation != me.Incarnation && held.Generation < me.Generation
}

// noteUnlisted notes that Redis has lost the registry.
func (w *watch) noteUnlisted() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unlisted = true
}

// BeatSoon has the next heartbeat sent at once. What it finds lost is written again.
func (m *Member) BeatSoon() {
	select {
	case m.beatSoon <- struct{}{}:
	default:
	}
}

// missingLocked returns why a node may be missing in the registry, or nil.
func (m *Member) missingLocked() error {
	w := &m.peers
	if me := w.nodes[m.Self.Node]; me == nil || me.entry.Incarnation != m.Self.Incarnation {
		return fmt.Errorf("%w: node %s is not registered at the moment", recovery.ErrOwnerLost, m.Self.Node)
	}
	for name := range w.vanished {
		return fmt.Errorf("%w: the registration of node %s is lost", recovery.ErrOwnerLost, name)
	}
	return nil
}

// RestoreVanished writes the entries of nodes again that have not done so themselves for
// FailoverAfter: they are dead. Without an entry no node would look for their shards.
func (m *Member) RestoreVanished(ctx context.Context) {
	w := &m.peers
	lost := map[string]vanishedPeer{}
	w.mu.Lock()
	for name, s := range w.vanished {
		switch {
		case clock.Since(s.at) < m.deadAfter(&s.entry):
		case s.fault != nil:
			delete(w.vanished, name) // an operator may have removed the damaged entry
		default:
			lost[name] = s
		}
	}
	w.mu.Unlock()
	for name, s := range lost {
		m.restoreOrigin(ctx, name, origin{number: s.number, raw: s.raw})
	}
}

// noteTokenLocked remembers the token of a shard, or since when it has none.
func (w *watch) noteTokenLocked(shardID recovery.ShardID, t seenToken) {
	w.tokens[shardID] = t
	if t.Token != (layout.Token{}) {
		delete(w.tokenless, shardID)
	} else if _, known := w.tokenless[shardID]; !known {
		w.tokenless[shardID] = time.Now()
		w.next = time.Time{} // look for what can be adopted, and when
	}
}
