package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

// A Bus carries messages by Redis' pub/sub. Redis keeps none of them: a node that is not
// listening, or has just lost its connection, does not get them.
//
// In Cluster mode a channel's messages go to all servers, from 7.0 on only to those that have
// the slot of its name (sharded pub/sub). All nodes must use the same one of the two ways, so
// each node checks from time to time whether the servers' version has changed.
type Bus struct {
	Config
	wanted    context.Context // ends when StopListening begins
	stop      context.CancelFunc
	connected context.Context // the connections end with it
	end       context.CancelFunc
	listening sync.WaitGroup // one for each connection
	turn      sync.Mutex     // held while a message is received
	begun     atomic.Bool
	sharded   atomic.Bool
}

// A Config has what a bus needs. All fields must be set.
type Config struct {
	Client *conn.Client
	Keys   layout.Keys
	Self   layout.Holder   // the node that listens
	Life   context.Context // listening ends with it
	Log    *slog.Logger
	// ShardedSince is the version from which on Redis has sharded pub/sub; ShardedSince but in
	// tests.
	ShardedSince string
}

// New makes a bus.
func New(c Config) *Bus {
	b := &Bus{Config: c}
	b.connected, b.end = context.WithCancel(c.Life)
	b.wanted, b.stop = context.WithCancel(b.connected)
	return b
}

// Wait returns when listening has ended.
func (b *Bus) Wait() { b.listening.Wait() }

// ShardedSince is the version from which on Redis has sharded pub/sub.
const ShardedSince = "7.0"

// pingAfter is after how long without a message the subscription pings its server; after three
// times as long without an answer it connects anew.
const pingAfter = time.Second

// versionEvery is the time between two checks of the versions of a cluster's servers.
const versionEvery = 10 * time.Second

// Listen receives messages to this node or to all, see recovery.Bus. It returns an error only if
// the Redis user may not subscribe, or if the bus listens already. It waits for the end of an
// outage, then and later.
func (b *Bus) Listen(receive func(message []byte)) error {
	if b.begun.Swap(true) {
		return errors.New("this node listens already")
	}
	b.refreshVersions(b.Life)
	parts := [][]string{{b.Keys.BusOf(b.Self.Node), b.Keys.BusOfAll()}}
	if b.Client.IsCluster() { // the slots of the two may be on different servers
		parts = [][]string{parts[0][:1], parts[0][1:]}
	}
	first := make(chan error, len(parts))
	for _, channels := range parts {
		s := &subscription{b: b, channels: channels, receive: receive}
		b.listening.Go(func() { s.keep(first) })
	}
	for range parts {
		if err := <-first; err != nil && conn.Refused(err) {
			b.end()
			return fmt.Errorf("listening to other nodes: %w", err)
		}
	}
	return nil
}

// StopListening implements recovery.Bus. Redis confirms the end of a subscription after the
// messages that it has taken for it. If it does not, as in an outage, or if its user may not
// unsubscribe, the connection is closed all the same, and messages may be lost.
func (b *Bus) StopListening(ctx context.Context) {
	b.stop()
	defer context.AfterFunc(ctx, b.end)()
	b.listening.Wait()
	b.end()
}

// Send sends a message to a node, or to all others if node is empty. The error is
// recovery.ErrUnheard if no node can have received the message. Redis reports how many clients
// listen at the server that takes the message, but not how many do at its replicas, which pass it
// on: after a failover a node may listen there.
func (b *Bus) Send(ctx context.Context, node string, message []byte) error {
	command, channel := "publish", b.Keys.BusOf(node)
	if b.sharded.Load() {
		command = "spublish"
	}
	if node == "" {
		channel = b.Keys.BusOfAll()
		message = append([]byte(b.Self.Incarnation), message...)
	}
	cmd := redis.NewIntCmd(ctx, command, channel, message)
	_ = b.Client.Process(ctx, cmd)
	listening, err := cmd.Result()
	switch {
	case err != nil && b.Client.Unsent(err):
		return fmt.Errorf("%w: node %s: %w", recovery.ErrUnheard, node, err)
	case err != nil:
		return fmt.Errorf("sending to node %s: %w", node, err)
	case listening == 0 && b.hasNeverReplicated(ctx):
		return fmt.Errorf("%w: node %s", recovery.ErrUnheard, node)
	}
	return nil
}

// hasNeverReplicated reports whether Redis is one server without replicas: none that is
// connected now, and none for which it keeps a backlog.
func (b *Bus) hasNeverReplicated(ctx context.Context) bool {
	if b.Client.IsCluster() {
		return false
	}
	text, err := b.Client.Info(ctx, "replication").Result()
	in := conn.ParseInfo(text)
	return err == nil && in["role"] == "master" && in["repl_backlog_active"] == "0"
}

// refreshVersions chooses one of the two ways of Redis Cluster. A server that does not answer
// changes nothing.
func (b *Bus) refreshVersions(ctx context.Context) {
	if !b.Client.IsCluster() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*conn.IOTimeout)
	defer cancel()
	sharded := true
	if err := b.Client.EachInfo(ctx, []string{"server"}, func(in conn.Info) error {
		sharded = sharded && conn.CompareVersions(in["redis_version"], b.ShardedSince) >= 0
		return nil
	}); err == nil {
		b.UseSharded(sharded)
	}
}

