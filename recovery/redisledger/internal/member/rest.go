package member

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

// Other nodes may have adopted the shards of a process that was silent, and a failover may have
// forgotten that. The process comes back and finds its tokens as it has left them. If it used its
// shards, what the adopters have confirmed meanwhile would be undone: both have the shards in
// memory, and the memory of the adopters is the newer one.
//
// So the shards rest if their server has another replication id than before the silence: nothing is
// written to them, their node is not certain, and the mark says so. An adopter that finds the mark
// claims the shard. One that finds the token of the former owner without it gives up its memory:
// that owner was never silent, and the adopter was cut off. The rest is over when each other node
// has had the time to look.

// A look lasts until each other node has looked at its shards, and claimed those that Redis has
// forgotten to be its own.
type look struct {
	until  time.Time
	beats  map[string]int    // of a node, since the look began
	counts map[string]string // its heartbeats at the last poll
}

// claimBeats: after so many heartbeats of a node it has looked at its shards.
const claimBeats = 2

// newLook begins a look that ends after the limit: a node that is dead sends no heartbeats.
func newLook(limit time.Duration) *look {
	return &look{until: time.Now().Add(limit), beats: map[string]int{}, counts: map[string]string{}}
}

// isOver polls the nodes, and reports whether each of them has looked at its shards, or the limit
// has passed.
func (l *look) isOver(ctx context.Context, m *Member) (bool, error) {
	if err := m.Poll(ctx); err != nil {
		return false, err
	}
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

// restMark stands in the affirm field of a shard whose owner has come back from a silence, and
// does not use the shard yet.
const restMark = " rests"

func rests(affirmed string) bool { return strings.HasSuffix(affirmed, restMark) }

// affirm asks for the head of a shard, and says in it that the owner of the token is back.
func affirm(ctx context.Context, p redis.Pipeliner, keys *layout.ShardKeys, t layout.Token, mark string) *redis.Cmd {
	return p.Eval(ctx, conn.AffirmSource, []string{keys.Tasks()}, t.String(), mark)
}

// awake reports for each of some shards whether it may be used in a streak of heartbeats, as far as
// that is not known to its server yet. It puts those at rest that were not seen in the streak.
func (m *Member) awake(ctx context.Context, shards []*Shard, before []Position, streak int64) ([]bool, error) {
	awake := make([]bool, len(shards))
	heads := make([]*redis.Cmd, len(shards))
	p := m.Client.Pipeline()
	rested := true
	for n, s := range shards {
		switch {
		case s.unbroken.Load() == streak || m.alone.Load():
			awake[n] = true
		case s.rests.Load() != streak:
			heads[n] = affirm(ctx, p, &s.Keys, before[n].Token, restMark)
		default:
			rested = false
		}
	}
	if !rested {
		var err error
		if rested, err = m.hasRested(ctx); err != nil {
			return nil, err
		}
	}
	if p.Len() > 0 {
		_, _ = p.Exec(ctx) // each has its own error
	}
	forgetful := 0
	for n, s := range shards {
		if heads[n] == nil {
			awake[n] = awake[n] || rested && s.rests.Load() == streak
			continue
		}
		head, err := heads[n].Slice()
		if err != nil || textOf(head, 0) != before[n].Token.String() {
			continue // it is looked at again, and may be another node's
		}
		s.rests.Store(streak)
		if awake[n] = !m.IsNew(textOf(head, 2)); !awake[n] {
			forgetful++
		}
	}
	if forgetful > 0 {
		limit := m.FailoverAfter / doubtShare
		m.resting = newLook(limit)
		m.Log.Warn("Redis may have forgotten that other nodes have adopted shards of this one: they rest until those nodes have looked",
			"shards", forgetful, "limit", limit)
	}
	return awake, nil
}

// hasRested reports whether the shards that rest may be used.
func (m *Member) hasRested(ctx context.Context) (bool, error) {
	if m.resting == nil {
		return true, nil
	}
	over, err := m.resting.isOver(ctx, m)
	if over {
		m.resting = nil
	}
	return over, err
}

// mayWrite fails for a shard that rests, or will with the next heartbeat. A batch may be sent
// before that: as soon as Redis answers again.
func (m *Member) mayWrite(ctx context.Context, s *Shard) error {
	if !m.mayBeAdopted(s.unbroken.Load()) {
		return nil
	}
	if s.rests.Load() != m.streak() {
		histories, err := m.histories(ctx, 1, func(int) layout.ShardKeys { return s.Keys })
		if err != nil {
			return fmt.Errorf("shard %d: %w", s.Number, err)
		}
		if !m.IsNew(histories[0]) {
			return nil
		}
		m.BeatSoon()
	}
	return fmt.Errorf("shard %d rests: Redis may have forgotten that another node has adopted it", s.Number)
}
