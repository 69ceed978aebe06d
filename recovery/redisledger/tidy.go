package redisledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
)

// tidy retires empty shards of nodes that are long dead, and removes nodes without shards from
// the registry.
func (l *Ledger) tidy(ctx context.Context, found ownerList) {
	gone := l.longDead()
	if len(gone) == 0 || !l.Standing().Certain {
		return
	}
	for _, s := range l.table.Load().all() {
		if gone[s.node] == nil {
			continue
		}
		if err := l.retireAdopted(ctx, s); err != nil {
			return
		}
	}
	for _, h := range found.shards {
		if h.raw != "" && !h.token.Retired() {
			delete(gone, h.node)
		}
	}
	for node, s := range gone {
		if found.partial[node] {
			continue
		}
		keys := []string{l.keys.Nodes(), l.keys.Heartbeat(node), l.keys.Status(), l.keys.Numbers()}
		forgotten, err := conn.ForgetScript.Run(ctx, l.client, keys, node, s.raw, s.count, int(s.number)).Bool()
		if err != nil && !errors.Is(err, redis.Nil) {
			return
		}
		if forgotten {
			l.log.Info("a dead node without shards was removed from the registry", "of", node)
		}
	}
}

// longDead returns the nodes without a heartbeat for forgetAfter.
func (l *Ledger) longDead() map[string]*peerState {
	w := &l.peers
	w.mu.Lock()
	defer w.mu.Unlock()
	gone := map[string]*peerState{}
	for name, s := range w.nodes {
		if name != l.opts.Node && s.fault == nil && l.deadLocked(s) && w.silentLocked(s) >= l.times(forgetAfter) {
			seen := *s
			gone[name] = &seen
		}
	}
	return gone
}

// retireAdopted retires a shard of another node, if it is empty.
func (l *Ledger) retireAdopted(ctx context.Context, s *shard) error {
	if !s.mu.TryLock() {
		return nil // something is being written
	}
	defer s.mu.Unlock()
	if !s.isHeld() || s.open != 0 {
		return nil
	}
	retired, err := l.retireLocked(ctx, s)
	if retired {
		_ = l.endTermLocked(s, fmt.Errorf("%w: shard %d", recovery.ErrRetired, s.number))
	}
	return err
}
