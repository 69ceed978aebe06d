package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/cli/bench"
)

// asynqSystem is asynq on a Redis, with 64 workers and the shortest poll that it
// allows for tasks that fall due, 1 s (5 s by default). It counts deadlines in whole
// seconds; they are rounded up here, so that nothing is early.
type asynqSystem struct {
	redis     asynq.RedisClientOpt
	client    *asynq.Client
	inspector *asynq.Inspector
	server    *asynq.Server
	once      sync.Once
	err       error
}

const (
	asynqWorkers = 64
	asynqDB      = 1 // Lapse has 0
	asynqType    = "bench"
)

func openAsynq(addr string) bench.System {
	opt := asynq.RedisClientOpt{Addr: addr, DB: asynqDB, PoolSize: asynqWorkers + 8}
	return &asynqSystem{redis: opt, client: asynq.NewClient(opt), inspector: asynq.NewInspector(opt)}
}

func (a *asynqSystem) Schedule(ctx context.Context, t bench.Task) error {
	due := t.Due.Add(time.Second - time.Millisecond).Truncate(time.Second)
	payload := append([]byte(nil), t.Payload...)
	_, err := a.client.EnqueueContext(ctx, asynq.NewTask(asynqType, payload), asynq.ProcessAt(due))
	return err
}

func (a *asynqSystem) ScheduleBatch(context.Context, []bench.Task) error { return bench.ErrNoBatch }

func (a *asynqSystem) Receive(_ context.Context, got func([]byte)) error {
	a.server = asynq.NewServer(a.redis, asynq.Config{
		Concurrency: asynqWorkers, DelayedTaskCheckInterval: time.Second, LogLevel: asynq.FatalLevel,
	})
	return a.server.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		got(t.Payload())
		return nil
	}))
}

func (a *asynqSystem) Standing(context.Context) (bench.Standing, error) {
	q, err := a.inspector.GetQueueInfo("default")
	if errors.Is(err, asynq.ErrQueueNotFound) {
		return bench.Standing{}, nil
	}
	if err != nil {
		return bench.Standing{}, err
	}
	return bench.Standing{Left: q.Size, Explained: q.Failed}, nil
}

func (a *asynqSystem) Close() error {
	a.once.Do(func() {
		if a.server != nil {
			a.server.Shutdown()
		}
		c := redis.NewClient(&redis.Options{Addr: a.redis.Addr, DB: asynqDB})
		a.err = errors.Join(a.client.Close(), a.inspector.Close(), c.FlushDB(context.Background()).Err(), c.Close())
	})
	return a.err
}
