package redisledger

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
)

// beatsPerFailover is how many life signs fit into FailoverAfter.
const beatsPerFailover = 10

// keep gives life signs, and looks after the shards, until Close.
func (l *Ledger) keep() {
	defer close(l.kept)
	tick := time.NewTicker(l.opts.FailoverAfter / beatsPerFailover)
	defer tick.Stop()
	for {
		select {
		case <-l.life.Done():
			return
		case <-l.told:
		case <-tick.C:
			l.keepOnce()
		}
		l.passOn()
	}
}

// keepOnce gives one life sign and looks at the shards. A failure is noted for
// Health, and logged when it begins and when it is over.
func (l *Ledger) keepOnce() {
	ctx, cancel := context.WithTimeout(l.life, 2*ioTimeout)
	defer cancel()
	began := time.Now()
	err := l.beat(ctx)
	if err == nil {
		l.answered(began)
		err = l.checkShards(ctx)
	}
	if err == nil {
		err = l.measure(ctx)
	}
	if l.life.Err() != nil {
		return
	}
	l.note(err)
}

// beat counts one life sign. An entry that is gone or older than one's own is
// written again: Redis has lost it. A newer one is another process's, and then
// everything is lost.
func (l *Ledger) beat(ctx context.Context) error {
	v, err := judge(beatScript.run(ctx, l.client,
		[]string{l.keys.nodes(), l.keys.heartbeat(l.opts.Node), l.keys.status()}, l.opts.Node, l.incarnation, ""))
	if err != nil {
		return err
	}
	if v.code == 1 {
		l.mu.Lock()
		// Where the registry was lost, others have yet to write their entries again.
		l.alone = v.number(1) <= 1 && (l.alone || time.Since(l.recounted) > l.opts.FailoverAfter)
		l.mu.Unlock()
		return nil
	}
	raw := v.text(0)
	var held entry
	if raw != "" {
		if held, err = decodeEntry(l.opts.Node, raw); err != nil {
			return err
		}
	}
	if held.Generation >= l.registration().Generation || raw == "" && l.overslept(l.streak()) {
		l.loseAll(held)
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

// overslept reports whether others may have taken this node for dead since its
// life signs had the given streak: one has gone without an answer for
// FailoverAfter, and others were registered. A node that is alone has nobody who
// could adopt from it, however long Redis is down.
func (l *Ledger) overslept(since int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.alone && (since != l.unbroken || l.silentLocked())
}

// silentLocked reports whether no life sign was answered for FailoverAfter, by the
// clock on which more has passed: the monotonic one stands still while a machine
// is suspended, and others go on.
func (l *Ledger) silentLocked() bool {
	now := time.Now()
	return max(now.Sub(l.lastAnswer), now.Round(0).Sub(l.lastAnswer.Round(0))) > l.opts.FailoverAfter
}

// answered notes a life sign that was sent at began and answered just now.
func (l *Ledger) answered(began time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.silentLocked() {
		l.unbroken++
	}
	l.lastAnswer = began
}

// streak is the number of the current streak of life signs.
func (l *Ledger) streak() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unbroken
}

// loseAll gives up all shards: the node's name belongs to another process.
func (l *Ledger) loseAll(held entry) {
	why := fmt.Sprintf("the name %s now belongs to %s", l.opts.Node, held.process)
	for _, s := range l.shards {
		s.mu.Lock()
		if s.lost == nil {
			l.tell(s.number, s.loseLocked(why))
		}
		s.mu.Unlock()
	}
}

// checkShards looks whether each shard still has its token and all confirmed
// batches. Otherwise a node without traffic would learn of lost writes too late.
func (l *Ledger) checkShards(ctx context.Context) error {
	before := make([]position, len(l.shards))
	lost := make([]error, len(l.shards))
	for n, s := range l.shards {
		before[n], lost[n] = s.position()
	}
	unbroken := l.streak()
	heads := make([]*redis.SliceCmd, len(l.shards))
	if err := l.pipeline(ctx, func(p redis.Pipeliner) {
		for n, s := range l.shards {
			if s.owned.Load() && lost[n] == nil {
				heads[n] = p.HMGet(ctx, s.keys.tasks(), ownerField, sequenceField)
			}
		}
	}); err != nil {
		return err
	}
	for n, s := range l.shards {
		if heads[n] == nil {
			continue
		}
		owner, sequence := headOf(heads[n].Val())
		if err := l.check(ctx, s, before[n], owner, sequence); err != nil {
			return err
		}
		s.mu.Lock()
		if s.token == before[n].token && owner == s.token.String() {
			s.unbroken = unbroken
		}
		s.mu.Unlock()
	}
	return nil
}

// A telling is news of a shard for whoever has its tasks in memory.
type telling struct {
	shard int
	lost  error // nil: rewound
}

// tell keeps news for passOn, which calls back without a lock.
func (l *Ledger) tell(shard int, lost error) {
	l.mu.Lock()
	l.news = append(l.news, telling{shard, lost})
	l.mu.Unlock()
	select {
	case l.told <- struct{}{}:
	default:
	}
}

func (l *Ledger) passOn() {
	l.mu.Lock()
	news, w := l.news, l.watcher
	l.news = nil
	l.mu.Unlock()
	for _, t := range news {
		if t.lost != nil && w.Lost != nil {
			w.Lost(t.shard, t.lost)
		}
		if t.lost == nil && w.Rewound != nil {
			w.Rewound(t.shard)
		}
	}
}

// Watch implements recovery.Rewinder.
func (l *Ledger) Watch(w recovery.Watcher) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watcher = w
}
