package member

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/clock"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/mend"
)

// BeatsPerFailover is how many heartbeats are sent in FailoverAfter.
const BeatsPerFailover = 10

// keep sends heartbeats and checks the shards, until Close.
func (m *Member) keep() {
	tick := time.NewTicker(m.FailoverAfter / BeatsPerFailover)
	defer tick.Stop()
	for {
		select {
		case <-m.Life.Done():
			return
		case <-tick.C:
			m.KeepOnce()
		case <-m.beatSoon:
			m.KeepOnce()
		}
	}
}

// KeepOnce sends one heartbeat and checks the shards. A failure is noted for Health, and
// logged when it begins and when it is over.
func (m *Member) KeepOnce() {
	m.keeping.Lock()
	defer m.keeping.Unlock()
	if m.ended.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(m.Life, 2*conn.IOTimeout)
	defer cancel()
	began := time.Now()
	m.Notices.AskStatus()
	err := m.Beat(ctx)
	seen := false
	if err == nil {
		m.Answered(began)
		seen, err = m.checkShards(ctx)
	}
	if seen {
		m.kept.Store(&began)
	}
	if err == nil {
		err = m.acceptOwn(ctx)
	}
	if err == nil {
		err = m.Measure(ctx)
	}
	if m.Life.Err() != nil {
		return
	}
	m.Note(err)
}

// Beat counts one heartbeat. If this node's entry is missing or older than this process's,
// Redis has lost it, and beat writes it again. A newer entry belongs to another process; then
// this process loses all its shards.
func (m *Member) Beat(ctx context.Context) error {
	v, err := conn.Judge(conn.BeatScript.Run(ctx, m.Client,
		[]string{m.Keys.Nodes(), m.Keys.Heartbeat(m.Self.Node), m.Keys.Status()}, m.Self.Node, m.Self.Incarnation, m.Notices.LastStatus()))
	if err != nil {
		return err
	}
	if v.Code == 1 {
		m.mu.Lock()
		// Where the registry was lost, other nodes have yet to write their entries again.
		m.alone.Store(v.Number(1) <= 1 && (m.alone.Load() || time.Since(m.recounted) > m.FailoverAfter))
		m.mu.Unlock()
		return nil
	}
	raw := v.Text(0)
	var held Entry
	if raw != "" {
		if held, err = decodeEntry(m.Self.Node, raw); err != nil && !errors.Is(err, mend.ErrDamaged) {
			return err
		}
	}
	if held.Generation >= m.Registration().Generation {
		m.revokeAll(fmt.Errorf("%w: the name %s now belongs to %s", recovery.ErrLost, m.Self.Node, held.Process))
		return nil
	}
	if raw == "" && m.mayBeAdopted(m.streak()) {
		forgotten, err := m.isForgotten(ctx)
		if err != nil {
			return err
		}
		if forgotten {
			m.revokeAll(fmt.Errorf("%w: node %s", recovery.ErrForgotten, m.Self.Node))
			return nil
		}
	}
	m.peers.noteUnlisted() // before it is listed again, see Watch.see
	m.mu.Lock()
	m.recounted = time.Now()
	m.mu.Unlock()
	done, err := m.Follow(ctx, held, raw)
	if err == nil && done {
		m.Log.Error("Redis had lost this node's registration; it was written again", "generation", m.Registration().Generation)
	}
	return err
}

// mayBeAdopted reports whether other nodes may have taken this node for dead since the given
// streak of heartbeats: no heartbeat was answered for FailoverAfter, and other nodes were
// registered. If no other node is registered, none can adopt, however long Redis is down.
func (m *Member) mayBeAdopted(since int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.alone.Load() && (since != m.unbroken || m.silentLocked())
}

// silentLocked reports whether no heartbeat was answered for FailoverAfter. It counts from when
// the last answered one was sent, because other nodes can have seen it since.
func (m *Member) silentLocked() bool { return clock.Since(m.lastAnswer) > m.FailoverAfter }

// Answered notes a heartbeat that was sent at began and answered just now.
func (m *Member) Answered(began time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.silentLocked() {
		m.unbroken++
	}
	m.lastAnswer = began
}

// streak is the number of the current streak of heartbeats.
func (m *Member) streak() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unbroken
}

// revokeAll ends the terms of all shards: the node's name belongs to another process, or none.
func (m *Member) revokeAll(err error) {
	if m.ended.Swap(true) {
		return
	}
	m.taking.Lock() // shards that are being acquired at this moment are lost as well
	defer m.taking.Unlock()
	for _, s := range m.table.Load().all() {
		s.turn.Lock()
		m.endInTurn(s, fmt.Errorf("%w: shard %d: %w", recovery.ErrLost, s.Number, err))
		s.turn.Unlock()
	}
	m.Notices.Add(func(w recovery.Watcher) {
		if w.Ended != nil {
			w.Ended(err)
		}
	})
}

// heldShards returns the shards that this process holds. After a silence it first waits for
// those that are being acquired.
func (m *Member) heldShards(streak int64) []*Shard {
	if streak != m.checked {
		m.taking.Lock()
		defer m.taking.Unlock()
	}
	return m.table.Load().all()
}

// checkShards checks whether each shard still has its token and all confirmed batches. Without
// it, a node without traffic would learn of lost writes too late. It reports whether all shards
// are known to be held or lost. A shard whose server is down counts as held if it was seen to be
// held in this streak of heartbeats. In a new streak checkShards affirms the shards that it
// holds, because other nodes may have decided to adopt them; first it may have to let them rest.
func (m *Member) checkShards(ctx context.Context) (bool, error) {
	unbroken := m.streak()
	var shards []*Shard
	var before []Position
	for _, s := range m.heldShards(unbroken) {
		if at, err := s.Position(); err == nil {
			shards, before = append(shards, s), append(before, at)
		}
	}
	if err := m.keepRest(ctx, unbroken); err != nil {
		return false, err
	}
	heads := make([]*redis.Cmd, len(shards))
	p := m.Client.Pipeline()
	for n, s := range shards {
		if s.unbroken.Load() != unbroken {
			heads[n] = p.Eval(ctx, conn.AffirmSource, []string{s.Keys.Tasks()}, before[n].Token.String())
		} else {
			heads[n] = p.Do(ctx, "hmget", s.Keys.Tasks(), layout.OwnerField, layout.SequenceField)
		}
	}
	_, _ = p.Exec(ctx) // each has its own error
	all := true
	var unseen error
	for n, s := range shards {
		head, err := heads[n].Slice()
		if err != nil {
			unseen = err
			all = all && s.unbroken.Load() == unbroken
			continue
		}
		owner, sequence := headOf(head)
		if s.unbroken.Load() != unbroken && owner == before[n].Token.String() && !m.mayUse(textOf(head, 2)) {
			all = false // whatever it has lost: its adopter may have more
			continue
		}
		seen, err := m.Check(ctx, s, before[n], owner, sequence)
		switch {
		case errors.Is(err, recovery.ErrLost):
		case errors.Is(err, errDoubted):
			all, unseen = false, err
		case err != nil:
			return false, err
		default:
			all = all && seen
		}
		if now, err := s.Position(); err == nil && now.Token == before[n].Token && owner == now.Token.String() {
			s.unbroken.Store(unbroken)
		}
	}
	if all {
		m.checked = unbroken
	}
	return all, unseen
}
