package tasks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-multierror"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/receipt"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
	"github.com/lapsehq/lapse/wheel"
)

// A Scheduler takes tasks in and delivers them when they are due. Its methods
// may be called from any goroutine.
type Scheduler struct {
	cfg        task.Checked
	ledger     recovery.Ledger
	fleet      recovery.Fleet // the ledger, if it is one; else nil
	terms      recovery.Terms
	peerCalls  peerCalls
	nodeNumber uint16 // of this node in the IDs of its own shards
	committer  *recovery.Committer[write]
	spool      *spool // nil without Config.Spool
	runner     *wheel.Runner
	signer     *receipt.Signer
	shared     *shared   // nil if the ledger is one node's alone
	cluster    cluster   // what is told of the other nodes
	started    time.Time // zero of the monotonic clock that leases run on

	opened   chan struct{} // closed when Open has succeeded
	closing  chan struct{} // closed when Close begins
	replayed chan struct{} // closed when memory knows all that this process held at first
	drained  chan struct{} // closed when this node was drained because DrainNode was called

	settingsRead chan struct{} // closed when the settings of all topics are known
	deadRead     chan struct{} // closed when memory knows which tasks were dead at first
	done         chan struct{} // closed when nothing runs any more, or the ledger is lost

	ctx              context.Context // of handlers and background work; cancelled at the end of the grace
	cancel           context.CancelFunc
	handlers         sync.WaitGroup        // running handlers
	background       sync.WaitGroup        // replay, sweep, refresh and watch
	refusal          atomic.Pointer[error] // why the ledger takes no new records, when last asked
	restoring        sync.Mutex            // held while settings that the ledger has lost are written again
	lateVerdictsWake chan struct{}         // tells that there are late verdicts; holds one request
	sweepNow         chan struct{}         // asks for a sweep at once; holds one request
	everything       chan fullSweep        // asks for the rest of a full sweep: an audit of everything; holds one request
	unstored         atomic.Int64          // the last revision of settings that the ledger does not keep
	catchingUp       atomic.Int64          // shards that were gained, and are not all in memory yet
	closeBegun       atomic.Bool
	closed           chan struct{} // closed when Close is over, which closeErr waits for
	closeErr         error
	waits            recovery.WaitList // what is stuck or not served yet, for Readiness
	figures          figures
	failures         failureLog

	mu               sync.Mutex    // guards everything below
	shards           []*ownedShard // by number of the term; nil where there is none
	granted          bool          // it has those that Open was granted: a number without one has been forgotten
	shardCounts      shardCounts
	inactive         int                       // terms of which nothing is handed out
	detached         map[uint64]recovery.Home  // by nonce: deliveries that handlers are making, whose shards have left
	pendingVerdicts  map[uint64]pendingVerdict // by nonce: verdicts on deliveries that are being handed over
	lateVerdicts     []lateVerdict
	lateVerdictsOut  int                    // those that are being sent
	missing          map[recovery.Home]bool // shards of this node's own that it does not hold
	draining         bool
	drainsItself     bool          // since DrainNode was called
	drainsFailed     int           // how often that came to nothing
	drainFault       string        // why, the last time
	settled          bool          // it was ready once
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
	peers            peers
	progress         recovery.Progress
	sweep            sweepState
	unknown          int64             // records of a version that this binary does not know, or damaged
	illegible        map[uint64]uint16 // hashes of their ids, which no caller may take, and their terms
	ended            bool              // Close has begun, or the ledger was lost
	fault            error             // why the ledger was lost
}

// Open adopts the ledger, starts reading its tasks back, and begins to deliver;
// it does not wait for the end of replay (see Readiness). The scheduler
// owns the ledger from then on and closes it.
//
// Errors: every fault of cfg at once; recovery.ErrHeld when another process owns
// the ledger; recovery.ErrLayout; or why the ledger cannot be read.
func Open(ctx context.Context, ledger recovery.Ledger, cfg Config) (*Scheduler, error) {
	return open(ctx, ledger, cfg, parts{})
}

// Parts are what a test puts in the place of parts of a scheduler. Their zero value is nothing.
type parts struct {
	peers peerCalls
	fired func(values []uint64) []uint64 // changes a batch on its way from the wheel
}

// fire returns what the wheel calls.
func (h *parts) fire(s *Scheduler) func(values []uint64) {
	if h.fired == nil {
		return s.fired
	}
	return func(values []uint64) { s.fired(h.fired(values)) }
}

