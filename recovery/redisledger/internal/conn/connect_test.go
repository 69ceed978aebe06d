package conn

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// Nothing is read from a replica: a record that it lacks may exist.
func TestReplicaIsNotAsked(t *testing.T) {
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master)
	a, err := ParseURL(replica.URL())
	if err != nil {
		t.Fatal(err)
	}
	client, err := Connect(a, nil, 1, IOTimeout)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.Get(t.Context(), "x").Err(); !errors.Is(err, ErrReplica) {
		t.Errorf("a read: %v", err)
	}
	ps := client.Subscribe(t.Context(), "x")
	defer ps.Close()
	if _, err := ps.Receive(t.Context()); !errors.Is(err, ErrReplica) {
		t.Errorf("a subscription: %v", err)
	}
	replica.Do("replicaof", "no", "one")
	replica.Wait("it takes writes", func(ctx context.Context, c *redis.Client) bool { return c.Set(ctx, "x", "1", 0).Err() == nil })
	if got, err := client.Get(t.Context(), "x").Result(); err != nil || got != "1" {
		t.Errorf("once it is the master: %q, %v", got, err)
	}
}
