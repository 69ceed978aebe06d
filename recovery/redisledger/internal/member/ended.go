package member

import (
	"context"
	"strings"

	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

// A node that ends in order, without another one, leaves its shards to any node: it says so in each
// of them, see end.lua, and releases its name. A node that finds both adopts at once. In a fleet
// the shards are kept for the next process of the name, for FailoverAfter.

// endShards says of this process's shards that it has ended, unless another node is to keep them
// for the next process of this node. A shard of which that was not said is adopted later.
func (m *Member) endShards(ctx context.Context) {
	if m.Poll(ctx) != nil || m.hasOthers() {
		return
	}
	p := m.Client.Pipeline()
	for _, s := range m.All() {
		s.turn.Lock()
		if s.Loss() == nil && s.open == 0 && s.transfer == (layout.Token{}) {
			p.Eval(ctx, conn.EndSource, []string{s.Keys.Tasks()}, s.Token.String(), s.Sequence)
		}
		s.turn.Unlock()
	}
	_, _ = p.Exec(ctx)
}

// hasOthers reports whether another node lives, or has shards of its own.
func (m *Member) hasOthers() bool {
	w := &m.peers
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, s := range w.nodes {
		if name != m.Self.Node && (s.fault != nil || !s.entry.Released && !m.deadLocked(s)) {
			return true
		}
	}
	for _, t := range w.tokens {
		if t.Token != (layout.Token{}) && !t.Retired() && t.Node != m.Self.Node {
			return true
		}
	}
	return false
}

// hasEndedLocked reports whether the holder of a shard has said that it has ended in order. The
// claim finds out whether that is still valid.
func (w *watch) hasEndedLocked(h *seenShard) bool {
	s := w.nodes[h.token.Node]
	return s != nil && s.fault == nil && s.entry.Incarnation == h.token.Incarnation && s.entry.Released &&
		strings.HasPrefix(h.affirmed, "ended ")
}
