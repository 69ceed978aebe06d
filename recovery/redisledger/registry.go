package redisledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
)

// An entry is what the registry knows of a node.
type entry struct {
	Incarnation string `json:"incarnation"` // of the process that holds the name; random
	// Generation grows with every registration of the name. A lower one than
	// one's own means that Redis has lost writes.
	Generation int64 `json:"generation"`
	Released   bool  `json:"released"` // given back by Close
	// Counts are the numbers of shards that the node has used, the current one
	// last: a task stays in the shard that recorded it.
	Counts []int `json:"counts"`
	process
}

// shards is how many shards may hold tasks.
func (e *entry) shards() int { return slices.Max(append(e.Counts, 1)) }

func (e *entry) encode() string {
	b, err := json.Marshal(e)
	if err != nil {
		panic(err) // strings and numbers cannot fail
	}
	return string(b)
}

// readEntry returns the entry of this node, decoded and as it is stored; "" means
// that there is none.
func (l *Ledger) readEntry(ctx context.Context) (entry, string, error) {
	raw, err := l.client.HGet(ctx, l.keys.nodes(), l.opts.Node).Result()
	if errors.Is(err, redis.Nil) {
		return entry{}, "", nil
	}
	if err != nil {
		return entry{}, "", err
	}
	var e entry
	if err := json.Unmarshal([]byte(raw), &e); err != nil {
		return e, raw, fmt.Errorf("%w: the registry's entry of node %s: %w", recovery.ErrLayout, l.opts.Node, err)
	}
	return e, raw, nil
}

// register makes this process the holder of the node's name. It waits for as
// long as it takes to find out whether an unseen holder is alive.
func (l *Ledger) register(ctx context.Context) error {
	for {
		held, raw, err := l.readEntry(ctx)
		if err != nil {
			return err
		}
		if raw != "" && held.Incarnation != l.incarnation && !held.Released {
			if err := l.waitForEnd(ctx, held); err != nil {
				return err
			}
		}
		done, err := l.writeEntry(ctx, raw, l.entryAfter(held))
		if err != nil || done {
			return err
		}
	}
}

// entryAfter is this process's entry when it follows another.
func (l *Ledger) entryAfter(held entry) entry {
	counts := slices.DeleteFunc(slices.Clone(held.Counts), func(n int) bool { return n == l.opts.Shards || n < 1 })
	return entry{
		Incarnation: l.incarnation,
		Generation:  max(held.Generation, l.entry.Generation) + 1,
		Counts:      append(counts, l.opts.Shards),
		process:     l.process,
	}
}

// writeEntry replaces the entry that is stored as raw, and reports whether it
// was still that.
func (l *Ledger) writeEntry(ctx context.Context, raw string, e entry) (bool, error) {
	v, err := judge(registerScript.run(ctx, l.client, []string{l.keys.nodes()}, l.opts.Node, raw, e.encode()))
	if err != nil || v.code == 0 {
		return false, err
	}
	l.entry = e
	return true, nil
}

// waitForEnd returns nil when the holder of the name has ended: at once when that
// can be seen from here, and otherwise when its heartbeat has been watched for
// FailoverAfter, without a gap, and has not moved.
func (l *Ledger) waitForEnd(ctx context.Context, held entry) error {
	switch l.fateOf(held.process) {
	case gone:
		l.log.Info("the process that held this name has ended; adopting what it left", "process", held.PID)
		return nil
	case alive:
		return l.heldError(held)
	}
	l.log.Info("another process holds this name; watching its heartbeat", "holder", held.String(), "for", l.opts.FailoverAfter)
	first, err := l.heartbeatCount(ctx)
	if err != nil {
		return err
	}
	tick := time.NewTicker(l.opts.FailoverAfter / beatsPerFailover)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) <= l.opts.FailoverAfter; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		// An error is a gap: the caller begins anew.
		count, err := l.heartbeatCount(ctx)
		if err != nil {
			return err
		}
		if count != first {
			return l.heldError(held)
		}
	}
	l.log.Warn("the process that held this name shows no sign of life; adopting what it left", "holder", held.String())
	return nil
}

func (l *Ledger) heartbeatCount(ctx context.Context) (int64, error) {
	n, err := l.client.Get(ctx, l.keys.heartbeat(l.opts.Node)).Int64()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	return n, err
}

func (l *Ledger) heldError(held entry) error {
	return fmt.Errorf("%w: %s runs as node %s; stop it, or give this one another name with --node",
		recovery.ErrHeld, held.process, l.opts.Node)
}

// release gives the name back, if this process still has it.
func (l *Ledger) release(ctx context.Context) error {
	held, raw, err := l.readEntry(ctx)
	if err != nil || held.Incarnation != l.incarnation || held.Released {
		return err
	}
	held.Released = true
	_, err = l.writeEntry(ctx, raw, held)
	return err
}
