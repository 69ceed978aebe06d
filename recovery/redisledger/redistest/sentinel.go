package redistest

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// MasterName is the sentinels' name of the master.
const MasterName = "lapse"

// Sentinels are a master with a replica, watched by a sentinel that replaces it
// soon after it is gone.
type Sentinels struct {
	Master, Replica *Server
	sentinel        *Server
}

// patient is how long the sentinel waits for a server that does not answer, in milliseconds. On a
// busy machine a live one may be silent for a while, and only FailOver is meant to replace it.
const patient = "60000"

// StartSentinel starts them, and waits until the replica has caught up and the sentinel knows
// it.
func StartSentinel(t testing.TB, options ...string) *Sentinels {
	t.Helper()
	// The replica has a user of its own, so that it can be shut out.
	options = append([]string{
		"user replica on >secret +psync +replconf +ping", "masteruser replica", "masterauth secret",
	}, options...)
	s := &Sentinels{Master: Start(t, options...)}
	host, port, _ := net.SplitHostPort(s.Master.Addr)
	s.Replica = Start(t, append([]string{"replicaof " + host + " " + port}, options...)...)
	s.Replica.WaitForMaster()
	s.sentinel = newServer(t, []string{
		"sentinel monitor " + MasterName + " " + host + " " + port + " 1",
		"sentinel down-after-milliseconds " + MasterName + " " + patient,
		"sentinel failover-timeout " + MasterName + " 5000",
	})
	s.sentinel.args = append(s.sentinel.args, "--sentinel")
	s.sentinel.Start()
	s.sentinel.Wait("the sentinel knows the replica", func(ctx context.Context, c *redis.Client) bool {
		return strings.Contains(c.Info(ctx, "sentinel").Val(), "status=ok") &&
			strings.Contains(c.Info(ctx, "sentinel").Val(), "slaves=1")
	})
	return s
}

// StartReplica starts a replica of a server, and waits until it has caught up.
func StartReplica(t testing.TB, master *Server, options ...string) *Server {
	t.Helper()
	host, port, _ := net.SplitHostPort(master.Addr)
	replica := Start(t, append([]string{"replicaof " + host + " " + port}, options...)...)
	replica.WaitForMaster()
	return replica
}

// WaitForMaster waits until a replica has caught up.
func (s *Server) WaitForMaster() {
	s.t.Helper()
	s.Wait("the replica has caught up", func(ctx context.Context, c *redis.Client) bool {
		return strings.Contains(c.Info(ctx, "replication").Val(), "master_link_status:up")
	})
}

// URL is the sentinel's address for a ledger.
func (s *Sentinels) URL() string { return "redis+sentinel://" + s.sentinel.Addr + "/" + MasterName }

// ShutReplicaOut keeps the replica from getting any later write.
func (s *Sentinels) ShutReplicaOut() {
	s.Master.t.Helper()
	s.Master.Do("acl", "setuser", "replica", "off")
	s.Master.Do("client", "kill", "user", "replica")
}

// FailOver kills the master and waits until the replica is the master. The sentinel is told to: by
// itself it promotes no replica that was shut out for some seconds.
func (s *Sentinels) FailOver() {
	s.Master.t.Helper()
	s.Master.Kill()
	s.sentinel.Wait("the sentinel begins the failover", func(ctx context.Context, c *redis.Client) bool {
		return c.Do(ctx, "sentinel", "failover", MasterName).Err() == nil
	})
	s.Replica.Wait("the replica is the master", func(ctx context.Context, c *redis.Client) bool {
		return strings.Contains(c.Info(ctx, "replication").Val(), "role:master")
	})
}

// Rejoin starts the master that FailOver has killed as a replica of the new one, and waits until
// it has caught up and the sentinel could promote it.
func (s *Sentinels) Rejoin() {
	s.Master.t.Helper()
	s.Master, s.Replica = s.Replica, s.Master
	host, port, _ := net.SplitHostPort(s.Master.Addr)
	config := s.Replica.args[:1]
	s.Replica.args = []string{config[0], "--replicaof", host, port}
	s.Replica.Start()
	s.Replica.WaitForMaster()
	// From here on its file says so, until the sentinel makes it the master again.
	s.Replica.Do("config", "rewrite")
	s.Replica.args = config
	s.sentinel.Wait("the sentinel counts on the replica", func(ctx context.Context, c *redis.Client) bool {
		list, err := c.Do(ctx, "sentinel", "replicas", MasterName).Slice()
		if err != nil || len(list) != 1 {
			return false
		}
		fields, _ := list[0].([]any)
		for i := 0; i+1 < len(fields); i += 2 {
			if fields[i] == "flags" {
				return fields[i+1] == "slave"
			}
		}
		return false
	})
}
