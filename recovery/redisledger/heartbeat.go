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
)

// beatsPerFailover is how many heartbeats are sent in FailoverAfter.
const beatsPerFailover = 10

// keep sends heartbeats and checks the shards, until Close.
func (l *Ledger) keep() {
	tick := time.NewTicker(l.opts.FailoverAfter / beatsPerFailover)
	defer tick.Stop()
	for {
		select {
		case <-l.life.Done():
			return
		case <-tick.C:
			l.keepOnce()
		}
	}
}

// keepOnce sends one heartbeat and checks the shards. A failure is noted for Health, and
// logged when it begins and when it is over.
func (l *Ledger) keepOnce() {
	if l.ended.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(l.life, 2*conn.IOTimeout)
	defer cancel()
	began := time.Now()
	l.askStatus()
	err := l.beat(ctx)
	seen := false
	if err == nil {
		l.answered(began)
		seen, err = l.checkShards(ctx)
	}
	if seen {
		l.kept.Store(&began)
	}
	if err == nil {
		err = l.acceptOwn(ctx)
	}
	if err == nil {
		err = l.measure(ctx)
	}
	if l.life.Err() != nil {
		return
	}
	l.note(err)
}

// beat counts one heartbeat. If this node's entry is missing or older than this process's,
// Redis has lost it, and beat writes it again. A newer entry belongs to another process; then
// this process loses all its shards.
func (l *Ledger) beat(ctx context.Context) error {
	l.mu.Lock()
	status := l.status
	l.mu.Unlock()
	v, err := conn.Judge(conn.BeatScript.Run(ctx, l.client,
		[]string{l.keys.Nodes(), l.keys.Heartbeat(l.opts.Node), l.keys.Status()}, l.opts.Node, l.self.Incarnation, status))
	if err != nil {
		return err
	}
	if v.Code == 1 {
		l.mu.Lock()
		// Where the registry was lost, other nodes have yet to write their entries again.
		l.alone.Store(v.Number(1) <= 1 && (l.alone.Load() || time.Since(l.recounted) > l.opts.FailoverAfter))
		l.mu.Unlock()
		return nil
	}
	raw := v.Text(0)
	var held entry
	if raw != "" {
		if held, err = decodeEntry(l.opts.Node, raw); err != nil && !errors.Is(err, errDamaged) {
			return err
		}
	}
	if held.Generation >= l.registration().Generation {
		l.revokeAll(fmt.Errorf("%w: the name %s now belongs to %s", recovery.ErrLost, l.opts.Node, held.process))
		return nil
	}
	if raw == "" && l.mayBeAdopted(l.streak()) {
		l.revokeAll(fmt.Errorf("%w: node %s", recovery.ErrForgotten, l.opts.Node))
		return nil
	}
	done, err := l.follow(ctx, held, raw)
	if err == nil && done {
		l.mu.Lock()
		l.recounted = time.Now()
		l.mu.Unlock()
		l.log.Error("Redis had lost this node's registration; it was written again", "generation", l.registration().Generation)
	}
	return err
}

// mayBeAdopted reports whether other nodes may have taken this node for dead since the given
// streak of heartbeats: no heartbeat was answered for FailoverAfter, and other nodes were
// registered. If no other node is registered, none can adopt, however long Redis is down.
func (l *Ledger) mayBeAdopted(since int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.alone.Load() && (since != l.unbroken || l.silentLocked())
}

// silentLocked reports whether no heartbeat was answered for FailoverAfter. It counts from when
// the last answered one was sent, because other nodes can have seen it since.
func (l *Ledger) silentLocked() bool { return clock.Since(l.lastAnswer) > l.opts.FailoverAfter }

// answered notes a heartbeat that was sent at began and answered just now.
func (l *Ledger) answered(began time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.silentLocked() {
		l.unbroken++
	}
	l.lastAnswer = began
}

// streak is the number of the current streak of heartbeats.
func (l *Ledger) streak() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unbroken
}

// revokeAll ends the terms of all shards: the node's name belongs to another process, or none.
func (l *Ledger) revokeAll(err error) {
	if l.ended.Swap(true) {
		return
	}
	l.taking.Lock() // shards that are being acquired at this moment are lost as well
	defer l.taking.Unlock()
	for _, s := range l.table.Load().all() {
		s.mu.Lock()
		l.endLocked(s, fmt.Errorf("%w: shard %d: %w", recovery.ErrLost, s.number, err))
		s.mu.Unlock()
	}
	l.notify(func(w recovery.Watcher) {
		if w.Ended != nil {
			w.Ended(err)
		}
	})
}

// heldShards returns the shards that this process holds. After a silence it first waits for
// those that are being acquired.
func (l *Ledger) heldShards(streak int64) []*shard {
	if streak != l.checked {
		l.taking.Lock()
		defer l.taking.Unlock()
	}
	return l.table.Load().all()
}

// checkShards checks whether each shard still has its token and all confirmed batches. Without
// it, a node without traffic would learn of lost writes too late. It reports whether all shards
// are known to be held or lost. A shard whose server is down counts as held if it was seen to be
// held in this streak of heartbeats. In a new streak checkShards affirms the shards that it
// holds, because other nodes may have decided to adopt them.
func (l *Ledger) checkShards(ctx context.Context) (bool, error) {
	unbroken := l.streak()
	var shards []*shard
	var before []position
	for _, s := range l.heldShards(unbroken) {
		if at, err := s.position(); err == nil {
			shards, before = append(shards, s), append(before, at)
		}
	}
	heads := make([]*redis.Cmd, len(shards))
	p := l.client.Pipeline()
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
		seen, err := l.check(ctx, s, before[n], owner, sequence)
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
		l.checked = unbroken
	}
	return all, unseen
}
