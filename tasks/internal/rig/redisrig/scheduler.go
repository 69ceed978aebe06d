package redisrig

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/tasks"
)

// Open opens a scheduler with a way that delivers into the Redis of a URL. Both end with the test.
func Open[W tasks.Way](t *testing.T, url string, newWay func(redis.UniversalClient) W) (*tasks.Scheduler, W) {
	t.Helper()
	client, err := redisledger.Connect(url, 8)
	if err != nil {
		t.Fatal(err)
	}
	way := newWay(client)
	s, err := tasks.Open(t.Context(), memledger.New(), tasks.Config{Ways: []tasks.Way{way}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Close(context.Background()), client.Close()); err != nil {
			t.Error(err)
		}
	})
	return s, way
}

// Schedule schedules tasks, each of which must be accepted.
func Schedule(t *testing.T, s *tasks.Scheduler, requests ...tasks.Request) {
	t.Helper()
	results, err := s.ScheduleBatch(t.Context(), requests)
	for _, r := range results {
		err = errors.Join(err, r.Err)
	}
	if err != nil {
		t.Fatal(err)
	}
}
