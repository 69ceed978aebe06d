package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/internal/latency"
	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine/deadindex"
	"github.com/lapsehq/lapse/tasks/internal/engine/deadline"
	"github.com/lapsehq/lapse/tasks/internal/engine/dispatch"
	"github.com/lapsehq/lapse/tasks/internal/engine/events"
	"github.com/lapsehq/lapse/tasks/internal/engine/failures"
	"github.com/lapsehq/lapse/tasks/internal/engine/lifetime"
	"github.com/lapsehq/lapse/tasks/internal/engine/minutes"
	"github.com/lapsehq/lapse/tasks/internal/pulse"
	"github.com/lapsehq/lapse/tasks/internal/receipt"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
	"github.com/lapsehq/lapse/wheel"
)

// An Engine is one node: its tasks in memory, its deliveries and its writes. It knows nothing of
// other nodes; it reports to its Cluster what they must learn.
type Engine struct {
	Config     task.Checked
	Ledger     recovery.Ledger
	Fleet      recovery.Fleet // the ledger, if it is one; else nil
	Terms      recovery.Terms
	NodeNumber uint16 // of this node in the IDs of its own shards
	Committer  *recovery.Committer[Write]
	Spool      *spool // nil without Config.Spool
	Runner     *wheel.Runner
	Signer     *receipt.Signer
	Cluster    Cluster   // receives what other nodes must learn
	Started    time.Time // zero of the monotonic clock that leases run on

	Life       living
	Waits      recovery.WaitList // what is stuck or not served yet, for Readiness
	failures   failures.Log
	calls      deadline.Kind // contexts of calls, see Within
	leases     deadline.Kind // contexts of attempts
	Feed       *events.Feed  // of what happens to tasks
	stored     storedSettings
	sweepNow   chan struct{}  // asks for a sweep at once; holds one request
	everything chan fullSweep // asks for the rest of a full sweep, the audit; holds one request

	Reading reading // partly guarded by mu
	Writes  writes  // partly guarded by mu

	mu         sync.Mutex // guards everything below
	Store      *store.Store
	TopicTable topicTable
	Dispatch   deliveries
	Shards     ownership
	Detached   detached
	Dead       deadindex.Index
	Outcomes   *store.Outcomes
	keptTold   seldom       // of finished tasks that are not kept
	followTold seldom       // of follow-ups that were not made
	observed   []task.Event // for the observer, told at Unlock
	Sweep      sweepState
	Misfires   misfires
	// Figures has those that are counted when something happens; Stats fills in the others.
	Figures  task.Figures
	Draining bool
	Ended    bool  // Close has begun, or the ledger was lost
	Fault    error // why the ledger was lost
}

// A living is what runs in an engine, and how it moves.
type living struct {
	lifetime.Lifetime
	pulse   pulse.Pulse  // whether it moves
	pieces  pieces       // of what it has taken in and given up in bulk
	waiting atomic.Int32 // for mu: the wheel, and one worker of each topic that has some; see gate
}

// A reading is how far the ledger has been read into memory.
type reading struct {
	Replayed     chan struct{} // closed when memory knows all that this process held at first
	settingsRead chan struct{} // closed when the settings of all topics are known
	deadRead     chan struct{} // closed when memory knows which tasks were dead at first
	Spool        atomic.Bool   // memory has what is in the spool, and other nodes know its name
	replays      chan struct{} // holds a token for each acquired shard that is being read

	// Guarded by Engine.mu:
	caughtUp  chan struct{} // closed when no acquired shard is being read any more
	Progress  recovery.Progress
	Illegible map[uint64]uint16 // hashes of their ids, which no caller may take, and their terms
}

// writes are the changes of tasks that are under way.
type writes struct {
	condition condition     // of the ledger
	lastStamp atomic.Uint64 // that NewStamp has returned
	lastMade  atomic.Int64  // that newCreated has returned

	// Guarded by Engine.mu:
	Arriving int                      // creations and moves that wait for the ledger
	Deferred map[uint32]Write         // next writes of tasks that have one under way
	HeldBack map[uint32]Write         // writes that wait for room in the ledger, by slot
	Waiting  map[uint32]chan struct{} // closed when a task is no longer busy
	scratch  []byte                   // for records on their way into the arena
}

