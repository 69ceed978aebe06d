package member

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/clock"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

// A seenShard is one shard of any node, with the token that was read.
type seenShard struct {
	node     string
	index    int
	shardID  recovery.ShardID
	raw      string
	token    layout.Token
	affirmed string // how often its owner came back after a silence, or that it has ended
	sequence int64  // of the last batch
	first    int64  // what the next claim writes as the number of the last batch
}

// A shardName names one shard of any node.
type shardName struct {
	node  string
	index int
}

// An ownerList has the owners of all shards of all nodes whose entries can be read.
type ownerList struct {
	shards  []seenShard
	partial map[string]bool // nodes some of whose shards could not be read
}

// textOf is the i-th field of a reply, empty if there is none.
func textOf(fields []any, i int) string {
	if i >= len(fields) {
		return ""
	}
	text, _ := fields[i].(string)
	return text
}

// sizes returns how many pending records n shards have; keys returns the keys of each.
func (m *Member) sizes(ctx context.Context, n int, keys func(i int) layout.ShardKeys) ([]int64, error) {
	members := make([]*redis.IntCmd, n)
	err := m.Client.Pipe(ctx, func(p redis.Pipeliner) {
		for i := range members {
			k := keys(i)
			members[i] = p.SCard(ctx, k.Pending())
		}
	})
	sizes := make([]int64, n)
	for i, m := range members {
		sizes[i] = max(0, m.Val()-1) // one member is the anchor that keeps the set
	}
	return sizes, err
}

// histories returns the replication ids of the servers that have n shards; empty: it does not tell.
func (m *Member) histories(ctx context.Context, n int, keys func(i int) layout.ShardKeys) ([]string, error) {
	answers := make([]*redis.Cmd, n)
	err := m.Client.Pipe(ctx, func(p redis.Pipeliner) {
		for i := range answers {
			k := keys(i)
			answers[i] = conn.AskHistory(ctx, p, k.Tasks())
		}
	})
	histories := make([]string, n)
	for i, a := range answers {
		histories[i], _ = a.Text()
	}
	return histories, err
}

// A seenToken is a shard's token as it was last read, and when that read began.
type seenToken struct {
	layout.Token
	at time.Time
}

// allShards lists every shard of every node whose entry can be read.
func (w *watch) allShards() (all []seenShard) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, s := range w.nodes {
		if s.fault != nil {
			continue
		}
		for n := range s.entry.shards() {
			all = append(all, seenShard{node: name, index: n, shardID: recovery.NewShardID(s.number, n)})
		}
	}
	return all
}

// tokensNow returns the tokens as they were last read.
func (w *watch) tokensNow() map[recovery.ShardID]seenToken {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.tokens)
}

// readOwners reads the tokens of all shards. It leaves out those on a server that does not
// answer.
func (m *Member) readOwners(ctx context.Context) (ownerList, error) {
	w := &m.peers
	began := time.Now()
	found, err := m.readTokens(ctx, w.allShards())
	if err != nil {
		return ownerList{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	tokens := make(map[recovery.ShardID]seenToken, len(found.shards))
	for node := range found.partial {
		for shardID, before := range w.tokens {
			if s := w.nodes[node]; s != nil && shardID.Node() == s.number {
				tokens[shardID] = before
			}
		}
	}
	w.tokens, w.ownersRead = tokens, began
	maps.DeleteFunc(w.tokenless, func(shardID recovery.ShardID, _ time.Time) bool { return tokens[shardID] != (seenToken{}) })
	for _, h := range found.shards {
		w.noteTokenLocked(h.shardID, seenToken{h.token, began})
	}
	return found, nil
}

// readAtOnceTokens is how many tokens one pipeline reads. Each is about 60 bytes.
const readAtOnceTokens = 4096

// readTokens reads the tokens of some shards. It leaves out those on a server that does not
// answer.
func (m *Member) readTokens(ctx context.Context, shards []seenShard) (ownerList, error) {
	found := ownerList{shards: make([]seenShard, 0, len(shards)), partial: map[string]bool{}}
	for part := range slices.Chunk(shards, readAtOnceTokens) {
		heads := make([]*redis.SliceCmd, len(part))
		p := m.Client.Pipeline()
		for i, h := range part {
			keys := m.Keys.Shard(h.node, h.index)
			heads[i] = p.HMGet(ctx, keys.Tasks(), layout.OwnerField, layout.SequenceField, layout.AffirmField)
		}
		_, _ = p.Exec(ctx) // each has its own error
		if err := ctx.Err(); err != nil {
			return ownerList{}, err
		}
		for i, h := range part {
			head, err := heads[i].Result()
			if err == nil {
				h.raw, h.sequence = headOf(head)
				h.affirmed = textOf(head, 2)
				h.token = layout.ReadToken(h.raw)
			}
			if err != nil {
				found.partial[h.node] = true
				continue
			}
			found.shards = append(found.shards, h)
		}
	}
	return found, nil
}

// refreshTokens reads the tokens of those shards that were not read since it was called: one read
// serves all callers that wait. Its error names a node some of whose shards cannot be read.
func (m *Member) refreshTokens(ctx context.Context, shards []seenShard) error {
	w := &m.peers
	called := time.Now()
	w.readingOwners.Lock()
	defer w.readingOwners.Unlock()
	w.mu.Lock()
	stale := slices.DeleteFunc(slices.Clone(shards), func(h seenShard) bool { return w.tokens[h.shardID].at.After(called) })
	w.mu.Unlock()
	if len(stale) == 0 {
		return nil
	}
	began := time.Now()
	found, err := m.readTokens(ctx, stale)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range found.shards {
		w.noteTokenLocked(h.shardID, seenToken{h.token, began})
	}
	for node := range found.partial {
		return fmt.Errorf("some shards of node %s cannot be read", node)
	}
	return nil
}

// refreshAll reads all owners for callers that only need to know which node holds how much. An
// answer that is at most ownersFresh old serves them, and one read serves all that wait.
func (m *Member) refreshAll(ctx context.Context) {
	w := &m.peers
	w.readingOwners.Lock()
	defer w.readingOwners.Unlock()
	w.mu.Lock()
	fresh := clock.Since(w.ownersRead) <= ownersFresh
	w.mu.Unlock()
	if !fresh {
		_, _ = m.readOwners(ctx) // after an error the earlier answer has to serve
	}
}
