package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/cli/bench"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/pubsub"
	"github.com/lapsehq/lapse/tasks/stream"
)

// inRedis is Lapse embedded, delivering into the Redis that has its ledger, and a
// receiver there: the subscriber of expiry.go on the channel of expired keys, or a
// reader of a stream. A task counts as handled when the receiver has it.
type inRedis struct {
	server    *server
	client    *redis.Client
	scheduler *tasks.Scheduler
	way       tasks.Kind
	events    *redis.PubSub
	ctx       context.Context // of the reader of a stream
	cancel    context.CancelFunc
	group     sync.WaitGroup
	closing   atomic.Bool
	scheduled atomic.Int64
	received  atomic.Int64
	fault     atomic.Pointer[error]
}

const (
	inRedisTopic  = "bench"
	inRedisStream = "bench:stream"
)

func openInRedis(ctx context.Context, way tasks.Kind) (_ bench.System, err error) {
	s := &inRedis{way: way}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if s.server, err = startRedis(ctx); err != nil {
		return nil, err
	}
	url := "redis://" + s.server.addr
	s.client = redis.NewClient(&redis.Options{Addr: s.server.addr, ReadTimeout: time.Minute})
	deliveries, err := redisledger.Connect(url, 64)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	quiet := slog.New(slog.DiscardHandler)
	ledger, err := redisledger.Open(redisledger.Options{URL: url, Node: "bench", Log: quiet})
	if err != nil {
		return nil, errors.Join(err, deliveries.Close(), s.Close())
	}
	object := json.RawMessage(`{"compat":"keyevent"}`)
	if way == stream.Kind {
		object = json.RawMessage(`{"stream":"` + inRedisStream + `","max_len":0}`)
	}
	s.scheduler, err = tasks.Open(ctx, ledger, tasks.Config{
		MaxPending: 200_000_000, MaxBytes: 1 << 40, AnswerWithin: time.Minute, Log: quiet,
		Ways:   []tasks.Way{pubsub.New(deliveries, pubsub.Config{}), stream.New(deliveries, stream.Config{})},
		Topics: map[string]tasks.TopicSettings{inRedisTopic: {Kind: way, Delivery: object, Concurrency: 2048}},
	})
	if err != nil {
		return nil, errors.Join(err, deliveries.Close(), s.Close())
	}
	s.group.Go(func() { // afterwards
		<-s.scheduler.Done()
		_ = deliveries.Close()
	})
	return s, nil
}

func (s *inRedis) Schedule(ctx context.Context, t bench.Task) error {
	return s.ScheduleBatch(ctx, []bench.Task{t})
}

// A task's id is its number, as it stands in the payload behind payloadHead: what is
// left of it on the channel.
const payloadHead, numberLen = `{"n":"`, 12

func (s *inRedis) ScheduleBatch(ctx context.Context, ts []bench.Task) error {
	requests := make([]tasks.Request, len(ts))
	for i, t := range ts {
		requests[i] = tasks.Request{ID: string(t.Payload[len(payloadHead):][:numberLen]), Topic: inRedisTopic, Due: t.Due, Payload: t.Payload}
	}
	results, err := s.scheduler.ScheduleBatch(ctx, requests)
	if err != nil {
		return err
	}
	for i := range results {
		if results[i].Err != nil {
			return fmt.Errorf("task %d of a batch: %w", i, results[i].Err)
		}
	}
	s.scheduled.Add(int64(len(ts)))
	return nil
}

func (s *inRedis) Receive(ctx context.Context, got func([]byte)) error {
	if s.way == stream.Kind {
		s.group.Go(func() { s.keep(s.read(got)) })
		return nil
	}
	s.events = s.client.Subscribe(ctx, events)
	if _, err := s.events.Receive(ctx); err != nil { // the confirmation
		return err
	}
	s.group.Go(func() { s.keep(s.listen(got)) })
	return nil
}

// listen is the subscriber.
func (s *inRedis) listen(got func([]byte)) error {
	for {
		m, err := s.events.ReceiveMessage(s.ctx)
		if err != nil {
			return fmt.Errorf("the subscriber: %w", err)
		}
		got([]byte(payloadHead + m.Payload))
		s.received.Add(1)
	}
}

// read reads the stream to which tasks are added, from its beginning.
func (s *inRedis) read(got func([]byte)) error {
	last := "0"
	for {
		streams, err := s.client.XRead(s.ctx, &redis.XReadArgs{Streams: []string{inRedisStream, last}, Count: 1000, Block: time.Second}).Result()
		if errors.Is(err, redis.Nil) {
			continue
		}
		if err != nil {
			return fmt.Errorf("the reader: %w", err)
		}
		for _, m := range streams[0].Messages {
			payload, _ := m.Values["payload"].(string)
			got([]byte(payload))
			last = m.ID
		}
		s.received.Add(int64(len(streams[0].Messages)))
	}
}

func (s *inRedis) keep(err error) {
	if !s.closing.Load() {
		s.fault.CompareAndSwap(nil, &err)
	}
}

func (s *inRedis) Standing(context.Context) (bench.Standing, error) {
	if fault := s.fault.Load(); fault != nil {
		return bench.Standing{}, *fault
	}
	if err := s.scheduler.Err(); err != nil {
		return bench.Standing{}, err
	}
	t, err := s.scheduler.Topic(inRedisTopic)
	return bench.Standing{Left: int(s.scheduled.Load() - s.received.Load()), Explained: int(t.Counts.Failed)}, err
}

// Close deletes the Redis with all its data.
func (s *inRedis) Close() error {
	if s.closing.Swap(true) {
		return nil
	}
	s.cancel()
	if s.events != nil {
		_ = s.events.Close()
	}
	var err error
	if s.scheduler != nil {
		err = s.scheduler.Close(context.Background())
	}
	s.group.Wait()
	err = errors.Join(err, s.client.Close())
	s.server.stop()
	return err
}
