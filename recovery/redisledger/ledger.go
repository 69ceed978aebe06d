package redisledger

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-multierror"
	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/bulk"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/bus"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/identity"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/ids"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/member"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/mend"
)

// Defaults of Options.
const (
	DefaultPrefix        = "lapse:"
	DefaultShards        = 16
	DefaultFailoverAfter = 10 * time.Second
	DefaultWaitTimeout   = 500 * time.Millisecond
)

// Options of a ledger. URL and Node must be set.
type Options struct {
	// URL says where Redis is, see ParseURL.
	URL string
	// Node is the name under which the tasks are kept, usually the server's address. Two
	// running processes never share one.
	Node string
	// Prefix begins every key; DefaultPrefix unless set.
	Prefix string
	// Shards is over how many shards new tasks are spread, 1 to 1024;
	// DefaultShards unless set. It may change at a restart. On Redis Cluster,
	// count 100,000 tasks a shard.
	Shards int
	// FailoverAfter is for how long a process must have sent no heartbeat before another one
	// adopts its shards; DefaultFailoverAfter unless set. All nodes of one Redis should agree
	// on it: of two values, the longer one counts.
	FailoverAfter time.Duration
	// Version is that of the program, and Address is where it serves HTTP; other nodes
	// show them. Each may be empty.
	Version, Address string
	// Format is that of the newest records that this process reads and writes. It never adopts
	// shards of a node with a newer one.
	Format int
	// ForceEviction accepts a Redis that may evict tasks.
	ForceEviction bool
	// WaitReplicas is how many replicas must have a batch before it counts as written:
	// those that have it keep it when their master dies. While fewer have it, batches
	// are not answered. 0 waits for none.
	WaitReplicas int
	// WaitTimeout is for how long Redis waits for them each time, up to 900 ms;
	// DefaultWaitTimeout unless set.
	WaitTimeout time.Duration
	// Wait lets Adopt wait, until its context ends, for a Redis that cannot be reached, instead
	// of returning the error. Adopt calls Wait with each error. Nil means that Adopt does not
	// wait.
	Wait func(why error)
	// TLS is used instead of what the URL says about it; nil means the URL's.
	TLS *tls.Config
	// Log gets outages and lost writes. Nil means slog.Default().
	Log *slog.Logger

	process      *identity.Process                    // for tests; nil means this one
	fateOf       func(identity.Process) identity.Fate // for tests; nil means what /proc tells
	shardedSince string                               // for tests; "" means bus.ShardedSince
	keptChanges  int                                  // for tests; 0 means keptChanges
}

