package redisledger

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

// beatsPerFailover is how many heartbeats are sent in FailoverAfter.
const beatsPerFailover = 10

// keep sends heartbeats and checks the shards, until Close.
func (m *membership) keep() {
	tick := time.NewTicker(m.failoverAfter / beatsPerFailover)
	defer tick.Stop()
	for {
		select {
		case <-m.life.Done():
			return
		case <-tick.C:
			m.keepOnce()
		}
	}
}

// keepOnce sends one heartbeat and checks the shards. A failure is noted for Health, and
// logged when it begins and when it is over.
func (m *membership) keepOnce() {
	if m.ended.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(m.life, 2*conn.IOTimeout)
	defer cancel()
	began := time.Now()
	m.notices.AskStatus()
	err := m.beat(ctx)
	seen := false
	if err == nil {
		m.answered(began)
		seen, err = m.checkShards(ctx)
	}
	if seen {
		m.kept.Store(&began)
	}
	if err == nil {
		err = m.acceptOwn(ctx)
	}
	if err == nil {
		err = m.measure(ctx)
	}
	if m.life.Err() != nil {
		return
	}
	m.note(err)
}

// beat counts one heartbeat. If this node's entry is missing or older than this process's,
// Redis has lost it, and beat writes it again. A newer entry belongs to another process; then
// this process loses all its shards.
func (m *membership) beat(ctx context.Context) error {
	v, err := conn.Judge(conn.BeatScript.Run(ctx, m.client,
		[]string{m.keys.Nodes(), m.keys.Heartbeat(m.self.Node), m.keys.Status()}, m.self.Node, m.self.Incarnation, m.notices.LastStatus()))
	if err != nil {
		return err
	}
	if v.Code == 1 {
		m.mu.Lock()
		// Where the registry was lost, other nodes have yet to write their entries again.
		m.alone.Store(v.Number(1) <= 1 && (m.alone.Load() || time.Since(m.recounted) > m.failoverAfter))
		m.mu.Unlock()
		return nil
	}
	raw := v.Text(0)
	var held entry
	if raw != "" {
		if held, err = decodeEntry(m.self.Node, raw); err != nil && !errors.Is(err, mend.ErrDamaged) {
			return err
		}
	}
	if held.Generation >= m.registration().Generation {
		m.revokeAll(fmt.Errorf("%w: the name %s now belongs to %s", recovery.ErrLost, m.self.Node, held.Process))
		return nil
	}
	if raw == "" && m.mayBeAdopted(m.streak()) {
		m.revokeAll(fmt.Errorf("%w: node %s", recovery.ErrForgotten, m.self.Node))
		return nil
	}
	done, err := m.follow(ctx, held, raw)
	if err == nil && done {
		m.mu.Lock()
		m.recounted = time.Now()
		m.mu.Unlock()
		m.log.Error("Redis had lost this node's registration; it was written again", "generation", m.registration().Generation)
	}
	return err
}

// mayBeAdopted reports whether other nodes may have taken this node for dead since the given
// streak of heartbeats: no heartbeat was answered for FailoverAfter, and other nodes were
// registered. If no other node is registered, none can adopt, however long Redis is down.
func (m *membership) mayBeAdopted(since int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.alone.Load() && (since != m.unbroken || m.silentLocked())
}

// silentLocked reports whether no heartbeat was answered for FailoverAfter. It counts from when
// the last answered one was sent, because other nodes can have seen it since.
func (m *membership) silentLocked() bool { return clock.Since(m.lastAnswer) > m.failoverAfter }

// answered notes a heartbeat that was sent at began and answered just now.
func (m *membership) answered(began time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.silentLocked() {
		m.unbroken++
	}
	m.lastAnswer = began
}

// streak is the number of the current streak of heartbeats.
func (m *membership) streak() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unbroken
}

// revokeAll ends the terms of all shards: the node's name belongs to another process, or none.
func (m *membership) revokeAll(err error) {
	if m.ended.Swap(true) {
		return
	}
	m.taking.Lock() // shards that are being acquired at this moment are lost as well
	defer m.taking.Unlock()
	for _, s := range m.table.Load().all() {
		s.mu.Lock()
		m.endLocked(s, fmt.Errorf("%w: shard %d: %w", recovery.ErrLost, s.number, err))
		s.mu.Unlock()
	}
	m.notices.Add(func(w recovery.Watcher) {
		if w.Ended != nil {
			w.Ended(err)
		}
	})
}

// heldShards returns the shards that this process holds. After a silence it first waits for
// those that are being acquired.
func (m *membership) heldShards(streak int64) []*shard {
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
// holds, because other nodes may have decided to adopt them.
func (m *membership) checkShards(ctx context.Context) (bool, error) {
	unbroken := m.streak()
	var shards []*shard
	var before []position
	for _, s := range m.heldShards(unbroken) {
		if at, err := s.position(); err == nil {
			shards, before = append(shards, s), append(before, at)
		}
	}
	heads := make([]*redis.Cmd, len(shards))
	p := m.client.Pipeline()
	for n, s := range shards {
		if s.unbroken.Load() != unbroken {
			heads[n] = p.Eval(ctx, conn.AffirmSource, []string{s.keys.Tasks()}, before[n].token.String())
		} else {
			heads[n] = p.Do(ctx, "hmget", s.keys.Tasks(), layout.OwnerField, layout.SequenceField)
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
		seen, err := m.check(ctx, s, before[n], owner, sequence)
		switch {
		case errors.Is(err, recovery.ErrLost):
		case err != nil:
			return false, err
		default:
			all = all && seen
		}
		if now, err := s.position(); err == nil && now.token == before[n].token && owner == now.token.String() {
			s.unbroken.Store(unbroken)
		}
	}
	if all {
		m.checked = unbroken
	}
	return all, unseen
}
