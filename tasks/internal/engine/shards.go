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
	"github.com/lapsehq/lapse/tasks/internal/engine/deadindex"
	"github.com/lapsehq/lapse/tasks/task"
)

// An OwnedShard is one term of one shard: from acquiring it until memory has forgotten it.
// A slot's shard is the term's number in Engine.Shards.List. With a ledger that is no
// recovery.Fleet there are as many as it has shards, held from the beginning to the end.
// Guarded by Engine.mu; without it, read the engine's view.
type OwnedShard struct {
	ShardID recovery.ShardID // 0 if the ledger is no Fleet
	stage   stage
	since   int64  // when this process began to hold it, Unix ms by the wall clock
	run     uint32 // random: tells deliveries of this term from earlier ones
	past    uint64 // of the outcomes, how many are older: they say nothing of its tasks

	reconciles   int             // losses of its storage that are being made good
	transferring bool            // the ledger is changing its owner
	revocation   error           // meanwhile, that it is lost
	aborting     bool            // a hand-over that did not come off is being taken back
	revoked      bool            // it was not transferred
	evicted      int             // of its tasks
	dead         deadindex.Shard // nil if the ledger is no Fleet
	ahead        *readAhead      // what was read of it before it was transferred here, or nil
	release      *release        // the hand-over under way, or nil

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
	acquired stage = iota + 1 // nothing of it may be in memory yet, and nothing is written
	loading                   // tasks come in from the ledger, and from callers
	active                    // memory knows every task of it
	draining                  // nothing new is begun
	evicting                  // it is another node's
)

// takes reports whether tasks of the shard may come into memory.
func (at stage) takes() bool { return at == loading || at == active }

// takes reports whether tasks of the shard may come into memory.
func (h *OwnedShard) takes() bool { return h != nil && h.stage.takes() }

// mine reports whether this process holds the shard, as far as it knows.
func (h *OwnedShard) mine() bool { return h != nil && h.stage != evicting }

// Reasons why a shard does not take a write. All are ErrUnavailable.
var (
	ErrNotHeld    = task.KindOf(task.ErrNodeAway, "shard unavailable: ownership is changing; retry")
	ErrHandedOver = task.KindOf(task.ErrNodeAway, "shard unavailable: moving to another node; retry")
	ErrUnsure     = task.KindOf(task.ErrUnavailable, "shard ownership uncertain; retry")
)

// nodeNumber returns the number of this node in the IDs of its own shards.
func nodeNumber(fleet recovery.Fleet, away []recovery.ShardID) uint16 {
	switch {
	case fleet == nil:
		return 0
	case len(away) > 0: // others may hold all that are its own
		return away[0].Node()
	}
	return fleet.ShardID(0).Node()
}

// ownAdopted enters the shards that the ledger has granted from the beginning.
func (s *Engine) ownAdopted(terms recovery.Terms) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Terms = terms
	s.NodeNumber = nodeNumber(s.Fleet, terms.Away)
	s.Shards.view.Store(newView(s.Shards.List, s.NodeNumber, terms.Away))
	for n := range s.Terms.Shards {
		h := s.OwnedLocked(n)
		if h != nil {
			continue // lost already
		}
		h = s.beginTermLocked(n)
		s.stageLocked(n, h, active)
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
		h.ShardID, h.dead = s.Fleet.ShardID(n), make(deadindex.Shard)
	}
	for len(s.Shards.List) <= n {
		s.Shards.List = append(s.Shards.List, nil)
	}
	s.stageLocked(n, h, acquired)
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

