package redisledger

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// The servers that the URL names have become replicas: the cluster is found all the same, and no
// replica is taken for a master.
func TestReplicasAsSeeds(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	replica := cluster.AddReplica(cluster.Masters[0])
	l := oneShard("redis+cluster://" + replica.Addr).open(t)
	adopt(t, l)
	apply(t, l, put("a", "1"))

	// A client that takes the replica for a master is redirected, or sends it nothing.
	c := redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
		return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: replica.Addr}}}}, nil
	}})
	defer c.Close()
	for i := range 100 { // in all slots
		key := fmt.Sprint("x", i)
		cluster.Master(key).Do("set", key, "1")
		if got, err := c.Get(t.Context(), key).Result(); err != nil || got != "1" {
			t.Errorf("a read of %s: %q, %v", key, got, err)
		}
	}
	asked := &conn.Client{UniversalClient: c}
	err := asked.EachServer(t.Context(), func(context.Context, *redis.Client) error { t.Error("it was asked"); return nil })
	if !errors.Is(err, conn.ErrReplica) {
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
