package member

import (
	"context"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

// A Probe lets the tests of the ledger see and change what a node sees of the others, so that they
// need not wait for it. Nothing else uses it.
type Probe struct{ m *Member }

// Probe returns the probe of this node.
func (m *Member) Probe() Probe { return Probe{m} }

// Looked reports whether the node has looked for shards to adopt.
func (p Probe) Looked() bool {
	p.m.peers.mu.Lock()
	defer p.m.peers.mu.Unlock()
	return !p.m.peers.next.IsZero()
}

// LookNow makes the next look for shards to adopt due.
func (p Probe) LookNow() {
	p.m.peers.mu.Lock()
	defer p.m.peers.mu.Unlock()
	p.m.peers.next = time.Time{}
}

// Age makes the node see no heartbeat of other nodes, nor of unregistered processes, for so long,
// and neither the entries nor the tokens that Redis has lost. It fails if the node does not see one
// of the nodes.
func (p Probe) Age(silent time.Duration, nodes ...string) error {
	w := &p.m.peers
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, node := range nodes {
		s := w.nodes[node]
		if s == nil {
			return fmt.Errorf("%s sees nothing of %s", p.m.Self.Node, node)
		}
		s.since = s.since.Add(-silent)
	}
	for h := range w.unregistered {
		w.unregistered[h] = w.unregistered[h].Add(-silent)
	}
	for name, s := range w.vanished {
		w.vanished[name] = vanishedPeer{s.peerState, s.at.Add(-silent)}
	}
	for _, since := range []map[recovery.ShardID]time.Time{w.tokenless, w.ownerlessSince} {
		for shardID, at := range since {
			since[shardID] = at.Add(-silent)
		}
	}
	return nil
}

// Watched is when the last poll was answered, and whether the watch begins anew with the next one.
func (p Probe) Watched() (answered time.Time, broken bool) {
	p.m.peers.mu.Lock()
	defer p.m.peers.mu.Unlock()
	return p.m.peers.answered, p.m.peers.refused > 0
}

// AgePoll makes the last poll one that was answered earlier by so much.
func (p Probe) AgePoll(by time.Duration) {
	p.m.peers.mu.Lock()
	defer p.m.peers.mu.Unlock()
	p.m.peers.answered = p.m.peers.answered.Add(-by)
}

// BeginAnew makes the watch begin anew with the next poll.
func (p Probe) BeginAnew() { p.m.peers.beginAnew() }

// ForgetOwners makes the owners that were read count as old.
func (p Probe) ForgetOwners() {
	p.m.peers.mu.Lock()
	defer p.m.peers.mu.Unlock()
	p.m.peers.ownersRead = time.Time{}
}

// HoldReads lets polls and reads of owners wait until release is called.
func (p Probe) HoldReads() (release func()) {
	p.m.peers.polling.Lock()
	p.m.peers.readingOwners.Lock()
	return func() {
		p.m.peers.polling.Unlock()
		p.m.peers.readingOwners.Unlock()
	}
}

// RefreshOwners reads the owners of all shards that were not read since it was called.
func (p Probe) RefreshOwners(ctx context.Context) error {
	return p.m.refreshTokens(ctx, p.m.peers.allShards())
}

// Part names the peer that should adopt shard n of a dead node.
func (p Probe) Part(node string, n int, shardID recovery.ShardID, peers ...string) string {
	return p.m.peers.partLocked(seenShard{node: node, index: n, shardID: shardID}, peers)
}

// Lose makes the node forget a term, as if it was lost by mistake.
func (p Probe) Lose(n int) { p.m.changeTable(func(t *table) { t.terms[n] = nil }) }

// Transfer makes the node take a shard's hand-over for one that was not answered.
func (p Probe) Transfer(n int, next layout.Token) {
	s := p.m.Term(n)
	s.turn.Lock()
	defer s.turn.Unlock()
	s.transfer = next
}

// ReadOwners reads the owners of all shards, and returns how many it has found.
func (p Probe) ReadOwners(ctx context.Context) (int, error) {
	found, err := p.m.readOwners(ctx)
	return len(found.shards), err
}

// DecideAdoption reads the owners of all shards. adopt then adopts those of dead nodes.
func (p Probe) DecideAdoption(ctx context.Context) (adopt func(ctx context.Context), err error) {
	found, err := p.m.readOwners(ctx)
	return func(ctx context.Context) { p.m.adoptFrom(ctx, found) }, err
}

// SeenHeld sets when the node has last seen that it holds all its shards.
func (p Probe) SeenHeld(at time.Time) { p.m.kept.Store(&at) }

// Transferred is how many shards the node remembers to have transferred.
func (p Probe) Transferred() int {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	return len(p.m.transferred)
}

// HoldShard makes a shard look as if a batch were under way, until release is called.
func (p Probe) HoldShard(n int) (release func()) {
	s := p.m.Term(n)
	s.turn.Lock()
	return s.turn.Unlock
}

// KnowServers makes all servers of Redis known for long.
func (p Probe) KnowServers() {
	p.m.keeping.Lock()
	defer p.m.keeping.Unlock()
	p.m.IsNew = func(string) bool { return false }
}