// withDefaults fills in defaults, validates, and reports all faults at once.
func (o Options) withDefaults() (Options, conn.Address, error) {
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if o.Shards == 0 {
		o.Shards = DefaultShards
	}
	if o.FailoverAfter == 0 {
		o.FailoverAfter = DefaultFailoverAfter
	}
	if o.WaitTimeout == 0 {
		o.WaitTimeout = DefaultWaitTimeout
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.keptChanges == 0 {
		o.keptChanges = keptChanges
	}
	if o.shardedSince == "" {
		o.shardedSince = bus.ShardedSince
	}
	if o.process == nil {
		p := identity.Self()
		o.process = &p
	}
	if o.fateOf == nil {
		o.fateOf = o.process.FateOf
	}
	var faults *multierror.Error
	a, err := conn.ParseURL(o.URL)
	faults = multierror.Append(faults, err, layout.ValidNode(o.Node), layout.ValidPrefix(o.Prefix))
	if o.Shards < 1 || o.Shards > member.MaxShards {
		faults = multierror.Append(faults, fmt.Errorf("the number of shards must be from 1 to %d", member.MaxShards))
	}
	if o.FailoverAfter < member.BeatsPerFailover*time.Millisecond {
		faults = multierror.Append(faults, fmt.Errorf("the time after which others may adopt must be at least %v", member.BeatsPerFailover*time.Millisecond))
	}
	if o.WaitReplicas < 0 || o.WaitReplicas > conn.MaxReplicas {
		faults = multierror.Append(faults, fmt.Errorf("the number of replicas to wait for must be from 1 to %d, or none", conn.MaxReplicas))
	}
	if o.WaitTimeout < time.Millisecond || o.WaitTimeout > conn.MaxWaitTimeout {
		faults = multierror.Append(faults, fmt.Errorf("the time to wait for replicas must be from 1ms to %v", conn.MaxWaitTimeout))
	}
	return o, a, faults.ErrorOrNil()
}

// Validate reports all that is wrong with the options, without using them.
func (o Options) Validate() error {
	_, _, err := o.withDefaults()
	return err
}

// A Ledger is a node's ledger in Redis. It implements recovery.Ledger, Settings,
// Finder, Conditioner, Reporter, Fleet, Bus and Archive.
type Ledger struct {
	opts   Options
	keys   layout.Keys
	log    *slog.Logger
	client *conn.Client
	bulk   *bulk.Reader
	waits  *recovery.WaitList // what readiness shows
	mender mend.Mender
	health health

	member    *member.Member
	directory *ids.Directory
	bus       *bus.Bus

	life    context.Context // ends when Close begins
	die     context.CancelCauseFunc
	loops   sync.WaitGroup // goroutines that Adopt has started
	users   sync.WaitGroup // calls under way
	closing sync.Once
	err     error // of Close

	adopting   sync.Mutex // held by Adopt; guards registered
	registered bool       // the node's name was ours

	mu    sync.Mutex // guards state
	state state
}

// The interfaces that several nodes need. A ledger that lacks one of their methods would be taken
// for that of a single node.
var (
	_ recovery.Fleet     = (*Ledger)(nil)
	_ recovery.Directory = (*Ledger)(nil)
	_ recovery.Bus       = (*Ledger)(nil)
)

// A state is a step in a ledger's life.
type state uint8

const (
	opened state = iota
	adopted
	closed
)

// Open makes a ledger. It does not connect: Adopt does. The error lists all that is wrong with
// the options.
func Open(opts Options) (*Ledger, error) {
	opts, a, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	writers := max(opts.Shards, DefaultShards)
	client, err := conn.Connect(a, opts.TLS, writers+8, conn.IOTimeout)
	if err != nil {
		return nil, err
	}
	life, die := context.WithCancelCause(context.Background())
	l := &Ledger{
		opts:   opts,
		keys:   layout.Keys{Prefix: opts.Prefix, DB: a.DB},
		log:    opts.Log.With("node", opts.Node),
		client: client,
		waits:  new(recovery.WaitList),
		life:   life,
		die:    die,
	}
	l.bulk, err = bulk.New(a, opts.TLS, bulk.Config{Life: life, Users: &l.users, Waits: l.waits, Log: l.log})
	if err != nil {
		die(err)
		return nil, errors.Join(err, client.Close())
	}
	self := layout.Holder{Node: opts.Node, Incarnation: layout.NewIncarnation()}
	l.mender = mend.Mender{Client: client, Keys: l.keys, Waits: l.waits, Log: l.log}
	replication := &conn.Replication{Client: client, Want: opts.WaitReplicas, Timeout: opts.WaitTimeout}
	l.member = member.New(member.Config{
		Replication: replication, Writing: make(chan struct{}, writers), Full: l.health.noteFull,
		Client: client, Keys: l.keys, Self: self, Life: life, Log: l.log, Waits: l.waits, Mender: &l.mender,
		Shards: opts.Shards, FailoverAfter: opts.FailoverAfter, Format: opts.Format, Version: opts.Version, Address: opts.Address,
		Process: *opts.process, FateOf: opts.fateOf, Measure: l.measure, Note: l.health.note,
		IsNew: func(history string) bool { return l.directory.IsNew(history) },
	})
	l.directory = ids.New(ids.Config{
		Client: client, Keys: l.keys, Log: l.log, FailoverAfter: opts.FailoverAfter,
		Full: l.health.noteFull,
		Doubted: func() {
			l.member.Notices.Doubted()
			l.member.BeatSoon() // it finds what else is lost
		},
	})
	l.bus = bus.New(bus.Config{
		Client: client, Keys: l.keys, Self: self, Life: life, Log: l.log, ShardedSince: opts.shardedSince,
	})
	l.health.client, l.health.replication, l.health.directory = client, replication, l.directory
	l.health.log, l.health.forceEviction = l.log, opts.ForceEviction
	return l, nil
}

// Adopt implements recovery.Ledger. It may be called again after an error.
func (l *Ledger) Adopt(ctx context.Context) (recovery.Terms, error) {
	l.adopting.Lock()
	defer l.adopting.Unlock()
	l.mu.Lock()
	before := l.state
	l.mu.Unlock()
	switch before {
	case closed:
		return recovery.Terms{}, l.closed()
	case adopted:
		return recovery.Terms{}, fmt.Errorf("%w: this process has adopted node %s already", recovery.ErrHeld, l.opts.Node)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.life, func() { cancel(l.closed()) })()
	away, err := l.adoptOrWait(ctx)
	if err != nil {
		return recovery.Terms{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == closed {
		return recovery.Terms{}, l.closed()
	}
	l.state = adopted
	l.member.Run(&l.loops)
	return recovery.Terms{
		Shards:      l.member.Terms(),
		ShardOf:     l.member.ShardFor,
		ShardsOf:    l.member.NumbersOf,
		OwnShardFor: l.member.OwnShardFor,
		Away:        away,
		AtOnce:      l.atOnce(),
		Prompt:      true,
		Server:      l.serverName,
		MaxChanges:  member.MaxChanges,
		MaxBytes:    member.MaxBytes,
	}, nil
}

// serverName names the server that keeps a shard, as far as is known: a cluster has several.
func (l *Ledger) serverName(n int) string {
	s := l.member.Term(n)
	if s == nil || !l.client.IsCluster() {
		return ""
	}
	master, err := l.client.ServerOf(l.life, s.Keys.Tasks())
	if err != nil {
		return ""
	}
	return master.Options().Addr
}

// atOnce is how many batches are worth sending at the same time. One Redis runs one script after
// another: while it runs one, a second one waits in its buffer, and two are in flight. With one
// batch of each of 16 shards under way instead, 64 single callers had a third as many tasks in a
// batch, and half the throughput.
func (l *Ledger) atOnce() int {
	if l.client.IsCluster() {
		return 0 // the shards are spread over its masters
	}
	return 4
}

// waiting spaces the attempts to reach Redis.
var waiting = recovery.Backoff{Min: 50 * time.Millisecond, Max: time.Second}

// logEvery is the time between two log lines while Adopt waits.
const logEvery = 10 * time.Second

func (l *Ledger) adoptOrWait(ctx context.Context) (away []recovery.ShardID, err error) {
	var logged time.Time
	var hangUps hangUps
	for attempt := 0; ; attempt++ {
		away, err = l.adopt(ctx)
		hangUps.note(ctx, l, err)
		l.health.failed(err)
		switch {
		case errors.Is(err, ErrCommands):
			return nil, err
		case err != nil && conn.Refused(err):
			return nil, fmt.Errorf("%s refuses: %w", l.client, err)
		case err == nil:
			return away, nil
		case ctx.Err() != nil: // a dial that was refused meanwhile does not mention the context
			return nil, waitEnded(ctx, err)
		case l.opts.Wait == nil || !passing(err):
			return nil, err
		}
		l.opts.Wait(err)
		if time.Since(logged) > logEvery {
			logged = time.Now()
			l.log.Warn("waiting for Redis", "redis", l.client.String(), "error", err)
		}
		if waiting.Wait(ctx, attempt) != nil {
			return nil, waitEnded(ctx, err)
		}
	}
}

// waitEnded returns why Adopt waits no longer for Redis: its context or Close.
func waitEnded(ctx context.Context, last error) error {
	return fmt.Errorf("waiting for Redis: %w (last: %w)", context.Cause(ctx), last)
}

// passing reports whether an error of adopt may go away by itself.
func passing(err error) bool {
	for _, lasting := range []error{recovery.ErrHeld, recovery.ErrLayout, recovery.ErrClosed, ErrUnfit, ErrCommands, redis.ErrClosed} {
		if errors.Is(err, lasting) {
			return false
		}
	}
	return !conn.Refused(err)
}

// adopt returns which of the node's own shards other nodes hold.
func (l *Ledger) adopt(ctx context.Context) (away []recovery.ShardID, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := l.checkCommands(ctx); err != nil {
		return nil, err
	}
	if err := l.health.checkServers(ctx); err != nil {
		return nil, err
	}
	if err := l.mender.Mend(ctx, mend.SharedKeys(l.keys, l.opts.Node)); err != nil {
		return nil, err
	}
	if err := l.directory.Begin(ctx); err != nil {
		return nil, err
	}
	if err := l.noteDataset(ctx); err != nil {
		return nil, err
	}
	if err := l.member.Register(ctx); err != nil {
		return nil, err
	}
	l.registered = true
	return l.member.Adopt(ctx)
}

// measure looks at the servers, and whether they still have the data set.
func (l *Ledger) measure(ctx context.Context) error {
	if err := l.health.measure(ctx); err != nil {
		return err
	}
	return l.noteDataset(ctx)
}

func (l *Ledger) noteDataset(ctx context.Context) error {
	return l.directory.NoteDataset(ctx, l.mender.Dataset)
}

// Close implements recovery.Ledger. It waits for the calls under way.
func (l *Ledger) Close() error {
	l.closing.Do(func() { l.err = l.end(true) })
	return l.err
}

// end closes the ledger, and with release releases the node's name.
func (l *Ledger) end(release bool) error {
	l.mu.Lock()
	l.state = closed
	l.mu.Unlock()
	l.die(l.closed())
	err := l.bulk.Close() // breaks off reads
	l.adopting.Lock()
	defer l.adopting.Unlock()
	l.users.Wait()
	l.loops.Wait()
	l.bus.Wait()
	if release && l.registered { // also if Adopt failed after that
		ctx, cancel := context.WithTimeout(context.Background(), 2*conn.IOTimeout)
		defer cancel()
		if fault := l.member.Release(ctx); fault != nil {
			err = errors.Join(err, fmt.Errorf("releasing the node's name: %w", fault))
		}
	}
	return errors.Join(err, l.client.Close())
}

func (l *Ledger) closed() error {
	return fmt.Errorf("ledger of node %s: %w", l.opts.Node, recovery.ErrClosed)
}

// closedError is why a long call must end, or nil.
func (l *Ledger) closedError(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return context.Cause(l.life)
}

// use begins one call, which ends with done.
func (l *Ledger) use(ctx context.Context) (done func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != adopted {
		return nil, l.closed()
	}
	l.users.Add(1)
	return l.users.Done, nil
}
