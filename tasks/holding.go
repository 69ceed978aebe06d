package tasks

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// A holding is one tenure of one shard: from gaining it until memory has forgotten it.
// A slot's shard is the tenure's number in Scheduler.holdings. With a ledger that is no
// recovery.Fleet there are as many as it has shards, held from the beginning to the end.
// Guarded by Scheduler.mu.
type holding struct {
	home  recovery.Home // 0 if the ledger is no Fleet
	stage stage
	since int64  // when this process began to hold it, Unix ms by the wall clock
	run   uint32 // random: tells deliveries of this tenure from earlier ones
	past  uint64 // of the outcomes, how many are older: they say nothing of its tasks

	rewinds   int   // losses of its storage that are being made good
	yielding  bool  // the ledger is changing its owner
	told      error // meanwhile, that it is lost
	returning bool  // a hand-over that did not come off is being taken back
	lost      bool  // it was not yielded
	dropped   int   // of its tasks
	// dead holds its dead, as in deadIndex.ids, with the numbers of their topics; nil
	// if the ledger is no Fleet.
	dead map[uint64]uint32
	read chan struct{} // closed when it is not being read into memory any more
	gone chan struct{} // closed when memory knows nothing of it any more
}

// A stage is how far a tenure has come.
//
//	from                    event                         to
//	none                    Watcher.Gained                gained
//	gained                  the former tenure is gone,
//	                        and it is known who is dead   reading
//	reading                 all records are in memory     held
//	held                    another node asks for it      leaving
//	leaving                 the yield did not come off    held
//	leaving                 yielded                       dropping
//	any                     lost                          dropping
//	dropping                none of its tasks is left     none: Forget
type stage uint8

const (
	gained   stage = iota + 1 // nothing of it may be in memory yet, and nothing is written
	reading                   // tasks come in from the ledger, and from callers
	held                      // memory knows every task of it
	leaving                   // nothing new is begun
	dropping                  // it is another node's
)

// takes tells that tasks of the shard may come into memory.
func (h *holding) takes() bool { return h != nil && (h.stage == reading || h.stage == held) }

// mine tells that the shard is this process's, as far as it knows.
func (h *holding) mine() bool { return h != nil && h.stage != dropping }

// Why a shard does not take what a caller wants. All are ErrUnavailable.
var (
	errNotHeld    = fmt.Errorf("%w: its shard is not held by this node at the moment", ErrNodeAway)
	errHandedOver = fmt.Errorf("%w: its shard is being handed over to another node", ErrNodeAway)
	errUnsure     = fmt.Errorf("%w: this node may have lost what it held", ErrUnavailable)
)

// numbered is the number of this node in the homes of its own shards.
func (s *Scheduler) numbered() uint16 {
	switch {
	case s.fleet == nil:
		return 0
	case len(s.terms.Away) > 0: // others may hold all that are its own
		return s.terms.Away[0].Node()
	}
	return s.fleet.Home(0).Node()
}

// holdAdopted enters the shards that the ledger has granted from the beginning.
func (s *Scheduler) holdAdopted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range s.terms.Shards {
		h := s.holdingLocked(n)
		if h != nil {
			continue // lost already
		}
		h = s.enterHoldingLocked(n)
		s.stageLocked(h, held)
		close(h.read) // the first replay is not about a single shard
	}
	s.granted = true
}

// enterHoldingLocked begins a tenure.
func (s *Scheduler) enterHoldingLocked(n int) *holding {
	h := &holding{
		since: s.now(), run: rand.Uint32(), past: s.outcomes.count,
		read: make(chan struct{}), gone: make(chan struct{}),
	}
	s.stageLocked(h, gained)
	if s.fleet != nil {
		h.home, h.dead = s.fleet.Home(n), make(map[uint64]uint32)
	}
	for len(s.holdings) <= n {
		s.holdings = append(s.holdings, nil)
	}
	s.holdings[n] = h
	return h
}

// holdingLocked returns the tenure with a number, or what stands for one where a task is
// spooled; nil if there is none.
func (s *Scheduler) holdingLocked(shard int) *holding {
	if shard == spoolShard && s.spool != nil {
		return s.spool.holding
	}
	if shard < 0 || shard >= len(s.holdings) {
		return nil
	}
	return s.holdings[shard]
}

