package member

import (
	"context"
	"errors"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

// After a silence another node may have adopted the shards of this process. A token of that node
// says so. A missing token says nothing: Redis has lost it, and with it what the shard had. The
// memory of this process may be the only one that has the tasks, so it is not given up for that. A
// process that holds the shard, and lives, claims it again with its next heartbeat. So this process
// waits for several heartbeats, and claims the shard itself if no other one has.

// Waiting times, as parts of FailoverAfter. Both are shorter than FailoverAfter, after which a
// shard without a token is adopted by a node that knows nothing of its content.
const (
	// doubtShare: the first holder of a shard waits for so long.
	doubtShare = 2
	// takerShare: one that has taken it from another process waits for so long. If both were
	// silent, its memory is the newer one, and it must be the first.
	takerShare = 4
)

var errDoubted = errors.New("another node may have taken the shard over: it is claimed again unless that node claims it now")

// isUnclaimed reports whether no process has claimed a shard whose token is missing, or cannot be
// read, for so long that none that lives holds it. It counts while the nodes are watched without a
// gap.
func (m *Member) isUnclaimed(s *Shard, found layout.Token) bool {
	wait := m.FailoverAfter / doubtShare
	if s.from != (layout.Token{}) {
		wait = m.FailoverAfter / takerShare
	}
	w := &m.peers
	w.mu.Lock()
	defer w.mu.Unlock()
	var since time.Time
	if found.Unreadable() {
		m.livenessLocked(found) // notes since when it is seen
		since = w.unregistered[found.Holder()]
	} else {
		shardID := m.ShardID(s.Number)
		w.noteTokenLocked(shardID, seenToken{Token: found})
		since = w.tokenless[shardID]
	}
	return !since.IsZero() && w.answered.Sub(since) >= wait
}

// isForgotten reports whether other nodes have removed this one from the registry: they have
// retired its shards before, see tidy. An entry that is missing beside other tokens, or none, was
// lost.
func (m *Member) isForgotten(ctx context.Context) (bool, error) {
	var own []seenShard
	for _, s := range m.All() {
		if s.node == m.Self.Node {
			own = append(own, seenShard{node: s.node, index: s.index})
		}
	}
	found, err := m.readTokens(ctx, own)
	for _, h := range found.shards {
		if h.token.Retired() {
			return true, err
		}
	}
	return false, err
}
