package conn

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Network timeouts. go-redis' default of 5 s is longer than the promise of an answer
// within 2 s.
const (
	dialTimeout = time.Second
	IOTimeout   = time.Second
)

// bufferSize is that of a connection's buffers: a batch of 1024 tasks takes a
// handful of writes.
const bufferSize = 64 << 10

// A Client has connections to the servers of one address.
type Client struct {
	redis.UniversalClient
	address Address
	tls     *tls.Config // nil means none
}

// Connect makes a client with so many connections for each server, and a timeout for answers. It
// does not connect yet. config is used instead of what the address says about TLS; nil means the
// address's. It fails if the files that the address names cannot be read.
func Connect(a Address, config *tls.Config, connections int, answer time.Duration) (*Client, error) {
	return connect(a, config, connections, answer, refuseReplica)
}

// ConnectReader is Connect for a caller that only reads: a replica will do.
func ConnectReader(a Address, connections int, answer time.Duration) (*Client, error) {
	return connect(a, nil, connections, answer, nil)
}

// connect is Connect with a check of each new connection, which the client of a cluster does not
// make.
func connect(a Address, config *tls.Config, connections int, answer time.Duration, check func(context.Context, *redis.Conn) error) (*Client, error) {
	if config == nil {
		var err error
		if config, err = a.tls(); err != nil {
			return nil, err
		}
	}
	o := &redis.UniversalOptions{
		Addrs:            slices.Clone(a.hosts), // a cluster's client appends to it
		DB:               a.DB,
		MasterName:       a.master,
		Username:         a.user,
		Password:         a.password,
		SentinelUsername: a.sentinelUser,
		SentinelPassword: a.sentinelPassword,
		TLSConfig:        config,

		DialTimeout:           dialTimeout,
		DialerRetries:         1,
		ReadTimeout:           answer,
		WriteTimeout:          IOTimeout,
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
		o.OnConnect = check
	}
	made := &Client{address: a, tls: config}
	switch a.mode {
	case sentinel:
		made.UniversalClient = redis.NewFailoverClient(o.Failover())
	case cluster:
		c := o.Cluster()
		c.DisableRoutingPolicies = true // every command here names its key
		made.UniversalClient = redis.NewClusterClient(c)
	default:
		made.UniversalClient = redis.NewClient(o.Simple())
	}
	return made, nil
}

// String is the address without its secrets.
func (c *Client) String() string { return c.address.String() }

// IsCluster reports whether the keys are spread over the servers of Redis Cluster.
func (c *Client) IsCluster() bool { return c.address.mode == cluster }

// ErrReplica is why no connection to a replica is used. After a failover the sentinels report
// the address of a former master for a while: it refuses writes, and its answers to reads may
// be old, or empty while it is copying.
var ErrReplica = errors.New("the server is a replica")

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
	if in := ParseInfo(text); in["role"] == "slave" && in["slave_read_only"] != "0" {
		// go-redis takes one layer off.
		return fmt.Errorf("connecting to Redis: %w", &net.OpError{Op: "dial", Net: "tcp", Err: ErrReplica})
	}
	return nil
}

// Connection returns one connection to the server that has key, and to no other:
// when it breaks, every later command fails.
func (c *Client) Connection(ctx context.Context, key string) (*redis.Conn, error) {
	server, err := c.ServerOf(ctx, key)
	if err != nil {
		return nil, err
	}
	return server.Conn(), nil
}

// Reload reloads which servers of a cluster have which keys.
func (c *Client) Reload(ctx context.Context) {
	if cluster, ok := c.UniversalClient.(*redis.ClusterClient); ok {
		cluster.ReloadState(ctx)
	}
}

// Redirected reports whether a command on a connection has failed because its key is, or soon
// will be, at another server of the cluster. The client then reloads which servers have which
// keys, so that a connection made a moment later leads to the right one.
func (c *Client) Redirected(ctx context.Context, err error) bool {
	cluster, ok := c.UniversalClient.(*redis.ClusterClient)
	if !ok || !redis.HasErrorPrefix(err, "MOVED") && !redis.HasErrorPrefix(err, "ASK") {
		return false
	}
	cluster.ReloadState(ctx)
	return true
}

// ServerOf returns a client of the server that has key, as far as is known.
func (c *Client) ServerOf(ctx context.Context, key string) (*redis.Client, error) {
	switch c := c.UniversalClient.(type) {
	case *redis.ClusterClient:
		return c.MasterForKey(ctx, key)
	case *redis.Client:
		return c, nil
	}
	return nil, fmt.Errorf("a client of type %T has no connections of its own", c.UniversalClient)
}

// EachServer calls f for every server that takes writes.
func (c *Client) EachServer(ctx context.Context, f func(ctx context.Context, c *redis.Client) error) error {
	switch c := c.UniversalClient.(type) {
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

// Pipe sends commands together. A nil reply is not an error; any other is
// that of the first command that failed.
func (c *Client) Pipe(ctx context.Context, fill func(p redis.Pipeliner)) error {
	p := c.Pipeline()
	fill(p)
	return Execute(ctx, p)
}

// Execute sends the commands of a pipeline.
func Execute(ctx context.Context, p redis.Pipeliner) error {
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

// AnswersPing sends PING over a connection that was used for nothing else: the client's own
// connections begin with HELLO.
func (c *Client) AnswersPing(ctx context.Context) bool {
	if c.address.mode != standalone {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, IOTimeout)
	defer cancel()
	var conn net.Conn
	var err error
	if c.tls != nil {
		conn, err = (&tls.Dialer{Config: c.tls}).DialContext(ctx, "tcp", c.address.hosts[0])
	} else {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp", c.address.hosts[0])
	}
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(IOTimeout))
	if _, err := io.WriteString(conn, "*1\r\n$4\r\nPING\r\n"); err != nil {
		return false
	}
	line, err := bufio.NewReader(io.LimitReader(conn, 512)).ReadString('\n')
	return err == nil && (strings.HasPrefix(line, "+PONG") || strings.HasPrefix(line, "-NOAUTH"))
}

// Unsent reports whether an error means that a command was not executed: there was no
// connection, or Redis said so. The client of a cluster does not report whether an earlier
// attempt was sent.
func (c *Client) Unsent(err error) bool {
	var op *net.OpError
	var reply redis.Error
	return !c.IsCluster() &&
		(errors.As(err, &op) && op.Op == "dial" || errors.As(err, &reply) || errors.Is(err, redis.ErrPoolTimeout))
}
