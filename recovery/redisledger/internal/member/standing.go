package member

import (
	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/clock"
)

// marginShare is the part of FailoverAfter by which this process stops being certain before
// other nodes may adopt. It covers decisions that are made by then and not yet carried out.
const marginShare = 10

// Standing is the state of this process among the nodes, without the directory. Other nodes adopt
// the shards of this process when they have seen no heartbeat for FailoverAfter. They have seen an
// answered heartbeat after it was sent. What memory has not been told to be lost it would deliver.
func (m *Member) Standing() recovery.Standing {
	alone, ended := m.alone.Load(), m.ended.Load()
	limit := m.FailoverAfter - m.FailoverAfter/marginShare
	return recovery.Standing{
		Alone:     alone,
		Certain:   !ended && m.losing.Load() == 0 && (alone || clock.Since(*m.kept.Load()) < limit),
		Acquiring: m.acquiring.Load() > 0,

		FailoverAfter: m.FailoverAfter,
	}
}
