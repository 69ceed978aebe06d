package member

import (
	"context"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/internal/clock"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

// Other nodes may have adopted the shards of a process that was silent, and a failover may have
// forgotten that. The process comes back and finds its tokens as it has left them. Both have the
// shards in memory, and the memory of the adopters is the newer one: if the process used its
// shards, it would undo what they have confirmed.
//
// So shards rest if their server has a replication id that this process has not known for long:
// nothing is written to them, and their node is not certain. An adopter that finds the former token
// claims the shard, unless its former owner has written since: then the adopter was cut off, and
// gives up its memory. The rest is over when each other node has had the time to look.

// A look lasts until each other node has looked at its shards, and claimed those that Redis has
// forgotten to be its own.
type look struct {
	limit  time.Duration
	until  time.Time         // begins anew after a gap between two polls
	polled time.Time         // when the nodes were last polled
	beats  map[string]int    // of a node, since the look began
	counts map[string]string // its heartbeats at the last poll
}

// claimBeats: after so many heartbeats of a node it has looked at its shards.
const claimBeats = 2

// newLook begins a look that ends after the limit: a node that is dead sends no heartbeats.
func newLook(limit time.Duration) *look {
	now := time.Now()
	return &look{limit: limit, until: now.Add(limit), polled: now, beats: map[string]int{}, counts: map[string]string{}}
}

// isOver polls the nodes, and reports whether each of them has looked at its shards, or the limit
// has passed.
func (l *look) isOver(ctx context.Context, m *Member) (bool, error) {
	if err := m.Poll(ctx); err != nil {
		return false, err
	}
	if clock.Since(l.polled) > m.FailoverAfter/gapShare {
		l.until = time.Now().Add(l.limit)
	}
	l.polled = time.Now()
	w := &m.peers
	w.mu.Lock()
	defer w.mu.Unlock()
	waits := false
	for name, s := range w.nodes {
		if name == m.Self.Node || s.fault != nil || s.entry.Released {
			continue
		}
		if before := l.counts[name]; before != "" && isSign(before, s.count) {
			l.beats[name]++
		}
		l.counts[name] = s.count // the first poll reads none
		waits = waits || l.beats[name] < claimBeats
	}
	return !waits || !time.Now().Before(l.until), nil
}

// A rest is that of the shards of some servers, in a streak of heartbeats.
type rest struct {
	streak  int64
	look    *look           // nil: it is over
	servers map[string]bool // by replication id: whether their shards may be used
}

// keepRest continues the rest in a streak of heartbeats.
func (m *Member) keepRest(ctx context.Context, streak int64) error {
	r := &m.rest
	if r.streak != streak {
		again := r.look != nil // no node may have looked before this silence
		*r = rest{streak: streak, servers: map[string]bool{}}
		if again {
			m.beginLook()
		}
	}
	if r.look == nil {
		return nil
	}
	over, err := r.look.isOver(ctx, m)
	if over {
		r.look = nil
		for id := range r.servers {
			r.servers[id] = true
		}
		m.resting.Store(false)
	}
	return err
}

func (m *Member) beginLook() {
	m.rest.look = newLook(m.FailoverAfter / doubtShare)
	m.resting.Store(true)
}

// mayUse reports whether the shards of a server may be used in the streak of keepRest.
func (m *Member) mayUse(history string) bool {
	r := &m.rest
	may, known := r.servers[history]
	if !known {
		may = m.alone.Load() || r.look == nil && !m.IsNew(history)
		if r.servers[history] = may; !may {
			m.beginLook()
			m.Log.Warn("Redis may have forgotten that other nodes have adopted shards of this one: they rest until those nodes have looked",
				"replication", history, "limit", r.look.limit)
		}
	}
	return may
}

// mayWrite fails for a shard that rests, or will with the next heartbeat. A batch may be sent
// before that: as soon as Redis answers again.
func (m *Member) mayWrite(ctx context.Context, s *Shard) error {
	m.mu.Lock()
	silent, streak := m.silentLocked(), m.unbroken
	m.mu.Unlock()
	if !silent && (s.unbroken.Load() == streak || m.alone.Load()) {
		return nil
	}
	histories, err := m.histories(ctx, 1, func(int) layout.ShardKeys { return s.Keys })
	switch {
	case err != nil:
		return fmt.Errorf("shard %d: %w", s.Number, err)
	case !m.resting.Load() && !m.IsNew(histories[0]):
		return nil
	case silent:
		m.BeatSoon()
	}
	return fmt.Errorf("shard %d rests: Redis may have forgotten that another node has adopted it", s.Number)
}
