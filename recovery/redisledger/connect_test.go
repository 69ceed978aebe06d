package redisledger

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// A replica is not asked anything: what it does not have may exist.
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

// What was to be sent over a connection that leads to a replica was heard by no node.
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
