package tasks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/receipt"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
	"github.com/lapsehq/lapse/wheel"
)

// An engine is one node: what it has in memory, what it delivers, and what it writes. It knows
// nothing of other nodes; what they have to do with it is told to its cluster.
type engine struct {
	cfg        task.Checked
	ledger     recovery.Ledger
	fleet      recovery.Fleet // the ledger, if it is one; else nil
	terms      recovery.Terms
	nodeNumber uint16 // of this node in the IDs of its own shards
	committer  *recovery.Committer[write]
	spool      *spool // nil without Config.Spool
	runner     *wheel.Runner
	signer     *receipt.Signer
	cluster    cluster   // what is told of the other nodes
	started    time.Time // zero of the monotonic clock that leases run on

	opened   chan struct{} // closed when Open has succeeded
	closing  chan struct{} // closed when Close begins
	replayed chan struct{} // closed when memory knows all that this process held at first

	settingsRead chan struct{} // closed when the settings of all topics are known
	deadRead     chan struct{} // closed when memory knows which tasks were dead at first
	done         chan struct{} // closed when nothing runs any more, or the ledger is lost

	ctx        context.Context // of handlers and background work; cancelled at the end of the grace
	cancel     context.CancelFunc
	handlers   sync.WaitGroup        // running handlers
	background sync.WaitGroup        // replay, sweep, refresh and watch
	refusal    atomic.Pointer[error] // why the ledger takes no new records, when last asked
	restoring  sync.Mutex            // held while settings that the ledger has lost are written again
	sweepNow   chan struct{}         // asks for a sweep at once; holds one request
	everything chan fullSweep        // asks for the rest of a full sweep: an audit of everything; holds one request
	unstored   atomic.Int64          // the last revision of settings that the ledger does not keep
	catchingUp atomic.Int64          // shards that were gained, and are not all in memory yet
	closeBegun atomic.Bool
	closed     chan struct{} // closed when Close is over, which closeErr waits for
	closeErr   error
	waits      recovery.WaitList // what is stuck or not served yet, for Readiness
	failures   failureLog

	mu               sync.Mutex    // guards everything below
	shards           []*ownedShard // by number of the term; nil where there is none
	granted          bool          // it has those that Open was granted: a number without one has been forgotten
	shardCounts      shardCounts
	inactive         int                       // terms of which nothing is handed out
	detached         map[uint64]recovery.Home  // by nonce: deliveries that handlers are making, whose shards have left
	pendingVerdicts  map[uint64]pendingVerdict // by nonce: verdicts on deliveries that are being handed over
	draining         bool
	paused           bool          // nothing is handed out, see OnOutage
	caughtUp         chan struct{} // closed when no gained shard is being read any more
	store            *store.Store
	topics           map[string]*topic
	byNumber         []*topic
	vacantNumbers    []uint32                 // positions in byNumber of topics that were forgotten
	open             map[uint32]lease         // deliveries that are not settled, by slot
	leasedOut        int                      // of those, how many only a receipt can settle
	reservedInFlight int                      // deliveries under way that may join them: of topics whose deliverer leaves them to receipts
	held             []*topic                 // that MaxInFlight keeps waiting
	workers          int                      // places that workers have, of all topics
	contenders       contenders               // topics that want more of them than there may be
	passes           float64                  // of the topic that was let in last, see topic.turns
	backlog          int                      // ready tasks of the topics that are pushed
	arriving         int                      // creations and moves that wait for the ledger
	deferred         map[uint32]write         // next writes of tasks that have one under way
	waiting          map[uint32]chan struct{} // closed when a task is no longer busy
	passesWanted     map[*topic]bool          // topics that wait for runMisfirePasses; nil if it does not run
	outcomes         *store.Outcomes
	dead             deadIndex
	scratch          []byte  // for records on their way into the arena
	events           []Event // for the observer, told at unlock
	feed             feed
	quotas           quotas
	progress         recovery.Progress
	sweep            sweepState
	unknown          int64             // records of a version that this binary does not know, or damaged
	illegible        map[uint64]uint16 // hashes of their ids, which no caller may take, and their terms
	ended            bool              // Close has begun, or the ledger was lost
	fault            error             // why the ledger was lost
}

