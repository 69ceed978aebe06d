package redisledger

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// Nothing is read from a replica: a record that it lacks may exist.
func TestReplicaIsNotAsked(t *testing.T) {
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master)
	a, err := parseURL(replica.URL())
	if err != nil {
		t.Fatal(err)
	}
	client, err := connect(a, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.Get(t.Context(), "x").Err(); !errors.Is(err, errReplica) {
		t.Errorf("a read: %v", err)
	}
	ps := client.Subscribe(t.Context(), "x")
	defer ps.Close()
	if _, err := ps.Receive(t.Context()); !errors.Is(err, errReplica) {
		t.Errorf("a subscription: %v", err)
	}
	replica.Do("replicaof", "no", "one")
	replica.Wait("it takes writes", func(ctx context.Context, c *redis.Client) bool { return c.Set(ctx, "x", "1", 0).Err() == nil })
	if got, err := client.Get(t.Context(), "x").Result(); err != nil || got != "1" {
		t.Errorf("once it is the master: %q, %v", got, err)
	}
}

// The servers that the URL names have become replicas: the cluster is found all the same, and no
// replica is taken for a master.
func TestReplicasAsSeeds(t *testing.T) {
	cluster := redistest.StartCluster(t)
	replica := cluster.AddReplica(cluster.Masters[0])
	l := oneShard("redis+cluster://" + replica.Addr).open(t)
	adopt(t, l)
	apply(t, l, put("a", "1"))

	// A client that takes the replica for a master is redirected, or sends it nothing.
	client := redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
		return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: replica.Addr}}}}, nil
	}})
	defer client.Close()
	for i := range 100 { // in all slots
		key := fmt.Sprint("x", i)
		cluster.Master(key).Do("set", key, "1")
		if got, err := client.Get(t.Context(), key).Result(); err != nil || got != "1" {
			t.Errorf("a read of %s: %q, %v", key, got, err)
		}
	}
	asked := &Ledger{client: client}
	err := asked.eachServer(t.Context(), func(context.Context, *redis.Client) error { t.Error("it was asked"); return nil })
	if !errors.Is(err, errReplica) {
		t.Errorf("asking every server: %v", err)
	}
}

// A message whose connection leads to a replica was received by no node.
func TestSendToAReplica(t *testing.T) {
	master := redistest.Start(t)
	l := listening(t, newLives(master.URL()), "a").l
	other := redistest.Start(t)
	host, port, _ := net.SplitHostPort(other.Addr)
	master.Do("replicaof", host, port)
	master.Do("client", "kill", "type", "normal")
	if err := l.Send(t.Context(), "b", nil); !errors.Is(err, recovery.ErrUnheard) {
		t.Errorf("%v", err)
	}
}
