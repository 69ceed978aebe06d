package redisledger

import (
	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/clock"
)

// marginShare is the part of FailoverAfter by which this process stops being certain before
// other nodes may adopt. It covers decisions that are made by then and not yet carried out.
const marginShare = 10

// Standing implements recovery.Fleet. Other nodes adopt the shards of this process when they
// have seen no heartbeat for FailoverAfter. They have seen an answered heartbeat after it was
// sent.
func (l *Ledger) Standing() recovery.Standing {
	alone, ended := l.alone.Load(), l.ended.Load()
	doubts, doubtful := l.directory.Doubts()
	limit := l.opts.FailoverAfter - l.opts.FailoverAfter/marginShare
	return recovery.Standing{
		Alone:   alone,
		Certain: !ended && (alone || clock.Since(*l.kept.Load()) < limit),
		Gaining: l.acquiring.Load() > 0,
		Doubts:  doubts, Doubtful: doubtful,
	}
}
