package redisledger

import (
	"cmp"
	"context"

	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

// retireSurplus retires empty shards beyond the current number. A shard that cannot be retired
// now does no harm until the next start.
func (m *membership) retireSurplus(ctx context.Context) error {
	for _, s := range m.table.Load().all() {
		if s.node != m.self.Node || s.index < m.shards {
			continue
		}
		if err := m.retire(ctx, s); err != nil {
			if cause := cmp.Or(ctx.Err(), context.Cause(m.life)); cause != nil {
				return cause
			}
			m.log.Warn("a shard that is not used any more could not be retired", "shard", s.number, "error", err)
		}
	}
	return nil
}

func (m *membership) retire(ctx context.Context, s *shard) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isHeld() || s.open != 0 {
		return nil
	}
	retired, err := m.retireLocked(ctx, s)
	if retired {
		s.owned.Store(false)
		m.changeTable(func(*table) {})
		m.log.Info("a shard that is not used any more was retired", "shard", s.number)
	}
	return err
}

func (m *membership) retireLocked(ctx context.Context, s *shard) (bool, error) {
	marker := layout.NewToken(layout.RetiredNode, m.self.Incarnation, s.token.Epoch+1)
	return conn.RetireScript.Run(ctx, m.client, s.keys[:3], s.token.String(), marker.String()).Bool()
}