// storedSettings are the settings of topics in the ledger, as far as they are known.
type storedSettings struct {
	unstored  atomic.Int64 // the last revision of settings that the ledger does not keep
	restoring sync.Mutex   // held while settings that the ledger has lost are written again

	refreshing chan struct{}             // the turn to refresh settings; guards version
	version    *recovery.SettingsVersion // up to which changes by other nodes were taken over
}

// A topicTable has the topics that this node has met. Guarded by Engine.mu.
type topicTable struct {
	ByName        map[string]*Topic
	ByNumber      []*Topic
	vacantNumbers []uint32 // positions in ByNumber of topics that were forgotten
	Quotas        quotas
	History       minutes.History // of all topics together
}

// deliveries are those under way, and the state by which dispatch decides on new ones. Guarded by
// Engine.mu.
type deliveries struct {
	dispatch.Board
	Leases  map[uint32]Lease // deliveries that are not settled, by slot
	Backlog int              // ready tasks of the topics that are pushed
	// Took is how long attempts took that this process made, by the kind of their topic. It has a
	// histogram for each kind that this process can deliver.
	Took map[task.Kind]*latency.Histogram
}

// An ownership is the terms of shards of this node. Guarded by Engine.mu.
type ownership struct {
	List    []*OwnedShard        // by number of the term; nil where there is none
	view    atomic.Pointer[view] // of List; it may be read without the mutex
	granted bool                 // List has the terms of Open: others were forgotten
	past    uint64               // how many outcomes are older than the last term that has begun
	// forgotten is how many terms are over: their numbers may stand for others since.
	forgotten int
	// restoring is how many losses of shards are being made good, from the notice of the ledger on.
	restoring int
	moved     map[string]movedShards // by node; "": lost. The log does not tell of them yet
	// ahead are shards of other nodes that are about to be this node's.
	ahead map[recovery.ShardID]*readAhead
}

// The detached are deliveries that handlers are making, and whose shards are leaving or have
// left. Guarded by Engine.mu.
type detached struct {
	Shards   map[uint64]recovery.ShardID // by nonce: of those whose shards have left
	Verdicts map[uint64]pendingVerdict   // by nonce: on deliveries that are being handed over
}

// New returns an engine that has nothing yet and does nothing.
func New(ctx context.Context, ledger recovery.Ledger, cfg task.Checked) *Engine {
	s := &Engine{
		Config: cfg, Ledger: ledger, Started: time.Now(),
		sweepNow:   make(chan struct{}, 1),
		everything: make(chan fullSweep, 1),
		calls:      deadline.Kind{Cause: ErrLate},
		Store:      store.New(),
		Outcomes:   store.NewOutcomes(),
		Detached:   detached{make(map[uint64]recovery.ShardID), make(map[uint64]pendingVerdict)},
		TopicTable: topicTable{
			ByName:   make(map[string]*Topic),
			ByNumber: []*Topic{{}}, // number 0: of slots that have none, or none yet
		},
	}
	s.Shards.view.Store(&view{})
	s.Shards.moved = make(map[string]movedShards)
	s.Shards.ahead = make(map[recovery.ShardID]*readAhead)
	s.Misfires.Held = make(chan struct{}, 1)
	s.TopicTable.History.Turn(cfg.Clock(), 0)
	s.Life.Begin(ctx)
	s.Feed = events.NewFeed(cfg.Clock, s.Life.Closing, s.Life.Done)
	s.Reading.Replayed = make(chan struct{})
	s.Reading.settingsRead, s.Reading.deadRead = make(chan struct{}), make(chan struct{})
	s.stored.refreshing = make(chan struct{}, 1)
	s.Reading.replays = make(chan struct{}, shardsAtOnce)
	s.Reading.Illegible = make(map[uint64]uint16)
	s.Writes.Deferred, s.Writes.Waiting = make(map[uint32]Write), make(map[uint32]chan struct{})
	s.Writes.HeldBack = make(map[uint32]Write)
	s.Dispatch.Leases = make(map[uint32]Lease)
	s.Dispatch.Board = dispatch.Board{
		MaxDeliveries: cfg.MaxDeliveries, MaxInFlight: cfg.MaxInFlight, MaxConcurrency: cfg.SweepMaxConcurrency,
	}
	s.Dispatch.Took = map[task.Kind]*latency.Histogram{task.Handler: {}}
	for _, k := range cfg.ByKind.Kinds() {
		s.Dispatch.Took[k] = &latency.Histogram{}
	}
	s.Fleet, _ = ledger.(recovery.Fleet)
	_, loses := ledger.(recovery.DeadChecker)
	s.Dead = deadindex.New(loses, cfg.MaxBytes)
	return s
}

