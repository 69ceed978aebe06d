package redisledger

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/clock"
)

// Homes implements recovery.Fleet with one read of the registry.
func (l *Ledger) Homes(ctx context.Context) ([]recovery.Home, error) {
	done, err := l.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := l.poll(ctx); err != nil {
		return nil, err
	}
	w := &l.peers
	w.mu.Lock()
	err = l.completeLocked()
	w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	shards := w.allShards()
	homes := make([]recovery.Home, len(shards))
	for i, h := range shards {
		homes[i] = h.home
	}
	return homes, nil
}

// Holders implements recovery.Fleet with one read of the registry and one of the tokens of
// these shards.
func (l *Ledger) Holders(ctx context.Context, homes []recovery.Home) (map[recovery.Home]recovery.Holder, error) {
	done, err := l.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if len(homes) == 0 {
		return nil, nil
	}
	if err := l.poll(ctx); err != nil {
		return nil, err
	}
	w := &l.peers
	wanted := make(map[recovery.Home]bool, len(homes))
	for _, home := range homes {
		wanted[home] = true
	}
	shards := slices.DeleteFunc(w.allShards(), func(h seenShard) bool { return !wanted[h.home] })
	if err := l.refreshTokens(ctx, shards); err != nil {
		return nil, err
	}
	mine := l.table.Load().byHome
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := l.completeLocked(); err != nil {
		return nil, err
	}
	all := make(map[recovery.Home]recovery.Holder, len(shards))
	for _, h := range shards {
		h.token = w.tokens[h.home].Token
		switch {
		case h.token.Retired(), h.token.Node == "" && !l.startsLocked(h):
		case h.token.Node == "":
			return nil, fmt.Errorf("shard %d of node %s has no owner on record yet", h.index, h.node)
		default:
			holder := recovery.Holder{Shard: -1, Node: h.token.Node, Live: l.livenessLocked(h.token) == living}
			if s := mine[h.home]; s != nil && s.isHeld() && holder.Node == l.opts.Node {
				holder.Shard, holder.Live = s.number, true
			}
			all[h.home] = holder
		}
	}
	return all, nil
}

// completeLocked returns why the registry may not have all nodes and their shards, or nil.
func (l *Ledger) completeLocked() error {
	w := &l.peers
	if me := w.nodes[l.opts.Node]; me == nil || me.entry.Incarnation != l.self.Incarnation {
		return fmt.Errorf("node %s is not registered at the moment", l.opts.Node)
	}
	for name, since := range w.vanished {
		if clock.Between(since, time.Now()) < l.opts.FailoverAfter {
			return fmt.Errorf("the registration of node %s is lost, which was alive", name)
		}
	}
	for name, s := range w.nodes {
		switch {
		case s.fault != nil:
			return s.fault
		case s.number == 0:
			return fmt.Errorf("node %s has no number yet", name)
		}
	}
	return nil
}

// startsLocked reports whether a shard without a token is one of those that its node uses: the
// node is about to claim it, for the first time or because Redis has lost its data.
func (l *Ledger) startsLocked(h seenShard) bool {
	s := l.peers.nodes[h.node]
	return s != nil && len(s.entry.Counts) > 0 && h.index < s.entry.Counts[len(s.entry.Counts)-1] && !s.entry.Released && !l.deadLocked(s)
}
