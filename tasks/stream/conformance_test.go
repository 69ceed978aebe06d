package stream_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks/delivertest"
	"github.com/lapsehq/lapse/tasks/internal/redisrig"
	"github.com/lapsehq/lapse/tasks/stream"
)

func TestConformance(t *testing.T) {
	delivertest.Run(t, func(t *testing.T, r *delivertest.Receiver) delivertest.Rig {
		server := redistest.Start(t)
		client, err := redisledger.Connect(server.URL(), 8)
		if err != nil {
			t.Fatal(err)
		}
		b := &rig{redisrig.Put(t, server, client), delivertest.Stored{
			Way: stream.New(client, stream.Config{}), Delivery: `{"stream":"all","max_len":0}`,
		}}
		reader := server.Client()
		var reading sync.WaitGroup
		reading.Go(func() { read(t, reader, r) })
		t.Cleanup(func() {
			_ = reader.Close()
			reading.Wait()
			_ = client.Close()
		})
		return b
	})
}

type rig struct {
	*redisrig.Fault
	delivertest.Stored
}

// read hands the entries of the stream to the receiver, until the client is closed.
func read(t *testing.T, c *redis.Client, r *delivertest.Receiver) {
	last := "0"
	for {
		streams, err := c.XRead(context.Background(), &redis.XReadArgs{Streams: []string{"all", last}, Count: 1000, Block: 50_000_000}).Result()
		if errors.Is(err, redis.ErrClosed) {
			return
		}
		if err != nil {
			continue // nothing new, or the server is paused
		}
		for _, e := range streams[0].Messages {
			last = e.ID
			text := func(field string) string { s, _ := e.Values[field].(string); return s }
			attempt, err := strconv.Atoi(text("attempt"))
			if err != nil {
				t.Error(err)
			}
			headers := map[string]string{}
			for field := range e.Values {
				if name, ok := strings.CutPrefix(field, "h:"); ok {
					headers[name] = text(field)
				}
			}
			r.Receive(context.Background(), delivertest.Arrival{ID: text("id"), Attempt: attempt, Payload: []byte(text("payload")), Headers: headers})
		}
	}
}