// Adopt makes the ledger this process's, and reads what must be known before anything begins. If
// it fails, the engine has ended.
func (s *Engine) Adopt(ctx context.Context) (err error) {
	s.watch()
	terms, err := s.Ledger.Adopt(ctx)
	if err != nil {
		s.Life.Cancel()
		return err
	}
	s.ownAdopted(terms)
	if err := s.prepare(ctx); err != nil {
		s.Life.Cancel()
		return errors.Join(err, s.Ledger.Close())
	}
	return nil
}

// watch subscribes to changes of shards that this process does not make itself: the ledger's
// storage has lost confirmed writes (a failover to a replica that was behind, an older file, an
// empty disk), other nodes have taken shards, or have left them to this one.
func (s *Engine) watch() {
	r, ok := s.Ledger.(recovery.Rewinder)
	if !ok {
		return
	}
	w := recovery.Watcher{
		Rewound: func(shard int) { s.Rewound(r, shard) },
		Lost:    func(_ int, err error) { s.Revoke(err) },
		Ended:   s.Revoke,
	}
	if s.Fleet != nil {
		w.Lost, w.Acquired = s.RevokeShard, s.AcquireShard
		w.Room, w.Status, w.Doubted = s.room, s.Cluster.Status, s.Cluster.Doubted
	}
	r.Watch(w)
}

// Start begins to write, to deliver and to sweep. The wheel calls fire with tasks whose time has
// come. If Start fails, the engine has ended.
func (s *Engine) Start(ctx context.Context, fire func(values []uint64)) (err error) {
	s.Committer = recovery.NewCommitter(recovery.CommitterConfig[Write]{
		Ledger: s.Ledger, Terms: s.Terms, Keep: admit, Done: s.committed, Log: s.Config.Log,
		Patience: s.Config.AnswerWithin / PatienceShare,
	})
	s.Runner, err = wheel.NewRunner(wheel.Config{Clock: s.Config.Clock, Fire: fire})
	if err != nil {
		s.Life.Cancel()
		s.Cluster.Leave()
		return errors.Join(err, s.Committer.Close(ctx), s.Ledger.Close())
	}
	if err := s.openSpool(ctx); err != nil {
		s.Life.Cancel()
		s.Cluster.Leave()
		s.Runner.Close()
		return errors.Join(fmt.Errorf("spool: %w", err), s.Committer.Close(ctx), s.Ledger.Close())
	}
	s.Reading.Spool.Store(true)
	s.Writes.condition.ask(s.Ledger)
	s.Life.Background.Go(s.replay)
	s.Life.Background.Go(s.sweepLoop)
	s.Life.Background.Go(s.auditLoop)
	s.Life.Background.Go(s.retentionLoop)
	s.Life.Background.Go(s.conditionLoop)
	s.Life.Background.Go(s.refreshLoop)
	if s.Spool != nil {
		s.Life.Background.Go(s.unspoolLoop)
	}
	return nil
}

func millisDuration(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }
