package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// An OwnedShard is one term of one shard: from acquiring it until memory has forgotten it.
// A slot's shard is the term's number in Engine.Shards.List. With a ledger that is no
// recovery.Fleet there are as many as it has shards, held from the beginning to the end.
// Guarded by Engine.Mu.
type OwnedShard struct {
	ShardID recovery.ShardID // 0 if the ledger is no Fleet
	Stage   stage
	since   int64  // when this process began to hold it, Unix ms by the wall clock
	run     uint32 // random: tells deliveries of this term from earlier ones
	past    uint64 // of the outcomes, how many are older: they say nothing of its tasks

	reconciles   int   // losses of its storage that are being made good
	transferring bool  // the ledger is changing its owner
	revocation   error // meanwhile, that it is lost
	aborting     bool  // a hand-over that did not come off is being taken back
	revoked      bool  // it was not transferred
	evicted      int   // of its tasks
	// dead holds its dead, as in deadIndex.IDs, with the numbers of their topics; nil
	// if the ledger is no Fleet.
	dead    map[uint64]uint32
	ahead   *readAhead // what was read of it before it was transferred here, or nil
	release *release   // the hand-over under way, or nil

	read chan struct{} // closed when it is not being read into memory any more
	gone chan struct{} // closed when memory knows nothing of it any more
}

// A stage is how far a term has come.
//
//	from                    event                         to
//	none                    Watcher.Acquired                acquired
//	acquired                the former term is gone,
//	                        and the dead are known        loading
//	loading                 all records are in memory     active
//	active                  another node asks for it      draining
//	draining                the release did not come off  active
//	draining                the owner has changed         evicting
//	any                     revoked                       evicting
//	evicting                none of its tasks is left     none: Forget
type stage uint8

// The stages.
const (
	Acquired stage = iota + 1 // nothing of it may be in memory yet, and nothing is written
	Loading                   // tasks come in from the ledger, and from callers
	Active                    // memory knows every task of it
	draining                  // nothing new is begun
	Evicting                  // it is another node's
)

// Takes reports whether tasks of the shard may come into memory.
func (h *OwnedShard) Takes() bool { return h != nil && (h.Stage == Loading || h.Stage == Active) }

// Mine reports whether this process holds the shard, as far as it knows.
func (h *OwnedShard) Mine() bool { return h != nil && h.Stage != Evicting }

// Reasons why a shard does not take a write. All are ErrUnavailable.
var (
	ErrNotHeld    = task.KindOf(task.ErrNodeAway, "shard unavailable: ownership is changing; retry")
	ErrHandedOver = task.KindOf(task.ErrNodeAway, "shard unavailable: moving to another node; retry")
	ErrUnsure     = task.KindOf(task.ErrUnavailable, "shard ownership uncertain; retry")
)

// findNodeNumber returns the number of this node in the IDs of its own shards.
func (s *Engine) findNodeNumber() uint16 {
	switch {
	case s.Fleet == nil:
		return 0
	case len(s.Terms.Away) > 0: // others may hold all that are its own
		return s.Terms.Away[0].Node()
	}
	return s.Fleet.ShardID(0).Node()
}

// ownAdopted enters the shards that the ledger has granted from the beginning.
func (s *Engine) ownAdopted() {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for n := range s.Terms.Shards {
		h := s.OwnedLocked(n)
		if h != nil {
			continue // lost already
		}
		h = s.beginTermLocked(n)
		s.stageLocked(h, Active)
		close(h.read) // the first replay is not about a single shard
	}
	s.Shards.granted = true
}

// beginTermLocked begins a term.
func (s *Engine) beginTermLocked(n int) *OwnedShard {
	h := &OwnedShard{
		since: s.Now(), run: rand.Uint32(), past: s.Outcomes.Count,
		read: make(chan struct{}), gone: make(chan struct{}),
	}
	s.Shards.past = h.past
	if s.Fleet != nil {
		h.ShardID, h.dead = s.Fleet.ShardID(n), make(map[uint64]uint32)
	}
	s.stageLocked(h, Acquired)
	for len(s.Shards.List) <= n {
		s.Shards.List = append(s.Shards.List, nil)
	}
	s.Shards.List[n] = h
	return h
}

