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

// Two clients of one address share no memory: the client of a cluster appends the servers that it
// finds to the hosts that it was given.
func TestClientsShareNoHosts(t *testing.T) {
	a, err := ParseURL("redis+cluster://a,b,c")
	if err != nil {
		t.Fatal(err)
	}
	var hosts [2][]string
	for i := range hosts {
		client, err := Connect(a, nil, 1, IOTimeout)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		hosts[i] = client.UniversalClient.(*redis.ClusterClient).Options().Addrs
	}
	if &hosts[0][0] == &hosts[1][0] {
		t.Error("two clients append to the same hosts")
	}
}
