package tasks

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// An ownedShard is one term of one shard: from gaining it until memory has forgotten it.
// A slot's shard is the term's number in Scheduler.shards. With a ledger that is no
// recovery.Fleet there are as many as it has shards, held from the beginning to the end.
// Guarded by Scheduler.mu.
type ownedShard struct {
	shardID recovery.Home // 0 if the ledger is no Fleet
	stage   stage
	since   int64  // when this process began to hold it, Unix ms by the wall clock
	run     uint32 // random: tells deliveries of this term from earlier ones
	past    uint64 // of the outcomes, how many are older: they say nothing of its tasks

	reconciles   int   // losses of its storage that are being made good
	transferring bool  // the ledger is changing its owner
	revocation   error // meanwhile, that it is lost
	aborting     bool  // a hand-over that did not come off is being taken back
	revoked      bool  // it was not transferred
	evicted      int   // of its tasks
	// dead holds its dead, as in deadIndex.ids, with the numbers of their topics; nil
	// if the ledger is no Fleet.
	dead map[uint64]uint32
	read chan struct{} // closed when it is not being read into memory any more
	gone chan struct{} // closed when memory knows nothing of it any more
}

// A stage is how far a term has come.
//
//	from                    event                         to
//	none                    Watcher.Gained                acquired
//	acquired                the former term is gone,
//	                        and the dead are known        loading
//	loading                 all records are in memory     active
//	active                  another node asks for it      draining
//	draining                the release did not come off  active
//	draining                the owner has changed         evicting
//	any                     revoked                       evicting
//	evicting                none of its tasks is left     none: Forget
type stage uint8

const (
	acquired stage = iota + 1 // nothing of it may be in memory yet, and nothing is written
	loading                   // tasks come in from the ledger, and from callers
	active                    // memory knows every task of it
	draining                  // nothing new is begun
	evicting                  // it is another node's
)

// takes tells that tasks of the shard may come into memory.
func (h *ownedShard) takes() bool { return h != nil && (h.stage == loading || h.stage == active) }

// mine tells that the shard is this process's, as far as it knows.
func (h *ownedShard) mine() bool { return h != nil && h.stage != evicting }

// Why a shard does not take what a caller wants. All are ErrUnavailable.
var (
	errNotHeld    = fmt.Errorf("%w: its shard is not held by this node at the moment", ErrNodeAway)
	errHandedOver = fmt.Errorf("%w: its shard is being handed over to another node", ErrNodeAway)
	errUnsure     = fmt.Errorf("%w: this node may have lost what it held", ErrUnavailable)
)

// findNodeNumber returns the number of this node in the IDs of its own shards.
func (s *engine) findNodeNumber() uint16 {
	switch {
	case s.fleet == nil:
		return 0
	case len(s.terms.Away) > 0: // others may hold all that are its own
		return s.terms.Away[0].Node()
	}
	return s.fleet.Home(0).Node()
}

// ownAdopted enters the shards that the ledger has granted from the beginning.
func (s *engine) ownAdopted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range s.terms.Shards {
		h := s.ownedLocked(n)
		if h != nil {
			continue // lost already
		}
		h = s.beginTermLocked(n)
		s.stageLocked(h, active)
		close(h.read) // the first replay is not about a single shard
	}
	s.granted = true
}

// beginTermLocked begins a term.
func (s *engine) beginTermLocked(n int) *ownedShard {
	h := &ownedShard{
		since: s.now(), run: rand.Uint32(), past: s.outcomes.Count,
		read: make(chan struct{}), gone: make(chan struct{}),
	}
	s.stageLocked(h, acquired)
	if s.fleet != nil {
		h.shardID, h.dead = s.fleet.Home(n), make(map[uint64]uint32)
	}
	for len(s.shards) <= n {
		s.shards = append(s.shards, nil)
	}
	s.shards[n] = h
	return h
}

// ownedLocked returns the term with a number, or what stands for one where a task is
// spooled; nil if there is none.
func (s *engine) ownedLocked(shard int) *ownedShard {
	if shard == spoolShard && s.spool != nil {
		return s.spool.ownedShard
	}
	if shard < 0 || shard >= len(s.shards) {
		return nil
	}
	return s.shards[shard]
}

// shardNumberLocked finds the number under which this process holds a shard, draining or not;
// -1 if it does not.
func (s *engine) shardNumberLocked(shardID recovery.Home) int {
	for n, h := range s.shards {
		if h.mine() && h.shardID == shardID {
			return n
		}
	}
	return -1
}

// unsure tells that others may have taken over what this process believes to hold.
func (s *engine) unsure() bool { return s.fleet != nil && !s.fleet.Standing().Certain }

// acquiring reports whether the ledger has taken shards of which memory knows nothing yet.
func (s *engine) acquiring() bool { return s.fleet != nil && s.fleet.Standing().Gaining }

// errAcquiring is answered meanwhile to a node that asks whether something exists. It is passing.
var errAcquiring = fmt.Errorf("%w: another one is being taken over", errNotHeld)

