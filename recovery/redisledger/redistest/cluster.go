package redistest

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// slots is the number of slots of a cluster.
const slots = 16384

// A Cluster is three masters without replicas.
type Cluster struct {
	Masters []*Server
	t       testing.TB
}

// StartCluster starts a cluster, and waits until all masters know all slots.
func StartCluster(t testing.TB, options ...string) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	for range 3 {
		c.Masters = append(c.Masters, Start(t, append([]string{
			"cluster-enabled yes", "cluster-config-file nodes.conf", "cluster-node-timeout 3000",
		}, options...)...))
	}
	for n, m := range c.Masters {
		args := []any{"cluster", "addslots"}
		for slot := n * slots / 3; slot < (n+1)*slots/3; slot++ {
			args = append(args, slot)
		}
		m.Do(args...)
		host, port, _ := net.SplitHostPort(m.Addr)
		for _, other := range c.Masters[:n] {
			other.Do("cluster", "meet", host, port)
		}
	}
	for _, m := range c.Masters {
		m.waitForCluster("cluster_state:ok", fmt.Sprintf("cluster_known_nodes:%d", len(c.Masters)))
	}
	return c
}

// AddReplica starts a replica of a master. It waits until the replica has caught up and knows the
// masters of all slots: until then the replica answers CLUSTERDOWN where it should redirect.
func (c *Cluster) AddReplica(master *Server) *Server {
	c.t.Helper()
	replica := Start(c.t, "cluster-enabled yes", "cluster-config-file nodes.conf", "cluster-node-timeout 3000")
	host, port, _ := net.SplitHostPort(master.Addr)
	replica.Do("cluster", "meet", host, port)
	id := master.Do("cluster", "myid")
	replica.Wait("it may replicate", func(ctx context.Context, r *redis.Client) bool {
		return r.Do(ctx, "cluster", "replicate", id).Err() == nil
	})
	replica.WaitForMaster()
	replica.waitForCluster("cluster_state:ok")
	return replica
}

// waitForCluster waits until a server reports all these lines of its cluster. Its state is ok once
// it knows a master for each slot.
func (s *Server) waitForCluster(lines ...string) {
	s.t.Helper()
	s.Wait("the cluster stands", func(ctx context.Context, r *redis.Client) bool {
		info := r.ClusterInfo(ctx).Val()
		for _, line := range lines {
			if !strings.Contains(info, line+"\r\n") {
				return false
			}
		}
		return true
	})
}

// URL is the cluster's address for a ledger.
func (c *Cluster) URL() string {
	addrs := make([]string, len(c.Masters))
	for i, m := range c.Masters {
		addrs[i] = m.Addr
	}
	return "redis+cluster://" + strings.Join(addrs, ",")
}

// A Move is the move of one slot from one master to another, step by step.
type Move struct {
	From, To *Server
	slot     int64
	c        *Cluster
}

// Master is the master that had the slot of key when the cluster was started.
func (c *Cluster) Master(key string) *Server {
	c.t.Helper()
	return c.Masters[c.ownerOf(c.slotOf(key))]
}

func (c *Cluster) slotOf(key string) int64 {
	return c.Masters[0].Do("cluster", "keyslot", key).(int64)
}

func (c *Cluster) ownerOf(slot int64) int {
	owner := 0
	for int64((owner+1)*slots/3) <= slot {
		owner++
	}
	return owner
}

// BeginMove begins to move the slot of key to another master. Its keys stay.
func (c *Cluster) BeginMove(key string) *Move {
	c.t.Helper()
	m := &Move{c: c, slot: c.slotOf(key)}
	owner := c.ownerOf(m.slot)
	m.From, m.To = c.Masters[owner], c.Masters[(owner+1)%3]
	m.To.Do("cluster", "setslot", m.slot, "importing", m.From.Do("cluster", "myid"))
	m.From.Do("cluster", "setslot", m.slot, "migrating", m.To.Do("cluster", "myid"))
	return m
}

// Key moves one key.
func (m *Move) Key(key string) {
	m.c.t.Helper()
	host, port, _ := net.SplitHostPort(m.To.Addr)
	m.From.Do("migrate", host, port, key, 0, 5000)
}

// End assigns the slot to its new master.
func (m *Move) End() {
	m.c.t.Helper()
	id := m.To.Do("cluster", "myid")
	m.To.Do("cluster", "setslot", m.slot, "node", id)
	for _, master := range m.c.Masters {
		master.Do("cluster", "setslot", m.slot, "node", id)
	}
}
