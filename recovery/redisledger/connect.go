package redisledger

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Network timeouts. go-redis' default of 5 s is longer than the promise of an answer
// within 2 s.
const (
	dialTimeout = time.Second
	ioTimeout   = time.Second
)

// bufferSize is that of a connection's buffers: a batch of 1024 tasks takes a
// handful of writes.
const bufferSize = 64 << 10

// Connect makes a client for a URL that ParseURL accepts, with the timeouts of the ledger's
// own: a command that Redis does not answer within a second fails, and no command is sent twice.
// It does not connect yet. connections is the highest number of connections for each server.
func Connect(url string, connections int) (redis.UniversalClient, error) {
	a, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	return connect(a, nil, connections)
}

// connect makes a client. It does not connect yet.
func connect(a address, config *tls.Config, connections int) (redis.UniversalClient, error) {
	return connectFor(a, config, connections, ioTimeout)
}

// connectFor is connect with another timeout for answers.
func connectFor(a address, config *tls.Config, connections int, answer time.Duration) (redis.UniversalClient, error) {
	if config == nil {
		var err error
		if config, err = a.tls(); err != nil {
			return nil, err
		}
	}
	o := &redis.UniversalOptions{
		Addrs:            a.hosts,
		DB:               a.db,
		MasterName:       a.master,
		Username:         a.user,
		Password:         a.password,
		SentinelUsername: a.sentinelUser,
		SentinelPassword: a.sentinelPassword,
		TLSConfig:        config,

		DialTimeout:           dialTimeout,
		DialerRetries:         1,
		ReadTimeout:           answer,
		WriteTimeout:          ioTimeout,
		ContextTimeoutEnabled: true,
		PoolSize:              connections,
		ReadBufferSize:        bufferSize,
		WriteBufferSize:       bufferSize,

		// The ledger repeats unanswered commands itself, where it knows the batch's number. A
		// cluster's redirections are not repeats: nothing was executed.
		MaxRetries:   -1,
		MaxRedirects: 4,

		Protocol:                 2,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if a.mode != cluster {
		o.OnConnect = refuseReplica
	}
	switch a.mode {
	case sentinel:
		return redis.NewFailoverClient(o.Failover()), nil
	case cluster:
		c := o.Cluster()
		c.DisableRoutingPolicies = true // every command here names its key
		return redis.NewClusterClient(c), nil
	default:
		return redis.NewClient(o.Simple()), nil
	}
}

// errReplica is why no connection to a replica is used. After a failover the sentinels report
// the address of a former master for a while: it refuses writes, and its answers to reads may
// be old, or empty while it is copying.
var errReplica = errors.New("the server is a replica")

// refuseReplica refuses a new connection if it leads to a replica that takes no writes. To the
// caller the server is unreachable.
//
// The client of a cluster does not check this: a replica there knows which servers have which
// keys, and may be all that the URL names. It redirects commands with keys, and forwards
// messages.
func refuseReplica(ctx context.Context, conn *redis.Conn) error {
	text, err := conn.Info(ctx, "replication").Result()
	if err != nil {
		if _, answered := errors.AsType[redis.Error](err); answered {
			return nil // it does not report its role
		}
		return err
	}
	if in := parseInfo(text); in["role"] == "slave" && in["slave_read_only"] != "0" {
		// go-redis takes one layer off.
		return fmt.Errorf("connecting to Redis: %w", &net.OpError{Op: "dial", Net: "tcp", Err: errReplica})
	}
	return nil
}

// connection returns one connection to the server that has key, and to no other:
// when it breaks, every later command fails.
func (l *Ledger) connection(ctx context.Context, key string) (*redis.Conn, error) {
	server, err := l.serverOf(ctx, key)
	if err != nil {
		return nil, err
	}
	return server.Conn(), nil
}

// redirected reports whether a command on a connection has failed because its key is, or soon
// will be, at another server of the cluster. The client then reloads which servers have which
// keys, so that a connection made a moment later leads to the right one.
func (l *Ledger) redirected(ctx context.Context, err error) bool {
	cluster, ok := l.client.(*redis.ClusterClient)
	if !ok || !redis.HasErrorPrefix(err, "MOVED") && !redis.HasErrorPrefix(err, "ASK") {
		return false
	}
	cluster.ReloadState(ctx)
	return true
}

// serverOf returns a client of the server that has key, as far as is known.
func (l *Ledger) serverOf(ctx context.Context, key string) (*redis.Client, error) {
	switch c := l.client.(type) {
	case *redis.ClusterClient:
		return c.MasterForKey(ctx, key)
	case *redis.Client:
		return c, nil
	}
	return nil, fmt.Errorf("a client of type %T has no connections of its own", l.client)
}

// serverName names the server that keeps a shard, as far as is known: a cluster has several.
func (l *Ledger) serverName(n int) string {
	s := l.term(n)
	if _, ok := l.client.(*redis.ClusterClient); !ok || s == nil {
		return ""
	}
	master, err := l.serverOf(l.life, s.keys.Tasks())
	if err != nil {
		return ""
	}
	return master.Options().Addr
}

// eachServer calls f for every server that takes writes.
func (l *Ledger) eachServer(ctx context.Context, f func(ctx context.Context, c *redis.Client) error) error {
	switch c := l.client.(type) {
	case *redis.ClusterClient:
		return c.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
			// It may have become a replica since the client last reloaded the servers.
			conn := c.Conn()
			err := refuseReplica(ctx, conn)
			_ = conn.Close()
			if err != nil {
				return err
			}
			return f(ctx, c)
		})
	case *redis.Client:
		return f(ctx, c)
	}
	return nil
}

// pipeline sends commands together. A nil reply is not an error; any other is
// that of the first command that failed.
func (l *Ledger) pipeline(ctx context.Context, fill func(p redis.Pipeliner)) error {
	p := l.client.Pipeline()
	fill(p)
	return execute(ctx, p)
}

// execute sends the commands of a pipeline.
func execute(ctx context.Context, p redis.Pipeliner) error {
	if p.Len() == 0 {
		return nil
	}
	cmds, err := p.Exec(ctx)
	if err == nil || errors.Is(err, redis.Nil) {
		for _, cmd := range cmds {
			if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) {
				return err
			}
		}
		return nil
	}
	return err
}
