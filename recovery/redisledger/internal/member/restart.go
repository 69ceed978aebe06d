package member

import (
	"context"
	"strings"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
)

// A process that has handed its shards over ends, and the next one of its name starts. If Redis is
// restarted or replaced in between, and has lost the hand-over, the tokens name the former process.
// The next one would take the shards as its own, as they were before, and what the successors have
// done since would be undone. They claim them again with their next heartbeats, so it waits for
// those before it claims what seems to be its own.

const (
	// mostClaimBeats: no longer than it takes to send so many heartbeats is a node waited for: one
	// that is dead sends none.
	mostClaimBeats = 4
	// mostClaimWait bounds the wait where failover_after is long.
	mostClaimWait = 5 * time.Second
)

// awaitClaims waits until the nodes that live have had the time to claim what Redis has forgotten
// to be theirs. It returns at once if Redis has not been restarted or replaced lately, or no other
// node is registered.
func (m *Member) awaitClaims(ctx context.Context) error {
	if !m.serversAreNew(ctx) {
		return nil
	}
	l := newLook(min(mostClaimBeats*m.FailoverAfter/BeatsPerFailover, mostClaimWait))
	limit := time.NewTimer(time.Until(l.until))
	defer limit.Stop()
	tick := time.NewTicker(m.FailoverAfter / pollsPerFailover)
	defer tick.Stop()
	for {
		if over, err := l.isOver(ctx, m); over || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-limit.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// serversAreNew reports whether a server of Redis was started, or has taken another one's place,
// so lately that nodes may not have noticed what it has lost; or whether that cannot be told.
func (m *Member) serversAreNew(ctx context.Context) bool {
	fresh := false
	err := m.Client.EachInfo(ctx, []string{"server", "replication"}, func(in conn.Info) error {
		up := time.Duration(in.Number("uptime_in_seconds")) * time.Second
		// When a replica was promoted is not known, only that it was.
		fresh = fresh || up <= m.FailoverAfter || strings.Trim(in["master_replid2"], "0") != ""
		return nil
	})
	return fresh || err != nil
}
