package redisledger

import (
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// marginShare is the part of FailoverAfter by which this process stops being certain before
// other nodes may adopt. It covers decisions that are made by then and not yet carried out.
const marginShare = 10

// Standing implements recovery.Fleet. Other nodes adopt the shards of this process when they
// have seen no heartbeat for FailoverAfter. They have seen an answered heartbeat after it was
// sent.
func (l *Ledger) Standing() recovery.Standing {
	alone, ended := l.alone.Load(), l.ended.Load()
	doubts, doubtful := l.doubts()
	limit := l.opts.FailoverAfter - l.opts.FailoverAfter/marginShare
	return recovery.Standing{
		Alone:   alone,
		Certain: !ended && (alone || elapsed(*l.kept.Load()) < limit),
		Gaining: l.acquiring.Load() > 0,
		Doubts:  doubts, Doubtful: doubtful,
	}
}

// elapsed is the time since then, by the clock on which more has passed: the monotonic clock
// stops while a machine is suspended, and other nodes go on.
func elapsed(since time.Time) time.Duration {
	return between(since, time.Now())
}

func between(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}