// tenureLocked finds the number under which this process holds a shard, leaving or not;
// -1 if it does not.
func (s *Scheduler) tenureLocked(home recovery.Home) int {
	for n, h := range s.holdings {
		if h.mine() && h.home == home {
			return n
		}
	}
	return -1
}

// unsure tells that others may have taken over what this process believes to hold.
func (s *Scheduler) unsure() bool { return s.fleet != nil && !s.fleet.Standing().Certain }

// gaining tells that the ledger has taken shards of which memory knows nothing yet.
func (s *Scheduler) gaining() bool { return s.fleet != nil && s.fleet.Standing().Gaining }

// errGaining is answered meanwhile to who asks whether something exists. It is passing.
var errGaining = fmt.Errorf("%w: another one is being taken over", errNotHeld)

// stageLocked takes a tenure to another stage.
func (s *Scheduler) stageLocked(h *holding, to stage) {
	idle := func(at stage) bool { return at == leaving || at == dropping }
	comes := func(at stage) bool { return at == gained || at == reading }
	from := h.stage
	h.stage = to
	if s.shared != nil {
		defer s.rehomeLocked()
	}
	switch {
	case idle(from) && !idle(to):
		s.leaving--
	case !idle(from) && idle(to):
		s.leaving++
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

// tenureCounts are what has become of shards since Open.
type tenureCounts struct {
	gained, yielded, lost int64 // shards
	forgotten             int   // tenures whose numbers may stand for others since
	dropped               int64 // tasks that have left memory with their shards
	doubtful              int64 // deliveries whose shards were lost
	unsure                int64 // deliveries that were begun while others may have held the shard
}

// gained is told by the ledger that this process holds a shard from now on.
func (s *Scheduler) gained(n int, yielded bool) {
	s.mu.Lock()
	defer s.unlock()
	if s.ended || s.holdingLocked(n) != nil {
		return // told twice
	}
	home := s.fleet.Home(n)
	var former []*holding
	for other, h := range s.holdings {
		if h != nil && h.home == home {
			s.loseLocked(other, h, errNotHeld) // unless it is known
			former = append(former, h)
		}
	}
	h := s.enterHoldingLocked(n)
	if yielded {
		h.since = math.MinInt64 // a node has held it all the time: nothing is misfired
	}
	s.tenures.gained++
	if s.shared != nil {
		s.shared.gained++
		s.wakeReconciler()
	}
	s.background.Go(func() { s.receive(n, h, former) })
}

// receive reads a shard that was gained into memory.
func (s *Scheduler) receive(n int, h *holding, former []*holding) {
	defer close(h.read)
	began := s.elapsed()
	waits := []<-chan struct{}{s.opened}
	for _, f := range former {
		waits = append(waits, f.gone) // else its tasks would be taken for those of the new tenure
	}
	if !s.outlast(waits...) {
		return
	}
	s.committer.Open(n)
	if !s.readDead(n, h) || !s.advance(h, gained, reading) {
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
	if !s.advance(h, reading, held) {
		return
	}
	s.cfg.Log.Info("a shard was taken over", "node", s.cfg.Node, "shard", n, "read", records, "took", (s.elapsed() - began).Round(time.Millisecond))
}

// advance takes a tenure on, unless it has come to an end meanwhile.
func (s *Scheduler) advance(h *holding, from, to stage) bool {
	s.mu.Lock()
	defer s.unlock()
	if h.stage != from || s.ended {
		return false
	}
	s.stageLocked(h, to)
	if to == held {
		delete(s.missing, h.home)
	}
	return true
}

// readDead learns which tasks are dead in a shard. Before that nothing may be created there. It
// reports false if the tenure has come to an end.
func (s *Scheduler) readDead(n int, h *holding) bool {
	var backoff recovery.Backoff
	for attempt := 0; ; attempt++ {
		err := s.fleet.ScanDead(s.ctx, n, func(e recovery.Entry) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if h.stage == gained {
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
		over := h.stage != gained
		s.mu.Unlock()
		if over {
			return false
		}
	}
}

// outlast waits until all of these are closed. It reports false if the process ends before,
// also because Open has failed.
func (s *Scheduler) outlast(all ...<-chan struct{}) bool {
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
