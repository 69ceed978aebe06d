package member

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/identity"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/mend"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/notice"
)

// A Member is this process among the nodes: its name in the registry, its heartbeats, what it
// sees of the others, and the shards that it holds.
type Member struct {
	Config
	Notices *notice.Queue

	// Turns, which are held across round trips and guard no field that others read.
	keeping sync.Mutex // to send a heartbeat and to look at the shards after it
	naming  sync.Mutex // to write this process's entry in the registry
	taking  sync.Mutex // to acquire a shard

	beatSoon chan struct{} // wakes keep; holds one request

	table atomic.Pointer[table]
	peers watch

	checked   int64                     // the last streak in which all shards were seen held
	rest      rest                      // of the shards that may be others', guarded by keeping
	resting   atomic.Bool               // whether there are some
	kept      atomic.Pointer[time.Time] // when the last heartbeat was sent after which that was so
	alone     atomic.Bool               // no other node was registered at the last heartbeat
	ended     atomic.Bool               // the node's name belongs to another process by now
	buried    atomic.Bool               // there may be dead records
	acquiring atomic.Int32              // shards that memory was not notified of yet
	losing    atomic.Int32              // lost shards of whose loss it was not

	mu           sync.Mutex // guards everything below
	entry        Entry      // of this process in the registry
	counts       []int      // numbers of shards ever used, as of Adopt
	numbers      []uint16   // of this node: the current one, and before it former ones
	origins      map[string]origin
	lastAnswer   time.Time // when the last answered heartbeat was sent
	unbroken     int64     // counts streaks of heartbeats without a gap of FailoverAfter
	recounted    time.Time // when Redis last lost this node's entry
	warnings     []string  // what an operator should know of the other nodes
	unregistered unregistered
	transferred  map[shardName]layout.Token        // of shards transferred and not held since
	ahead        map[recovery.ShardID]layout.Token // of shards as they were read ahead
}

// A Config has what a Member needs. All fields but Version, Address and Format must be set.
type Config struct {
	Client *conn.Client
	Keys   layout.Keys
	Self   layout.Holder   // this process, as tokens name it
	Life   context.Context // ends when Close begins
	Log    *slog.Logger
	Waits  *recovery.WaitList
	Mender *mend.Mender

	Replication *conn.Replication // confirms batches
	Writing     chan struct{}     // a token for each batch under way: some connections stay free

	Shards           int // of this node's own
	FailoverAfter    time.Duration
	Format           int
	Version, Address string
	Process          identity.Process
	FateOf           func(identity.Process) identity.Fate

	Measure func(ctx context.Context) error // looks at the servers, with every heartbeat
	Note    func(err error)                 // gets the outcome of every heartbeat
	// IsNew reports whether a server, told by its replication id, has been known for less than
	// FailoverAfter.
	IsNew func(history string) bool
	Full  func(err error) // called when Redis has refused new tasks
}

// New makes a member, which sends nothing yet.
func New(c Config) *Member {
	m := &Member{Config: c, Notices: notice.New(), beatSoon: make(chan struct{}, 1), origins: map[string]origin{}, transferred: map[shardName]layout.Token{}, ahead: map[recovery.ShardID]layout.Token{}}
	m.table.Store(new(table))
	m.kept.Store(new(time.Time))
	m.peers.tokens, m.peers.vanished = map[recovery.ShardID]seenToken{}, map[string]vanishedPeer{}
	m.peers.tokenless = map[recovery.ShardID]time.Time{}
	return m
}

// Adopt makes this process the owner of its node's shards, once the name is registered for it. It
// returns which of them other nodes hold.
func (m *Member) Adopt(ctx context.Context) (away []recovery.ShardID, err error) {
	// The first heartbeat, which also tells whether other nodes are registered: without it, a
	// node that is alone would have to count what Redis loses as adopted.
	began := time.Now()
	if err := m.Beat(ctx); err != nil {
		return nil, err
	}
	m.Answered(began)
	m.mu.Lock()
	m.counts = m.entry.Counts
	m.mu.Unlock()
	away, err = m.claimAll(ctx)
	if err == nil {
		m.kept.Store(&began)
	}
	return away, err
}

// Run starts the loops of an adopted node. They end with its life.
func (m *Member) Run(loops *sync.WaitGroup) {
	loops.Go(m.keep)
	loops.Go(m.watch)
	loops.Go(func() { m.Notices.Run(m.Life) })
}

// Report returns when the last answered heartbeat was sent, and what an operator should know of
// the other nodes.
func (m *Member) Report() (lastAnswer time.Time, warnings []string) {
	missing := m.spoolWarnings()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lastAnswer, slices.Concat(m.warnings, missing)
}
