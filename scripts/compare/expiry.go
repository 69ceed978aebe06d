package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/cli/bench"
)

// expiry schedules a task as a key of Redis, or of Lapse's port for its clients, that expires, and
// receives the event. An event carries
// the key's name only, goes to the subscribers of that moment, and is not acknowledged: a receiver
// that is away or dies loses it. The comparison does not count that against it.
type expiry struct {
	server    *server
	client    *redis.Client
	events    *redis.PubSub
	group     sync.WaitGroup
	closing   atomic.Bool
	scheduled atomic.Int64
	received  atomic.Int64
	fault     atomic.Pointer[error]
}

// events is the channel of expired keys of database 0.
const events = "__keyevent@0__:expired"

func openExpiry(ctx context.Context, options ...string) (bench.System, error) {
	s, err := startRedis(ctx, append([]string{"--notify-keyspace-events", "Ex"}, options...)...)
	if err != nil {
		return nil, err
	}
	return newExpiry(s), nil
}

// openPort starts Lapse on disk for the same clients, which have another address and no other
// change. Unlike Redis it keeps an expired key until a subscriber was there.
func openPort(ctx context.Context, binary string) (bench.System, error) {
	s, err := startLapsePort(ctx, binary)
	if err != nil {
		return nil, err
	}
	e := newExpiry(s)
	ready, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for e.client.DBSize(ready).Err() != nil { // it reads its tasks
		select {
		case <-ready.Done():
			return nil, errors.Join(context.Cause(ready), e.Close())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return e, nil
}

func newExpiry(s *server) *expiry {
	return &expiry{server: s, client: redis.NewClient(&redis.Options{Addr: s.addr, PoolSize: 64, ReadTimeout: time.Minute})}
}

// expiryKey is what is left of a payload when its key expires: its number.
func expiryKey(payload []byte) string { return string(payload[:min(len(payload), 20)]) }

func (e *expiry) Schedule(ctx context.Context, t bench.Task) error {
	return e.ScheduleBatch(ctx, []bench.Task{t})
}

func (e *expiry) ScheduleBatch(ctx context.Context, ts []bench.Task) error {
	_, err := e.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, t := range ts {
			// A deadline, not a TTL, which begins when the server has come to the command. It is a
			// millisecond ahead: Redis deletes what has expired at once, without an event.
			due := max(t.Due.UnixMilli(), time.Now().UnixMilli()+1)
			p.Do(ctx, "SET", expiryKey(t.Payload), t.Payload, "PXAT", due)
		}
		return nil
	})
	e.scheduled.Add(int64(len(ts)))
	return err
}

func (e *expiry) Receive(ctx context.Context, got func([]byte)) error {
	e.events = e.client.Subscribe(ctx, events)
	if _, err := e.events.Receive(ctx); err != nil { // the confirmation
		return err
	}
	e.group.Go(func() {
		for {
			m, err := e.events.ReceiveMessage(context.WithoutCancel(ctx))
			if err != nil {
				if !e.closing.Load() {
					err = fmt.Errorf("the subscriber: %w", err)
					e.fault.CompareAndSwap(nil, &err)
				}
				return
			}
			got([]byte(m.Payload))
			e.received.Add(1)
		}
	})
	return nil
}

func (e *expiry) Standing(context.Context) (bench.Standing, error) {
	if fault := e.fault.Load(); fault != nil {
		return bench.Standing{}, *fault
	}
	return bench.Standing{Left: int(e.scheduled.Load() - e.received.Load())}, nil
}

func (e *expiry) Close() error {
	if e.closing.Swap(true) {
		return nil
	}
	if e.events != nil {
		_ = e.events.Close()
	}
	e.group.Wait()
	err := e.client.Close()
	e.server.stop()
	return err
}