// open is Open with parts.
func open(ctx context.Context, ledger recovery.Ledger, config Config, h parts) (*Scheduler, error) {
	cfg, err := config.Check()
	if err != nil {
		return nil, err
	}
	s := &Scheduler{
		cfg: cfg, ledger: ledger, started: time.Now(),
		opened:           make(chan struct{}),
		closed:           make(chan struct{}),
		closing:          make(chan struct{}),
		replayed:         make(chan struct{}),
		done:             make(chan struct{}),
		drained:          make(chan struct{}),
		settingsRead:     make(chan struct{}),
		deadRead:         make(chan struct{}),
		sweepNow:         make(chan struct{}, 1),
		lateVerdictsWake: make(chan struct{}, 1),
		detached:         make(map[uint64]recovery.Home),
		pendingVerdicts:  make(map[uint64]pendingVerdict),
		missing:          make(map[recovery.Home]bool),
		peerCalls:        h.peers,
		everything:       make(chan fullSweep, 1),
		store:            store.New(),
		topics:           make(map[string]*topic),
		byNumber:         []*topic{{}}, // number 0: of slots that have none, or none yet
		open:             make(map[uint32]lease),
		deferred:         make(map[uint32]write),
		waiting:          make(map[uint32]chan struct{}),
		dead:             deadIndex{ids: make(map[uint64]struct{})},
		illegible:        make(map[uint64]uint16),
		outcomes:         store.NewOutcomes(),
		peers:            newPeers(),
	}
	s.cluster = rooms{s}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.fleet, _ = ledger.(recovery.Fleet)
	s.watch()
	if s.terms, err = ledger.Adopt(ctx); err != nil {
		s.cancel()
		return nil, err
	}
	s.nodeNumber = s.findNodeNumber()
	s.ownAdopted()
	if err := s.prepare(ctx); err != nil {
		s.cancel()
		return nil, errors.Join(err, ledger.Close())
	}
	if err := s.share(ctx); err != nil {
		s.cancel()
		return nil, errors.Join(err, ledger.Close())
	}
	s.committer = recovery.NewCommitter(recovery.CommitterConfig[write]{
		Ledger: ledger, Terms: s.terms, Keep: admit, Done: s.committed, Log: cfg.Log,
		Patience: cfg.AnswerWithin / patienceShare,
	})
	s.runner, err = wheel.NewRunner(wheel.Config{Clock: cfg.Clock, Fire: h.fire(s)})
	if err != nil {
		s.cancel()
		s.unshare()
		return nil, errors.Join(err, s.committer.Close(ctx), ledger.Close())
	}
	if err := s.openSpool(ctx); err != nil {
		s.cancel()
		s.unshare()
		s.runner.Close()
		return nil, errors.Join(fmt.Errorf("spool: %w", err), s.committer.Close(ctx), ledger.Close())
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
	s.joinFleet()
	if s.shared != nil {
		s.background.Go(s.reconcilerLoop)
		s.background.Go(s.peersLoop)
	}
	close(s.opened)
	return s, nil
}

// Close ends the scheduler. In this order: new calls are refused and waiting
// receivers sent home; running handlers get Config.Grace (or until ctx ends) to finish,
// then their context is cancelled, and those that heed it have a moment to tell what
// became of their attempts; what reserved deliveries are still open is
// written down with its lease, so that their receipts count after the next Open; what
// the ledger has not confirmed is written; the ledger is closed.
//
// It is idempotent. An error tells what could not be written: after the next Open
// those tasks stand as they stood before.
func (s *Scheduler) Close(ctx context.Context) error {
	if s.closeBegun.CompareAndSwap(false, true) {
		s.end(nil)
		s.closeErr = s.shutDown(ctx)
		s.finish()
		close(s.closed)
	}
	<-s.closed
	return s.closeErr
}

// lastWords is how long Close waits for handlers whose context it has cancelled, so that
// what becomes of their attempts is recorded. Those that do not mind it are given up.
const lastWords = 100 * time.Millisecond

func (s *Scheduler) shutDown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Grace)
	defer cancel()

	if !ended(ctx, &s.handlers) {
		s.cfg.Log.Warn("handlers still run at the end of the grace; their tasks are delivered again after the next start", "grace", s.cfg.Grace)
	}
	s.cancel()
	last, cancelLast := context.WithTimeout(context.WithoutCancel(ctx), lastWords)
	defer cancelLast()
	ended(last, &s.handlers)
	s.sendLastVerdicts(last)
	// What is left has a time of its own: handlers may have used up theirs.
	flush, cancelFlush := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.AnswerWithin)
	defer cancelFlush()
	if !ended(flush, &s.background) {
		s.cfg.Log.Warn("the ledger does not answer; it is given up")
	}
	s.unshare() // this node asks no other any more, and callers are told that it closes
	s.runner.Close()
	s.park()
	var all *multierror.Error
	if err := s.committer.Close(flush); err != nil {
		all = multierror.Append(all, err)
	}
	if err := s.closeSpool(ctx); err != nil {
		all = multierror.Append(all, fmt.Errorf("spool: %w", err))
	}
	if err := s.ledger.Close(); err != nil {
		all = multierror.Append(all, err)
	}
	return all.ErrorOrNil()
}

// watch has the ledger tell what becomes of shards behind this process's back: its
// storage has lost what it had confirmed (a failover to a replica that was behind, an
// older file, an empty disk), others have taken them, or left them to it.
func (s *Scheduler) watch() {
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
		w.Room, w.Status, w.Doubted = s.room, s.status, s.doubted
	}
	r.Watch(w)
}
