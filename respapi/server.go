package respapi

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-multierror"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/respapi/internal/script"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

// Bounds of Config.
const (
	MostConnections  = 1_000_000
	LeastMaxCommand  = 64 << 10
	MostMaxCommand   = 1 << 30
	MostMaxValue     = 16 << 20
	MostPersistent   = 100_000_000
	MaxTopicPrefixes = 1000

	defaultConnections = 10_000
	defaultMaxCommand  = 16 << 20
	defaultMaxValue    = 1 << 20
	defaultPersistent  = 1_000_000
	defaultMaxAnswers  = 64 << 20
	commandsAtOnce     = 16 // Config.MaxCommand of all commands that are being read
)

// Config configures a server.
type Config struct {
	// Topics has the topic of keys, by prefix of the key: the longest one counts. Default: all keys
	// are of the topic "expired". Keys without a topic are refused. At most MaxTopicPrefixes.
	Topics map[string]string
	// Callers are those that have tokens; the password of a client is its token. Default: no
	// passwords, every client may use every verb.
	Callers *edge.Callers
	// Waits bounds the commands that wait at the same moment, together with what waits at other
	// doors. Past it a command that finds nothing is refused. Default: a count of its own, with the
	// usual bounds.
	Waits *edge.Waits
	// MaxConnections bounds the connections, 1 to MostConnections. Default 10,000.
	MaxConnections int
	// MaxConnectionsPerAddress bounds the connections of one address, or of one /64 of IPv6.
	// Further ones are closed at once. The loopback address has no bound. Default: half of
	// MaxConnections.
	MaxConnectionsPerAddress int
	// MaxCommand bounds a command, in bytes, 64 KiB to 1 GiB. All commands that are being read at
	// the same moment may have 16 times as many bytes together, those of one token half of that.
	// Clients that have not said who they are have as many bytes as one command besides, together.
	// Default 16 MiB.
	MaxCommand int
	// MaxValue bounds a value, in bytes, 1 to MostMaxValue. The bound that the scheduler has for
	// payloads holds as well. Default 1 MiB.
	MaxValue int
	// MaxAnswers bounds the bytes of answers of all connections that their clients have not read
	// yet. One token may have half of it. Past it, commands that tell what is stored are refused.
	// Default 64 MiB.
	MaxAnswers int64
	// Answers is the budget of MaxAnswers, where other doors take from the same. Default: one of
	// its own, of MaxAnswers bytes.
	Answers *edge.Budget
	// MaxPersistent bounds the keys without a TTL at each node, 1 to MostPersistent: further ones
	// are refused. Default 1,000,000.
	MaxPersistent int
	// PastExpires has a key expire, with its event, that EXPIREAT or its kin give a time in the
	// past. Otherwise it is deleted, as in Redis.
	PastExpires bool
	// Notify are the classes of events that subscribers get, as notify-keyspace-events has them.
	// CONFIG SET changes them on this node until it ends. Default "Ex": expired events.
	Notify *string
	// Flush lets FLUSHDB and FLUSHALL delete all keys. Default: they are refused.
	Flush bool
	// Version of the program, for INFO and HELLO. Default "dev".
	Version string
	// Log receives messages for the operator. Default slog.Default().
	Log *slog.Logger
}

// Validate returns everything that is wrong with a configuration.
func (c *Config) Validate() error {
	var all *multierror.Error
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			all = multierror.Append(all, fmt.Errorf(format, args...))
		}
	}
	bad(len(c.Topics) <= MaxTopicPrefixes, "resp_topics must have at most %d prefixes", MaxTopicPrefixes)
	for prefix, topic := range c.Topics {
		bad(task.ValidName(topic), "resp_topics[%.100q]: %s", prefix, task.NameProblem)
	}
	bad(c.MaxConnections >= 0 && c.MaxConnections <= MostConnections, "resp_max_connections must be from 1 to %d", MostConnections)
	bad(c.MaxConnectionsPerAddress >= 0, "max_connections_per_address must not be negative")
	bad(c.MaxCommand == 0 || c.MaxCommand >= LeastMaxCommand && c.MaxCommand <= MostMaxCommand,
		"resp_max_command must be from %d to %d", LeastMaxCommand, MostMaxCommand)
	bad(c.MaxValue >= 0 && c.MaxValue <= MostMaxValue, "resp_max_value must be from 1 to %d", MostMaxValue)
	bad(c.MaxAnswers >= 0, "max_answers must not be negative")
	bad(c.MaxPersistent >= 0 && c.MaxPersistent <= MostPersistent, "resp_max_persistent must be from 1 to %d", MostPersistent)
	return all.ErrorOrNil()
}

// A prefix is an entry of Config.Topics.
type prefix struct{ text, topic string }

// budgets are bytes that all connections have together.
type budgets struct {
	reading *edge.Budget // of large commands that are being read
	unread  *edge.Budget // of answers that are made, and that clients have not read
	kept    *edge.Budget // of commands that MULTI has queued, and of keys that are watched
	pushed  atomic.Int64 // of messages that subscribers have not read
}

