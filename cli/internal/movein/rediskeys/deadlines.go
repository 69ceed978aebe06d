package rediskeys

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// A deadline is when a key expires, or why it does not.
type deadline struct {
	key   string
	at    int64 // Unix milliseconds, or one of the constants below
	asOf  int64 // the clock of the source after it was read, Unix milliseconds
	value *string
	large bool // the value is too large for a payload
}

// As PEXPIRETIME answers.
const (
	noTTL = -1
	gone  = -2
)

// maxValue is how long a value is at most that becomes a part of a payload.
const maxValue = 40 << 10

func (d *deadline) time() time.Time { return time.UnixMilli(d.at) }

// deadlines reads when keys expire that a node has, and their values if they are wanted.
func (s *source) deadlines(ctx context.Context, node *redis.Client, keys []string, values bool) ([]deadline, error) {
	all := make([]deadline, len(keys))
	err := s.try(ctx, func() error { return s.read(ctx, node, keys, values, all) })
	return all, err
}

// read makes one round trip for deadlines.
func (s *source) read(ctx context.Context, node redis.UniversalClient, keys []string, values bool, all []deadline) error {
	p := node.Pipeline()
	times := make([]*redis.IntCmd, len(keys))
	texts := make([]*redis.StringCmd, len(keys))
	for i, key := range keys {
		if s.absolute {
			times[i] = expireTime(ctx, key)
		} else {
			times[i] = redis.NewIntCmd(ctx, "pttl", key)
		}
		_ = p.Process(ctx, times[i])
		if values {
			texts[i] = p.GetRange(ctx, key, 0, maxValue)
		}
	}
	clock := p.Time(ctx) // behind the others: nothing is early
	_, _ = p.Exec(ctx)   // each command has its own error
	now, err := clock.Result()
	if err != nil {
		return err
	}
	for i, key := range keys {
		at, err := times[i].Result()
		if redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK") {
			// The slot is on its way to another node.
			if cluster, ok := s.client.(*redis.ClusterClient); ok && node != redis.UniversalClient(cluster) {
				if err := s.read(ctx, cluster, keys[i:i+1], values, all[i:i+1]); err != nil {
					return err
				}
				continue
			}
		}
		if err != nil {
			return err
		}
		if !s.absolute && at >= 0 {
			at += now.UnixMilli()
		}
		all[i] = deadline{key: key, at: at, asOf: now.UnixMilli()}
		if values && at >= 0 {
			text, err := texts[i].Result()
			switch {
			case redis.HasErrorPrefix(err, "WRONGTYPE"):
			case err != nil:
				return err
			default:
				all[i].value, all[i].large = &text, len(text) > maxValue
			}
		}
	}
	return nil
}

// anywhere is deadlines for keys whose nodes are not known.
func (s *source) anywhere(ctx context.Context, keys []string, values bool) ([]deadline, error) {
	all := make([]deadline, len(keys))
	err := s.try(ctx, func() error { return s.read(ctx, s.client, keys, values, all) })
	return all, err
}