// stageLocked takes a term to another stage.
func (s *engine) stageLocked(h *ownedShard, to stage) {
	idle := func(at stage) bool { return at == draining || at == evicting }
	comes := func(at stage) bool { return at == acquired || at == loading }
	from := h.stage
	h.stage = to
	defer s.cluster.stagedLocked(h)
	switch {
	case idle(from) && !idle(to):
		s.inactive--
	case !idle(from) && idle(to):
		s.inactive++
	}
	switch {
	case !comes(from) && comes(to):
		if s.catchingUp.Add(1) == 1 {
			s.caughtUp = make(chan struct{})
		}
	case comes(from) && !comes(to):
		if s.catchingUp.Add(-1) == 0 {
			close(s.caughtUp)
			s.decideLocked()
		}
	}
}

// shardCounts are what has become of shards since Open.
type shardCounts struct {
	acquired, transferred, revoked int64 // shards
	forgotten                      int   // terms whose numbers may stand for others since
	evicted                        int64 // tasks that have left memory with their shards
	doubtful                       int64 // deliveries whose shards were lost
	unsure                         int64 // deliveries that were begun while others may have held the shard
}

// acquireShard begins a term of a shard. The ledger calls it: this process holds the shard from
// now on.
func (s *engine) acquireShard(n int, transferred bool) {
	s.mu.Lock()
	defer s.unlock()
	if s.ended || s.ownedLocked(n) != nil {
		return // told twice
	}
	shardID := s.fleet.Home(n)
	var former []*ownedShard
	for other, h := range s.shards {
		if h != nil && h.shardID == shardID {
			s.revokeLocked(other, h, errNotHeld) // unless it is known
			former = append(former, h)
		}
	}
	h := s.beginTermLocked(n)
	if transferred {
		h.since = math.MinInt64 // a node has held it all the time: nothing is misfired
	}
	s.shardCounts.acquired++
	s.cluster.acquiredLocked()
	s.background.Go(func() { s.loadShard(n, h, former) })
}

// loadShard reads a shard that was acquired into memory.
func (s *engine) loadShard(n int, h *ownedShard, former []*ownedShard) {
	defer close(h.read)
	began := s.elapsed()
	waits := []<-chan struct{}{s.opened}
	for _, f := range former {
		waits = append(waits, f.gone) // else its tasks would be taken for those of the new term
	}
	if !s.outlast(waits...) {
		return
	}
	s.committer.Open(n)
	if !s.readDead(n, h) || !s.advance(h, acquired, loading) {
		return
	}
	records, w := int64(0), replayWatch{s: s, what: fmt.Sprint("replay of shard ", n)}
	defer s.waits.Clear(w.what)
	err := recovery.ReplayShard(s.ctx, s.fleet, n, (*memory)(s), func(p recovery.Progress) {
		records = p.Read
		w.fails(p)
	})
	if err != nil {
		if !errors.Is(err, recovery.ErrLost) && !s.isClosing() {
			s.cfg.Log.Error("a shard was not read to its end", "node", s.cfg.Node, "shard", n, "error", err)
		}
		return // Watcher.Lost is told, or the process ends
	}
	if !s.advance(h, loading, active) {
		return
	}
	s.cfg.Log.Info("a shard was taken over", "node", s.cfg.Node, "shard", n, "read", records, "took", (s.elapsed() - began).Round(time.Millisecond))
}

// advance takes a term on, unless it has come to an end meanwhile.
func (s *engine) advance(h *ownedShard, from, to stage) bool {
	s.mu.Lock()
	defer s.unlock()
	if h.stage != from || s.ended {
		return false
	}
	s.stageLocked(h, to)
	return true
}

// readDead learns which tasks are dead in a shard. Before that nothing may be created there. It
// reports false if the term has come to an end.
func (s *engine) readDead(n int, h *ownedShard) bool {
	var backoff recovery.Backoff
	for attempt := 0; ; attempt++ {
		err := s.fleet.ScanDead(s.ctx, n, func(e recovery.Entry) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if h.stage == acquired {
				s.addDeadLocked(s.keptTopic([]byte(e.Spot.Label)), n, e.ID, e.Spot.At)
			}
		})
		switch {
		case err == nil:
			return true
		case errors.Is(err, recovery.ErrLost), errors.Is(err, recovery.ErrClosed), s.isClosing():
			return false
		}
		if backoff.Wait(s.ctx, attempt) != nil {
			return false
		}
		s.mu.Lock()
		over := h.stage != acquired
		s.mu.Unlock()
		if over {
			return false
		}
	}
}

// outlast waits until all of these are closed. It reports false if the process ends before,
// also because Open has failed.
func (s *engine) outlast(all ...<-chan struct{}) bool {
	for _, over := range all {
		select {
		case <-over:
		case <-s.closing:
			return false
		case <-s.ctx.Done():
			return false
		}
	}
	return true
}