// Server serves the connections of Redis clients. It is safe for concurrent use.
type Server struct {
	cfg      Config
	log      *slog.Logger
	prefixes []prefix            // the longest first
	hasKeys  map[string]struct{} // the topics of keys
	started  time.Time

	scheduler atomic.Pointer[tasks.Scheduler] // nil before Attach
	budgets
	door       *edge.Door
	lastID     atomic.Int64 // of a connection
	turns      *turns
	scripts    *script.Cache
	payer      payer
	persistent persistent
	counts     counts
	tallies    map[string]*tally // by verb; it does not change
	streams    streams
	hub        *hub
	peers      *peers
	due        chan struct{} // 1: what is wished for has changed

	mu     sync.Mutex      // is held while work begins, and while it is decided that none does
	work   sync.WaitGroup  // beside that of connections
	ending context.Context // done once Close is called
	end    context.CancelFunc
}

// New makes a server. It refuses all commands but those about the connection until Attach. Error:
// that of Config.Validate.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.MaxConnections = cmp.Or(cfg.MaxConnections, defaultConnections)
	cfg.MaxCommand = cmp.Or(cfg.MaxCommand, defaultMaxCommand)
	cfg.MaxValue = cmp.Or(cfg.MaxValue, defaultMaxValue)
	cfg.MaxAnswers = cmp.Or(cfg.MaxAnswers, defaultMaxAnswers)
	cfg.MaxPersistent = cmp.Or(cfg.MaxPersistent, defaultPersistent)
	cfg.Version = cmp.Or(cfg.Version, "dev")
	cfg.Waits = cmp.Or(cfg.Waits, edge.NewWaits(0, 0))
	if cfg.Answers == nil {
		cfg.Answers = edge.NewBudget(cfg.MaxAnswers)
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if len(cfg.Topics) == 0 {
		cfg.Topics = map[string]string{"": "expired"}
	}
	s := &Server{cfg: cfg, tallies: newTallies(), log: cfg.Log, started: time.Now(), turns: newTurns(), scripts: script.NewCache(), hasKeys: make(map[string]struct{})}
	for text, topic := range cfg.Topics {
		s.prefixes = append(s.prefixes, prefix{text, topic})
		s.hasKeys[topic] = struct{}{}
	}
	slices.SortFunc(s.prefixes, func(a, b prefix) int {
		return cmp.Or(cmp.Compare(len(b.text), len(a.text)), strings.Compare(a.text, b.text))
	})
	flags := toKeyevent | classExpired
	if cfg.Notify != nil {
		flags, _ = parseClasses(*cfg.Notify)
	}
	s.hub, s.peers, s.due = newHub(flags), newPeers(), make(chan struct{}, 1)
	s.hub.changed = func() { poke(s.peers.changed) }
	s.reading, s.unread, s.kept = edge.NewBudget(int64(cfg.MaxCommand)*commandsAtOnce), cfg.Answers, edge.NewBudget(mostKeptInAll)
	s.ending, s.end = context.WithCancel(context.Background())
	s.door = edge.NewDoor(
		edge.ConnectionLimits{
			Most: cfg.MaxConnections, PerAddress: cfg.MaxConnectionsPerAddress, KeepIdle: true,
			Log: cfg.Log, Full: s.turnAway, Closed: &s.counts.closed,
		},
		func(nc net.Conn) edge.Guest {
			s.counts.accepted.Add(1)
			return s.newConn(nc)
		},
	)
	return s, nil
}

// Attach gives the server its scheduler, once, right after it was opened. Topics of Config.Topics
// that were never set are delivered by Keyevent from now on. All nodes that share a ledger must
// have the same Config.Topics. Error: that of Admin.OnMessage.
func (s *Server) Attach(scheduler *tasks.Scheduler) error {
	admin := scheduler.Admin()
	if err := s.talk(admin); err != nil {
		return err
	}
	s.scheduler.Store(scheduler)
	unset := new(sync.Map) // names of topics
	for _, name := range s.topicNames() {
		unset.Store(name, true)
	}
	s.background(func() { s.setTopics(admin, unset) })
	s.background(func() { s.followDue(admin, unset) })
	return nil
}

// topicOf returns the topic of a key. It reports false if no prefix matches.
func (s *Server) topicOf(key []byte) (string, bool) {
	for _, p := range s.prefixes {
		if len(key) >= len(p.text) && string(key[:len(p.text)]) == p.text {
			return p.topic, true
		}
	}
	return "", false
}

// Serve accepts connections until Close is called, and then returns nil. It may be called for
// several listeners. At Config.MaxConnections it goes by the rules of edge.Connections: a
// connection is unfinished until its client has sent a command, and where there are tokens until it
// has said who it is. All others keep their places.
func (s *Server) Serve(l net.Listener) error { return s.door.Serve(l) }

// Accepting returns nil as long as connections are accepted. Errors: net.ErrClosed once Close was
// called or a listener has ended, or why the last connection could not be accepted.
func (s *Server) Accepting() error { return s.door.Accepting() }

// turnAway tells a client that there are too many.
func (s *Server) turnAway(nc net.Conn) {
	s.counts.refused.Add(1)
	// With TLS, the write would wait for the client.
	if _, secret := nc.(*tls.Conn); !secret {
		_ = nc.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = nc.Write([]byte("-" + errMaxClients + "\r\n"))
	}
}

// Close ends the server: no new connections, commands in progress have until ctx ends, and then all
// connections are closed. Error: that of ctx if connections had to be cut off in a command.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.end()
	s.mu.Unlock()
	err := s.door.Close(ctx)
	s.work.Wait()
	s.tellUnpublished()
	return err
}