// OwnedLocked returns the term with a number, or for SpoolShard the spool's substitute for a term;
// nil if there is none.
func (s *Engine) OwnedLocked(shard int) *OwnedShard {
	if shard == SpoolShard && s.Spool != nil {
		return s.Spool.ownedShard
	}
	if shard < 0 || shard >= len(s.Shards.List) {
		return nil
	}
	return s.Shards.List[shard]
}

// ShardNumberLocked finds the number under which this process holds a shard, draining or not;
// -1 if it does not.
func (s *Engine) ShardNumberLocked(shardID recovery.ShardID) int {
	for n, h := range s.Shards.List {
		if h.Mine() && h.ShardID == shardID {
			return n
		}
	}
	return -1
}

// Unsure reports whether other nodes may have taken over shards that this process believes to hold.
func (s *Engine) Unsure() bool { return s.Fleet != nil && !s.Fleet.Standing().Certain }

// Acquiring reports whether the ledger has taken shards of which memory knows nothing yet.
func (s *Engine) Acquiring() bool { return s.Fleet != nil && s.Fleet.Standing().Acquiring }

// ErrAcquiring is answered meanwhile to a node that asks whether something exists. It is passing.
var ErrAcquiring = task.KindOf(ErrNotHeld, "shards are being acquired; retry")

// stageLocked takes a term to another stage.
func (s *Engine) stageLocked(h *OwnedShard, to stage) {
	idle := func(at stage) bool { return at == draining || at == Evicting }
	comes := func(at stage) bool { return at == Acquired || at == Loading }
	from := h.Stage
	h.Stage = to
	defer s.Cluster.StagedLocked(h)
	switch {
	case idle(from) && !idle(to):
		s.Shards.Inactive--
	case !idle(from) && idle(to):
		s.Shards.Inactive++
	}
	switch {
	case !comes(from) && comes(to):
		if s.Reading.catchingUp.Add(1) == 1 {
			s.Reading.caughtUp = make(chan struct{})
		}
	case comes(from) && !comes(to):
		if s.Reading.catchingUp.Add(-1) == 0 {
			close(s.Reading.caughtUp)
			s.decideLocked()
		}
	}
}

// shardCounts are what has become of shards since Open.
type shardCounts struct {
	Acquired, Transferred, Revoked int64 // shards
	forgotten                      int   // terms whose numbers may stand for others since
	Evicted                        int64 // tasks that have left memory with their shards
	Doubtful                       int64 // deliveries whose shards were lost
	Unsure                         int64 // deliveries begun while others may have held the shard
}

// AcquireShard begins a term of a shard. The ledger calls it: this process holds the shard from
// now on.
func (s *Engine) AcquireShard(n int, transferred bool) {
	s.Mu.Lock()
	defer s.Unlock()
	if s.Ended || s.OwnedLocked(n) != nil {
		return // told twice
	}
	shardID := s.Fleet.ShardID(n)
	var former []*OwnedShard
	for other, h := range s.Shards.List {
		if h != nil && h.ShardID == shardID {
			s.revokeLocked(other, h, ErrNotHeld) // unless it is known
			former = append(former, h)
		}
	}
	h := s.beginTermLocked(n)
	ahead := s.takeAheadLocked(shardID)
	if transferred {
		h.since = math.MinInt64 // a node has held it all the time: nothing is misfired
		h.ahead = ahead         // its owner has not changed it since; one that has died may have
	}
	s.Shards.Counts.Acquired++
	s.Dead.Requeued.Renew()
	s.Cluster.AcquiredLocked()
	level := slog.LevelDebug // the ledger tells of all that were adopted in one line
	if transferred {
		level = slog.LevelInfo
	}
	s.Life.Background.Go(func() { s.loadShard(n, h, former, level) })
}