// number finds the number under which this process holds a shard, draining or not; -1 if it does
// not.
func (o *ownership) number(shardID recovery.ShardID) int {
	for n, h := range o.List {
		if h.mine() && h.ShardID == shardID {
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

// A view is the terms of this node's shards at one moment. It does not change: stageLocked puts
// another one in its place. Who reads it without the engine's mutex may find that a term has come
// further since. What was seen of a task under the mutex holds for a view that is read afterwards:
// a term that is still in that was there all the time.
type view struct {
	terms  []viewedTerm       // by number
	idle   int                // terms of which nothing is handed out
	unread int                // terms whose tasks are not all in memory yet
	making []recovery.ShardID // shards for tasks with generated ids
}

type viewedTerm struct {
	of *OwnedShard // of whose fields only ShardID may be read; nil where there is none
	at stage
}

// term returns the term with a number.
func (v *view) term(n int) viewedTerm {
	if n < 0 || n >= len(v.terms) {
		return viewedTerm{}
	}
	return v.terms[n]
}

// find returns the term of a shard that this process holds, draining or not. Its stage is 0 if
// there is none.
func (v *view) find(shardID recovery.ShardID) viewedTerm {
	for _, t := range v.terms {
		if t.at != 0 && t.at != evicting && t.of.ShardID == shardID {
			return t
		}
	}
	return viewedTerm{}
}

// newView returns a view of the terms of a node as they are now. Tasks with generated ids are
// created in the node's own shards, as far as it holds them; without any, in those of others that
// it holds, or else in its own that were away from the beginning.
func newView(terms []*OwnedShard, node uint16, away []recovery.ShardID) *view {
	v := &view{terms: make([]viewedTerm, len(terms)), making: away}
	var own, adopted []recovery.ShardID
	for n, h := range terms {
		if h == nil {
			continue
		}
		v.terms[n] = viewedTerm{h, h.stage}
		switch {
		case !h.takes():
		case h.ShardID.Node() == node:
			own = append(own, h.ShardID)
		default:
			adopted = append(adopted, h.ShardID)
		}
		switch h.stage {
		case acquired, loading:
			v.unread++
		case draining, evicting:
			v.idle++
		}
	}
	for _, shardIDs := range [][]recovery.ShardID{adopted, own} {
		if len(shardIDs) > 0 {
			v.making = shardIDs
		}
	}
	return v
}

// stageLocked takes the term with a number to another stage; 0: there is none any more.
func (s *Engine) stageLocked(n int, h *OwnedShard, to stage) {
	h.stage = to
	if s.Shards.List[n] = h; to == 0 {
		s.Shards.List[n] = nil
	}
	before, now := s.Shards.view.Load(), newView(s.Shards.List, s.NodeNumber, s.Terms.Away)
	if len(now.making) == 0 {
		now.making = before.making
	}
	s.Shards.view.Store(now)
	switch {
	case before.unread == 0 && now.unread > 0:
		s.Reading.caughtUp = make(chan struct{})
	case before.unread > 0 && now.unread == 0:
		close(s.Reading.caughtUp)
		s.decideLocked()
	}
	switch to {
	case acquired, active:
		s.Cluster.HeldLocked(h.ShardID, to == active)
	case evicting:
		s.Cluster.LostLocked(h.ShardID)
	}
}

// Holds reports whether this process holds a shard, draining or not.
func (s *Engine) Holds(shardID recovery.ShardID) bool {
	return s.Shards.view.Load().find(shardID).at != 0
}

// Term returns the term of a shard whose tasks memory knows, or can find; nil if there is none.
func (s *Engine) Term(shardID recovery.ShardID) *OwnedShard {
	if t := s.Shards.view.Load().find(shardID); t.at.takes() {
		return t.of
	}
	return nil
}

// MakingShards returns the shards in which tasks with generated ids are created, at least one.
func (s *Engine) MakingShards() []recovery.ShardID { return s.Shards.view.Load().making }

// OwnedShards lists the shards that could be handed over, and tells how many others must be read
// into memory before, or have not left it yet.
func (s *Engine) OwnedShards() (shardIDs []recovery.ShardID, unread, leaving int) {
	for _, t := range s.Shards.view.Load().terms {
		switch {
		case t.at == 0:
		case t.at == evicting:
			leaving++
		case t.at == acquired, t.at == loading, !s.IsFirstReplayed():
			unread++
		default:
			shardIDs = append(shardIDs, t.of.ShardID)
		}
	}
	return shardIDs, unread, leaving
}

// AcquireShard begins a term of a shard. The ledger calls it: this process holds the shard from
// now on.
func (s *Engine) AcquireShard(n int, transferred bool) {
	s.mu.Lock()
	defer s.unlock()
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
	s.Figures.ShardsGained++
	s.Dead.Requeued.Renew()
	level := slog.LevelDebug // the ledger tells of all that were adopted in one line
	if transferred {
		level = slog.LevelInfo
	}
	s.Life.Background.Go(func() { (&coming{s, n, h}).load(former, level) })
}

// A coming is a shard that was acquired, on its way into memory.
type coming struct {
	*Engine
	n int
	h *OwnedShard
}

// load reads the shard into memory. The log has a line at a level.
func (s *coming) load(former []*OwnedShard, level slog.Level) {
	defer close(s.h.read)
	began := s.Elapsed()
	waits := []<-chan struct{}{s.Life.Opened}
	for _, f := range former {
		waits = append(waits, f.gone) // else its tasks would be taken for those of the new term
	}
	if !s.Life.Outlast(waits...) {
		return
	}
	s.Committer.Open(s.n)
	var records int64
	var ok bool
	if s.h.ahead != nil {
		records, ok = s.loadAhead()
	} else {
		ok = s.readDead() && s.advance(acquired, loading)
	}
	if ok && (s.h.ahead == nil || !s.h.ahead.whole) {
		records, ok = s.replay()
	}
	if !ok || !s.advance(loading, active) {
		return // Watcher.Lost follows or came before, or the process ends
	}
	s.Config.Log.Log(s.Life.Context, level, "a shard was taken over", "node", s.Config.Node, "shard", s.n, "read", records, "took", (s.Elapsed() - began).Round(time.Millisecond))
}

// AwaitShard waits until memory has all of a shard that this node has acquired. Errors:
// ErrHandingOver when that takes longer than a call may; ErrNotHeld when the node does not hold the
// shard.
func (s *Engine) AwaitShard(ctx context.Context, shardID recovery.ShardID) error {
	ctx, cancel := context.WithTimeout(ctx, s.Config.AnswerWithin/4)
	defer cancel()
	for {
		acquiring := s.Acquiring() // before the look: memory is told of a shard first
		switch at := s.Shards.view.Load().find(shardID).at; {
		case at == active, at == draining:
			return nil
		case at == 0 && !acquiring:
			return ErrNotHeld
		}
		if s.RestWithin(ctx, BusyPause) != nil {
			return ErrHandingOver
		}
	}
}

// replay reads the pending records of the shard into memory. It reports false if the term or the
// process ends before all are read.
func (s *coming) replay() (records int64, ok bool) {
	if !s.Life.Acquire(s.Reading.replays) {
		return 0, false
	}
	defer func() { <-s.Reading.replays }()
	w := replayWatch{s: s.Engine, what: fmt.Sprint("replay of shard ", s.n)}
	defer s.Waits.Clear(w.what)
	err := recovery.ReplayShard(s.Life.Context, s.Fleet, s.n, (*Memory)(s.Engine), func(p recovery.Progress) {
		records = p.Read
		w.fails(p)
	})
	if err != nil && !errors.Is(err, recovery.ErrLost) && !s.IsClosing() {
		s.Config.Log.Error("shard not loaded", "node", s.Config.Node, "shard", s.n, "error", err)
	}
	return records, err == nil
}

// advance takes the term on, unless it has come to an end meanwhile.
func (s *coming) advance(from, to stage) bool {
	s.mu.Lock()
	defer s.unlock()
	if s.h.stage != from || s.Ended {
		return false
	}
	s.stageLocked(s.n, s.h, to)
	return true
}

// readDead learns which tasks are dead in the shard. Before that nothing may be created there. It
// reports false if the term has come to an end.
func (s *coming) readDead() bool {
	var backoff recovery.Backoff
	for attempt := 0; ; attempt++ {
		dead := gatheredDead{s: s.Engine, takes: func(int) bool { return s.h.stage == acquired }}
		err := s.Fleet.ScanDead(s.Life.Context, s.n, func(e recovery.Entry) { dead.add(s.n, e) })
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
		if s.Shards.view.Load().term(s.n).at != acquired {
			return false
		}
	}
}
