package pubsub_test

import (
	"context"
	"encoding/json"
	"sync"
	"testing"

	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks/delivertest"
	"github.com/lapsehq/lapse/tasks/internal/rig/redisrig"
	"github.com/lapsehq/lapse/tasks/pubsub"
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
			Way: pubsub.New(client, pubsub.Config{}), Delivery: `{"channel":"all","format":"envelope","min_receivers":1,"task_channels":["own"]}`,
			Lacks: map[delivertest.Ability]string{delivertest.Payloads: "in an envelope it is an equal value, and alone it has no id"},
		}}
		subscriber := server.Client()
		events := subscriber.Subscribe(t.Context(), "all", "own")
		for range 2 {
			if _, err := events.Receive(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		var reading sync.WaitGroup
		reading.Go(func() {
			for {
				m, err := events.ReceiveMessage(context.Background())
				if err != nil {
					return
				}
				var e pubsub.Envelope
				if err := json.Unmarshal([]byte(m.Payload), &e); err != nil {
					t.Error(err)
				}
				r.Receive(context.Background(), delivertest.Arrival{Own: m.Channel == "own", ID: e.ID, Attempt: e.Attempt, Headers: e.Headers})
			}
		})
		t.Cleanup(func() {
			_, _ = events.Close(), subscriber.Close()
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
	for _, text := range []string{`{"channel":"__sentinel__:hello"}`, `{"channel":""}`, `{"format":"payload"}`, `{"channel":"theirs"}`} {
		refused = append(refused, json.RawMessage(text))
	}
	return json.RawMessage(`{"channel":"own"}`), refused
}
