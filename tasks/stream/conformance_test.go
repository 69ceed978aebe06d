package stream_test

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks/delivertest"
	"github.com/lapsehq/lapse/tasks/internal/rig/redisrig"
	"github.com/lapsehq/lapse/tasks/stream"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	delivertest.Run(t, func(t *testing.T, r *delivertest.Receiver) delivertest.Rig {
		server := redistest.Start(t)
		client, err := redisledger.Connect(server.URL(), 8)
		if err != nil {
			t.Fatal(err)
		}
		b := &rig{redisrig.Put(t, server, client), delivertest.Stored{
			Way: stream.New(client, stream.Config{}), Delivery: `{"stream":"all","max_len":0,"task_streams":["ow*","lapse:*"]}`,
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

// Targets implements delivertest.Targeted.
func (*rig) Targets() (own json.RawMessage, refused []json.RawMessage) {
	for _, text := range []string{`{"stream":"lapse:nodes"}`, `{"stream":"a b"}`, `{"max_len":1}`, `{"stream":"theirs"}`} {
		refused = append(refused, json.RawMessage(text))
	}
	return json.RawMessage(`{"stream":"own"}`), refused
}

// read hands the entries of the streams to the receiver, until the client is closed.
func read(t *testing.T, c *redis.Client, r *delivertest.Receiver) {
	last := map[string]string{"all": "0", "own": "0"}
	for {
		streams, err := c.XRead(context.Background(), &redis.XReadArgs{Streams: []string{"all", "own", last["all"], last["own"]}, Count: 1000, Block: 50_000_000}).Result()
		if errors.Is(err, redis.ErrClosed) {
			return
		}
		if err != nil {
			continue // nothing new, or the server is paused
		}
		for e := range messages(streams, last) {
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
			r.Receive(context.Background(), delivertest.Arrival{Own: e.own, ID: text("id"), Attempt: attempt, Payload: []byte(text("payload")), Headers: headers})
		}
	}
}

// A message is an entry of one of the streams.
type message struct {
	redis.XMessage
	own bool // of the stream that tasks choose
}

// messages returns the entries, and notes the last one of each stream.
func messages(streams []redis.XStream, last map[string]string) iter.Seq[message] {
	return func(yield func(message) bool) {
		for _, s := range streams {
			for _, e := range s.Messages {
				last[s.Stream] = e.ID
				if !yield(message{e, s.Stream == "own"}) {
					return
				}
			}
		}
	}
}