// loadShard reads a shard that was acquired into memory. The log has a line at a level.
func (s *Engine) loadShard(n int, h *OwnedShard, former []*OwnedShard, level slog.Level) {
	defer close(h.read)
	began := s.Elapsed()
	waits := []<-chan struct{}{s.Life.Opened}
	for _, f := range former {
		waits = append(waits, f.gone) // else its tasks would be taken for those of the new term
	}
	if !s.outlast(waits...) {
		return
	}
	s.Committer.Open(n)
	var records int64
	var ok bool
	if h.ahead != nil {
		records, ok = s.loadAhead(n, h)
	} else {
		ok = s.readDead(n, h) && s.advance(h, Acquired, Loading)
	}
	if ok && (h.ahead == nil || !h.ahead.whole) {
		records, ok = s.replayShard(n)
	}
	if !ok || !s.advance(h, Loading, Active) {
		return // Watcher.Lost follows or came before, or the process ends
	}
	s.Config.Log.Log(s.Life.Context, level, "a shard was taken over", "node", s.Config.Node, "shard", n, "read", records, "took", (s.Elapsed() - began).Round(time.Millisecond))
}

// AwaitShard waits until memory has all of a shard that this node has acquired. Errors:
// ErrHandingOver when that takes longer than a call may; ErrNotHeld when the node does not hold the
// shard.
func (s *Engine) AwaitShard(ctx context.Context, shardID recovery.ShardID) error {
	ctx, cancel := context.WithTimeout(ctx, s.Config.AnswerWithin/4)
	defer cancel()
	for {
		s.Mu.Lock()
		h := s.OwnedLocked(s.ShardNumberLocked(shardID))
		has := h.Mine() && h.Stage != Acquired && h.Stage != Loading
		s.Mu.Unlock()
		switch {
		case has:
			return nil
		case h == nil && !s.Acquiring():
			return ErrNotHeld
		}
		if s.RestWithin(ctx, BusyPause) != nil {
			return ErrHandingOver
		}
	}
}

// replayShard reads the pending records of a shard into memory. It reports false if the term or the
// process ends before all are read.
func (s *Engine) replayShard(n int) (records int64, ok bool) {
	if !s.begin(s.Reading.replays) {
		return 0, false
	}
	defer func() { <-s.Reading.replays }()
	w := replayWatch{s: s, what: fmt.Sprint("replay of shard ", n)}
	defer s.Waits.Clear(w.what)
	err := recovery.ReplayShard(s.Life.Context, s.Fleet, n, (*Memory)(s), func(p recovery.Progress) {
		records = p.Read
		w.fails(p)
	})
	if err != nil && !errors.Is(err, recovery.ErrLost) && !s.IsClosing() {
		s.Config.Log.Error("shard not loaded", "node", s.Config.Node, "shard", n, "error", err)
	}
	return records, err == nil
}

// advance takes a term on, unless it has come to an end meanwhile.
func (s *Engine) advance(h *OwnedShard, from, to stage) bool {
	s.Mu.Lock()
	defer s.Unlock()
	if h.Stage != from || s.Ended {
		return false
	}
	s.stageLocked(h, to)
	return true
}

// readDead learns which tasks are dead in a shard. Before that nothing may be created there. It
// reports false if the term has come to an end.
func (s *Engine) readDead(n int, h *OwnedShard) bool {
	var backoff recovery.Backoff
	for attempt := 0; ; attempt++ {
		dead := gatheredDead{s: s, takes: func(int) bool { return h.Stage == Acquired }}
		err := s.Fleet.ScanDead(s.Life.Context, n, func(e recovery.Entry) { dead.add(n, e) })
		dead.flush()
		switch {
		case err == nil:
			return true
		case errors.Is(err, recovery.ErrLost), errors.Is(err, recovery.ErrClosed), s.IsClosing():
			return false
		}
		if backoff.Wait(s.Life.Context, attempt) != nil {
			return false
		}
		s.Mu.Lock()
		over := h.Stage != Acquired
		s.Mu.Unlock()
		if over {
			return false
		}
	}
}

// begin waits for one of the places of a kind of work, which the caller gives back. It reports
// false if the process ends before.
func (s *Engine) begin(places chan struct{}) bool {
	select {
	case places <- struct{}{}:
		return true
	case <-s.Life.Closing:
		return false
	case <-s.Life.Context.Done():
		return false
	}
}

// outlast waits until all of these are closed. It reports false if the process ends before,
// also because Open has failed.
func (s *Engine) outlast(all ...<-chan struct{}) bool {
	for _, over := range all {
		select {
		case <-over:
		case <-s.Life.Closing:
			return false
		case <-s.Life.Context.Done():
			return false
		}
	}
	return true
}