// newEngine returns an engine that has nothing yet and does nothing.
func newEngine(ctx context.Context, ledger recovery.Ledger, cfg task.Checked) *engine {
	s := &engine{
		cfg: cfg, ledger: ledger, started: time.Now(),
		opened:          make(chan struct{}),
		closed:          make(chan struct{}),
		closing:         make(chan struct{}),
		replayed:        make(chan struct{}),
		done:            make(chan struct{}),
		settingsRead:    make(chan struct{}),
		deadRead:        make(chan struct{}),
		sweepNow:        make(chan struct{}, 1),
		detached:        make(map[uint64]recovery.Home),
		pendingVerdicts: make(map[uint64]pendingVerdict),
		everything:      make(chan fullSweep, 1),
		store:           store.New(),
		topics:          make(map[string]*topic),
		byNumber:        []*topic{{}}, // number 0: of slots that have none, or none yet
		open:            make(map[uint32]lease),
		deferred:        make(map[uint32]write),
		waiting:         make(map[uint32]chan struct{}),
		dead:            deadIndex{ids: make(map[uint64]struct{})},
		illegible:       make(map[uint64]uint16),
		outcomes:        store.NewOutcomes(),
	}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.fleet, _ = ledger.(recovery.Fleet)
	return s
}

// adopt makes the ledger this process's, and reads what must be known before anything begins. If
// it fails, the engine has ended.
func (s *engine) adopt(ctx context.Context) (err error) {
	s.watch()
	if s.terms, err = s.ledger.Adopt(ctx); err != nil {
		s.cancel()
		return err
	}
	s.nodeNumber = s.findNodeNumber()
	s.ownAdopted()
	if err := s.prepare(ctx); err != nil {
		s.cancel()
		return errors.Join(err, s.ledger.Close())
	}
	return nil
}

// watch has the ledger tell what becomes of shards behind this process's back: its
// storage has lost what it had confirmed (a failover to a replica that was behind, an
// older file, an empty disk), others have taken them, or left them to it.
func (s *engine) watch() {
	r, ok := s.ledger.(recovery.Rewinder)
	if !ok {
		return
	}
	w := recovery.Watcher{
		Rewound: func(shard int) { s.rewound(r, shard) },
		Lost:    func(_ int, err error) { s.revoke(err) },
		Ended:   s.revoke,
	}
	if s.fleet != nil {
		w.Lost, w.Gained = s.revokeShard, s.acquireShard
		w.Room, w.Status, w.Doubted = s.room, s.cluster.status, s.cluster.doubted
	}
	r.Watch(w)
}

// begin begins to write, to deliver and to sweep. The wheel calls fire with tasks whose time has
// come. If begin fails, the engine has ended.
func (s *engine) begin(ctx context.Context, fire func(values []uint64)) (err error) {
	s.committer = recovery.NewCommitter(recovery.CommitterConfig[write]{
		Ledger: s.ledger, Terms: s.terms, Keep: admit, Done: s.committed, Log: s.cfg.Log,
		Patience: s.cfg.AnswerWithin / patienceShare,
	})
	s.runner, err = wheel.NewRunner(wheel.Config{Clock: s.cfg.Clock, Fire: fire})
	if err != nil {
		s.cancel()
		s.cluster.leave()
		return errors.Join(err, s.committer.Close(ctx), s.ledger.Close())
	}
	if err := s.openSpool(ctx); err != nil {
		s.cancel()
		s.cluster.leave()
		s.runner.Close()
		return errors.Join(fmt.Errorf("spool: %w", err), s.committer.Close(ctx), s.ledger.Close())
	}
	s.askCondition()
	s.background.Go(s.replay)
	s.background.Go(s.sweepLoop)
	s.background.Go(s.auditLoop)
	s.background.Go(s.retentionLoop)
	s.background.Go(s.conditionLoop)
	s.background.Go(s.refreshLoop)
	if s.spool != nil {
		s.background.Go(s.unspoolLoop)
	}
	return nil
}