// UseSharded chooses one of the two ways, until the next check of the servers' versions.
func (b *Bus) UseSharded(sharded bool) { b.sharded.Store(sharded) }

// A subscription listens to channels over one connection after another.
type subscription struct {
	b        *Bus
	channels []string
	receive  func(message []byte)

	confirmed  int          // channels; used by listen alone
	lastAnswer atomic.Int64 // when the server last answered, in Unix nanoseconds
}

// relistening spaces the attempts to listen again.
var relistening = recovery.Backoff{Min: 10 * time.Millisecond, Max: time.Second}

// keep listens until the bus stops. It sends the outcome of the first attempt to first: nil when
// the server has confirmed it, otherwise the error.
func (s *subscription) keep(first chan<- error) {
	began := func(err error) {
		if first != nil {
			first <- err
			first = nil
		}
	}
	logged := false
	for attempt := 0; ; attempt++ {
		err := s.listen(s.b.connected, func() {
			if logged {
				s.b.Log.Info("messages of other nodes are received again", "channels", s.channels)
			}
			attempt, logged = 0, false
			began(nil)
		})
		began(err)
		if s.b.wanted.Err() != nil {
			return
		}
		if !logged && attempt > 0 {
			logged = true
			s.b.Log.Warn("messages of other nodes are not received", "channels", s.channels, "error", err)
		}
		if relistening.Wait(s.b.wanted, attempt) != nil {
			return
		}
	}
}

// Why listen ends although the connection works. A channel that has moved is subscribed again at
// the other server.
var (
	errMoved        = errors.New("the channel moved to another server")
	errUnsubscribed = errors.New("the server has confirmed the end of the subscription")
)

// listen listens over one connection, and returns why the connection has ended.
func (s *subscription) listen(ctx context.Context, confirmed func()) error {
	sharded := s.b.sharded.Load()
	ps := s.b.Client.Subscribe(ctx)
	subscribe, unsubscribe := ps.Subscribe, ps.Unsubscribe
	if sharded {
		subscribe, unsubscribe = ps.SSubscribe, ps.SUnsubscribe
	}
	ended := make(chan struct{})
	watched := make(chan struct{})
	s.lastAnswer.Store(time.Now().UnixNano())
	go func() {
		defer close(watched)
		if s.watch(ctx, ps, sharded, ended) && unsubscribe(ctx, s.channels...) == nil {
			select {
			case <-ended:
			case <-ctx.Done():
			}
		}
		_ = ps.Close() // which also ends a Receive
	}()
	defer func() {
		close(ended)
		<-watched
	}()
	err := subscribe(ctx, s.channels...)
	if err == nil && s.b.wanted.Err() != nil {
		err = errUnsubscribed // or about to be, perhaps before the channels were subscribed
	}
	s.confirmed = 0
	for err == nil {
		var got any
		if got, err = ps.Receive(ctx); err == nil {
			s.lastAnswer.Store(time.Now().UnixNano())
			err = s.take(got, confirmed)
		}
	}
	if s.b.wanted.Err() == nil {
		s.b.Client.Reload(ctx)
	}
	return err
}

// take handles one reply of the server.
func (s *subscription) take(got any, confirmed func()) error {
	switch m := got.(type) {
	case *redis.Subscription:
		switch m.Kind {
		case "subscribe", "ssubscribe":
			if s.confirmed++; s.confirmed == len(s.channels) {
				confirmed()
			}
		default:
			if s.b.wanted.Err() == nil {
				return errMoved
			}
			if s.confirmed--; s.confirmed <= 0 {
				return errUnsubscribed
			}
		}
	case *redis.Message:
		message := []byte(m.Payload)
		if m.Channel == s.b.Keys.BusOfAll() {
			n := len(s.b.Self.Incarnation)
			if len(message) < n || string(message[:n]) == s.b.Self.Incarnation {
				return nil
			}
			message = message[n:]
		}
		s.b.turn.Lock()
		defer s.b.turn.Unlock()
		s.receive(message)
	}
	return nil
}

// watch returns when the connection is of no use any more: the server does not answer, or the
// messages come by the other way. It reports true when listening is not wanted any more.
func (s *subscription) watch(ctx context.Context, ps *redis.PubSub, sharded bool, ended <-chan struct{}) (unwanted bool) {
	tick := time.NewTicker(pingAfter)
	defer tick.Stop()
	looked := time.Now()
	for {
		select {
		case <-s.b.wanted.Done():
			select {
			case <-ended:
				return false
			default:
				return true
			}
		case <-ended:
			return false
		case <-tick.C:
		}
		if time.Since(looked) > versionEvery {
			s.b.refreshVersions(s.b.wanted)
			looked = time.Now()
		}
		silent := time.Since(time.Unix(0, s.lastAnswer.Load()))
		if silent > 3*pingAfter || s.b.sharded.Load() != sharded {
			return false
		}
		if silent > pingAfter/2 {
			if ps.Ping(ctx) != nil {
				return false
			}
		}
	}
}
