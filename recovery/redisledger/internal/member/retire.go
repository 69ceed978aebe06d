package member

import (
	"cmp"
	"context"

	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

// RetireSurplus retires empty shards beyond the current number. A shard that cannot be retired
// now does no harm until the next start.
func (m *Member) RetireSurplus(ctx context.Context) error {
	for _, s := range m.table.Load().all() {
		if s.node != m.Self.Node || s.index < m.Shards {
			continue
		}
		if err := m.retire(ctx, s); err != nil {
			if cause := cmp.Or(ctx.Err(), context.Cause(m.Life)); cause != nil {
				return cause
			}
			m.Log.Warn("a shard that is not used any more could not be retired", "shard", s.Number, "error", err)
		}
	}
	return nil
}

func (m *Member) retire(ctx context.Context, s *Shard) error {
	s.turn.Lock()
	defer s.turn.Unlock()
	if !s.isHeld() || s.open != 0 {
		return nil
	}
	retired, err := m.retireInTurn(ctx, s)
	if retired {
		s.Owned.Store(false)
		m.changeTable(func(*table) {})
		m.Log.Info("a shard that is not used any more was retired", "shard", s.Number)
	}
	return err
}

// retireInTurn marks a shard as retired if it is empty, and reports whether it did.
func (m *Member) retireInTurn(ctx context.Context, s *Shard) (bool, error) {
	marker := layout.NewToken(layout.RetiredNode, m.Self.Incarnation, s.Token.Epoch+1)
	return conn.RetireScript.Run(ctx, m.Client, s.Keys[:3], s.Token.String(), marker.String()).Bool()
}
