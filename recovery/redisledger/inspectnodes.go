package redisledger

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/member"
)

// inspectBeats bounds for how long InspectNodes waits for heartbeats.
const inspectBeats = 2 * time.Second

// InspectNodes returns the nodes that send heartbeats, by name, each with its LastStatus, and how
// far the clock of Redis is ahead of this machine's. It changes nothing. The error says why Redis
// cannot be read.
func InspectNodes(ctx context.Context, opts Options) (clock recovery.Health, nodes []recovery.Node, err error) {
	opts, a, err := opts.withDefaults()
	if err != nil {
		return clock, nil, err
	}
	client, err := conn.Connect(a, opts.TLS, 4, conn.IOTimeout)
	if err != nil {
		return clock, nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, inspectWithin)
	defer cancel()
	keys := layout.Keys{Prefix: opts.Prefix, DB: a.DB}
	entries, err := client.HGetAll(ctx, keys.Nodes()).Result()
	if err != nil {
		return clock, nil, err
	}
	// A live node has sent two heartbeats by then.
	wait := time.Duration(0)
	counts := make(map[string]string, len(entries))
	for name, raw := range entries {
		var e member.Entry
		if json.Unmarshal([]byte(raw), &e) != nil || e.Released {
			continue
		}
		if counts[name], err = beats(ctx, client, keys.Heartbeat(name)); err != nil {
			return clock, nil, err
		}
		wait = max(wait, time.Duration(e.FailoverAfter)*time.Millisecond*2/member.BeatsPerFailover)
	}
	timer := time.NewTimer(min(wait, inspectBeats))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return clock, nil, ctx.Err()
	}
	statuses, err := client.HGetAll(ctx, keys.Status()).Result()
	if err != nil {
		return clock, nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		count, err := beats(ctx, client, keys.Heartbeat(name))
		if err != nil {
			return clock, nil, err
		}
		if count != counts[name] {
			nodes = append(nodes, recovery.Node{Name: name, Live: true, LastStatus: []byte(statuses[name])})
		}
	}
	for range inspectPings {
		began := time.Now()
		now, err := client.Time(ctx).Result()
		if err != nil {
			return clock, nil, err
		}
		// The shortest call is the best measure of the clock.
		if half := time.Since(began) / 2; clock.ClockError == 0 || half < clock.ClockError {
			clock.ClockAhead, clock.ClockError = now.Sub(began.Add(half)), half
		}
	}
	return clock, nodes, nil
}

// beats is the count of a node's heartbeats, as it is stored; empty: there is none.
func beats(ctx context.Context, client *conn.Client, key string) (string, error) {
	count, err := client.Get(ctx, key).Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return count, err
}
