package rediskeys

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/cli/internal/movein"
)

const (
	// patience is how long a source is asked again that does not answer.
	patience = time.Minute
	// sourcePause is the pause before a source is asked again.
	sourcePause = 200 * time.Millisecond
)

// A source is a Redis that is read.
type source struct {
	client redis.UniversalClient
	db     int
	// absolute: PEXPIRETIME is known. Otherwise deadlines follow from PTTL, and vary by what a
	// round trip takes.
	absolute bool
	// evicts: keys may be gone because Redis needed their memory, or that is not known.
	evicts bool
}

// newSource looks at what the source can do. The error wraps movein.ErrSource.
func newSource(ctx context.Context, client redis.UniversalClient) (*source, error) {
	s := &source{client: client, evicts: true}
	if c, ok := client.(*redis.Client); ok {
		s.db = c.Options().DB
	}
	// Once: an operator who has mistyped the address should not wait.
	err := client.Process(ctx, expireTime(ctx, "lapse"))
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err == nil, redis.HasErrorPrefix(err, "NOPERM") && strings.Contains(err.Error(), " key"):
		s.absolute = true // it is known, and the key is not one that may be read
	case !strings.Contains(err.Error(), "unknown command"):
		return nil, fmt.Errorf("%w: %w", movein.ErrSource, err)
	}
	if text, err := client.Info(ctx, "memory").Result(); err == nil {
		s.evicts = evicts(text)
	}
	return s, nil
}

// evicts reads the section memory of INFO.
func evicts(info string) bool {
	bounded := !strings.Contains(info, "\nmaxmemory:0\r")
	return bounded && !strings.Contains(info, "\nmaxmemory_policy:noeviction\r")
}

func expireTime(ctx context.Context, key string) *redis.IntCmd {
	return redis.NewIntCmd(ctx, "pexpiretime", key)
}

// nodes returns a client of each server that has keys.
func (s *source) nodes(ctx context.Context) ([]*redis.Client, error) {
	var all []*redis.Client
	err := s.try(ctx, func() error {
		all = nil
		switch c := s.client.(type) {
		case *redis.Client:
			all = []*redis.Client{c}
		case *redis.ClusterClient:
			var mu sync.Mutex // guards all
			return c.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
				mu.Lock()
				defer mu.Unlock()
				all = append(all, node)
				return nil
			})
		}
		return nil
	})
	return all, err
}

func (s *source) isCluster() bool {
	_, is := s.client.(*redis.ClusterClient)
	return is
}

// size is about how many keys the source has, 0 if that is not known.
func (s *source) size(ctx context.Context) (n int64) {
	nodes, err := s.nodes(ctx)
	for _, node := range nodes {
		if keys, nodeErr := node.DBSize(ctx).Result(); nodeErr == nil {
			n += keys
		} else {
			err = nodeErr
		}
	}
	if err != nil {
		return 0
	}
	return n
}

// clockAhead is how far the clock of the source is ahead of that of this machine.
func (s *source) clockAhead(ctx context.Context) (time.Duration, bool) {
	before := time.Now()
	there, err := s.client.Time(ctx).Result()
	took := time.Since(before)
	return there.Sub(before.Add(took / 2)), err == nil
}

// try repeats what fails because the source does not answer, for as long as the patience lasts.
func (s *source) try(ctx context.Context, call func() error) error {
	end := time.Now().Add(patience)
	for {
		err := call()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !passing(err) || time.Now().After(end):
			return fmt.Errorf("%w: %w", movein.ErrSource, err)
		}
		if err := movein.Wait(ctx, sourcePause); err != nil {
			return err
		}
	}
}

// passing reports whether a source that has answered so, or not at all, may do better later.
func passing(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return true // the connection
	}
	for _, prefix := range []string{"LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "READONLY"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}

// databases names the databases that have keys, with an example from the one that is read.
func (s *source) databases(ctx context.Context) (all []string, err error) {
	nodes, err := s.nodes(ctx)
	for _, node := range nodes {
		text, infoErr := node.Info(ctx, "keyspace").Result()
		if infoErr != nil { // the rights of the user may not reach so far
			all = append(all, "unknown: "+infoErr.Error())
		}
		for line := range strings.Lines(text) {
			name, figures, ok := strings.Cut(strings.TrimSpace(line), ":keys=")
			if !ok {
				continue
			}
			keys, _, _ := strings.Cut(figures, ",")
			name = fmt.Sprintf("%s (keys: %s", name, keys)
			if strings.HasPrefix(line, fmt.Sprintf("db%d:", s.db)) {
				name = "the one that was read: " + name
				if some, _, err := node.Scan(ctx, 0, "", 5).Result(); err == nil && len(some) > 0 {
					name += fmt.Sprintf(", such as %.100q", some[0])
				}
			}
			all = append(all, name+")")
		}
	}
	return all, err
}
