package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// SpoolShard stands for the spool where a slot names the shard that has its record. No
// ledger has so many.
const SpoolShard = math.MaxUint16

// A spool is a second ledger, on this machine, for schedules that the ledger cannot take:
// Redis is away. Its tasks are in memory like all others, and what becomes of them is
// written to the spool, until the ledger is back and has taken them over:
//
//	spooled   its record is in the spool alone; it has a number
//	moving    opUnspool is under way: the record goes to the ledger, with its number as
//	          the mark of the shard. What is to be written of the task waits for that
//	          (deferred), while it is delivered as if nothing happened
//	moved     the shard of the slot is the ledger's. The record in the spool is deleted,
//	          and if the process dies before that, the mark tells the next one to do so
//
// Only tasks without an id of their caller's are spooled: no node can know, while Redis is
// away, whether another node has a task of that name.
//
// A shard must get its tasks in order of their numbers, or the mark would say of one that
// was left behind that it was moved. So they stand in lines, one for each shard, and a
// task that cannot go yet, or that the ledger refuses, holds up those behind it.
type spool struct {
	ledger     recovery.Ledger
	successor  recovery.SpoolMarks // the ledger
	id         string              // in marks
	committer  *recovery.Committer[Write]
	ownedShard *OwnedShard   // stands for that of a shard; it is always held
	patience   time.Duration // after such a silence of the ledger, new tasks are spooled
	condition  condition
	more       chan struct{} // holds one token when a line may go on

	// Guarded by Engine.mu.
	Last    int64                 // the last number
	numbers map[uint32]int64      // by slot: of what is in the spool, or on its way into it
	Lines   map[uint64]*spoolLine // by LineOf
	targets map[uint32]uint16     // by slot: where what is being moved goes
	InDoubt []inDoubtMove
	// MovesInDoubt is how many moves have ever been in doubt.
	MovesInDoubt int
	began        time.Time // when the first of them came; zero if there are none
	scratch      []byte
}

// A spoolLine is the tasks that wait to be moved into one shard.
type spoolLine struct {
	Items   []spooled
	Moving  int           // of them
	piece   *PendingWrite // of those that were sent last, see newPiece
	Blocked bool          // by a record that this version cannot read, and must not leave behind
}

type spooled struct {
	number int64
	slot   uint32
}

const (
	// spoolSetting is the setting of the spool's ledger that holds its id, and how often
	// it was opened.
	spoolSetting = "spool"
	// runNumbers is how many numbers there are for each time that it is opened: none is
	// given twice, although none is written down by itself. 53 bits hold those of two
	// million times, and Redis can compare them.
	runNumbers = 1 << 32
	numberLen  = 8 // bytes of a number in front of a record in the spool
)

// openSpool adopts the spool, and takes up what it has kept that the ledger did not get.
// The topics must be known, and the wheel must turn.
func (s *Engine) openSpool(ctx context.Context) error {
	if s.Config.Spool == nil {
		return s.announceSpool(ctx, "")
	}
	successor, ok := s.Ledger.(recovery.SpoolMarks)
	if !ok {
		return errors.New("the ledger cannot take over what was spooled")
	}
	sp := &spool{
		ledger: s.Config.Spool, successor: successor, patience: s.Config.AnswerWithin / 4,
		more:    make(chan struct{}, 1),
		numbers: make(map[uint32]int64), Lines: make(map[uint64]*spoolLine), targets: make(map[uint32]uint16),
	}
	terms, err := sp.ledger.Adopt(ctx)
	if err != nil {
		return err
	}
	if err = sp.begin(ctx); err == nil {
		err = s.announceSpool(ctx, sp.id)
	}
	if err != nil {
		return errors.Join(err, sp.ledger.Close())
	}
	terms.Shards = 1 // all that a spool needs; ShardOf is not asked
	sp.committer = recovery.NewCommitter(recovery.CommitterConfig[Write]{
		Ledger: sp.ledger, Terms: terms, Keep: admit, Log: s.Config.Log, Patience: s.Config.AnswerWithin / PatienceShare,
		Done: func(_ int, writes []Write, err error) {
			if errors.Is(err, recovery.ErrLost) {
				s.Revoke(err)
				err = recovery.ErrClosed
			}
			s.committed(SpoolShard, writes, err)
		},
	})
	s.mu.Lock()
	sp.ownedShard = &OwnedShard{stage: active, since: s.Now(), run: rand.Uint32(), past: s.Outcomes.Count}
	s.Spool = sp
	s.unlock()
	if err := s.loadSpool(ctx); err != nil {
		return errors.Join(err, s.closeSpool(ctx))
	}
	sp.condition.ask(sp.ledger)
	return nil
}

// announceSpool tells the other nodes the id of this node's spool, before it gets a task; empty:
// there is none. Like the rest of the start, it waits for a ledger that does not answer.
func (s *Engine) announceSpool(ctx context.Context, id string) error {
	if s.Fleet == nil {
		return nil
	}
	const what = "the spool's name"
	defer s.Waits.Clear(what)
	return s.keepAsking(ctx, what, func(ctx context.Context) error { return s.Fleet.OpenSpool(ctx, id) })
}

// begin reads the spool's id, and begins new numbers.
func (sp *spool) begin(ctx context.Context) error {
	settings, ok := sp.ledger.(recovery.Settings)
	if !ok {
		return errors.New("a spool must keep settings")
	}
	value, revision, err := settings.Setting(ctx, spoolSetting)
	if err != nil {
		return err
	}
	id, opened := strings.ReplaceAll(task.NewID(), "-", ""), int64(0)
	if revision != 0 {
		var text string
		id, text, _ = strings.Cut(string(value), " ")
		if opened, err = strconv.ParseInt(text, 10, 64); err != nil {
			return fmt.Errorf("the spool's setting cannot be read: %w", err)
		}
	}
	opened++
	if _, err := settings.PutSetting(ctx, spoolSetting, revision, fmt.Appendf(nil, "%s %d", id, opened)); err != nil {
		return err
	}
	sp.id, sp.Last = id, opened*runNumbers
	return nil
}

// closeSpool comes after the last write to the ledger: its answer may be followed by a
// write to the spool.
func (s *Engine) closeSpool(ctx context.Context) error {
	if s.Spool == nil {
		return nil
	}
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Config.AnswerWithin)
	defer cancel()
	err := s.Spool.committer.Close(flush)
	if s.Fleet != nil && err == nil && s.spoolIsEmpty() {
		// Otherwise the other nodes go on to take it for possible that something is left.
		_ = s.Fleet.EmptiedSpool(flush)
	}
	return errors.Join(err, s.Spool.ledger.Close())
}

// LineOf tells in which line a task stands. In a fleet, tasks of one shard stand in one
// line, whichever node holds it.
func (s *Engine) LineOf(id []byte) uint64 {
	if s.Fleet != nil {
		shardID, _ := recovery.ShardIDOf(string(id))
		return uint64(shardID)
	}
	return uint64(s.Terms.ShardOf(id))
}

// SpoolsLocked reports whether a new task goes to the spool: only if the ledger does not answer.
// It is no reason that another node holds the task's shard: other nodes would look for the task
// there. In a fleet the id has to name the shard to which the task goes from the spool. It is one
// of this node's own, so that other nodes know from the id which node to ask; see querySpools.
func (s *Engine) SpoolsLocked(p *Plan) bool {
	if s.Spool == nil || p.Chosen {
		return false
	}
	shard := s.Terms.ShardOf([]byte(p.ID))
	h := s.OwnedLocked(shard)
	silent := s.Committer.Silent(s.Spool.patience) || h.takes() && s.ledgerSilent(shard, s.Spool.patience)
	if !p.Spool && !silent && s.Writes.condition.err() == nil && !s.Unsure() {
		return false
	}
	if s.Fleet == nil {
		return true
	}
	shardID := recovery.NewShardID(s.NodeNumber, 0)
	if h.mine() && h.ShardID.Node() == s.NodeNumber {
		shardID = h.ShardID
	}
	if told, _ := recovery.ShardIDOf(p.ID); told != shardID {
		p.ID = shardID.NewID()
	}
	p.ShardID = shardID
	return true
}

// ShardIDLocked is where a task is, or is to be when it leaves the spool.
func (s *Engine) ShardIDLocked(sl *store.Slot) recovery.ShardID {
	if sl.Shard == SpoolShard && s.Fleet != nil {
		shardID, _ := recovery.ShardIDOf(string(s.Store.ID(sl)))
		return shardID
	}
	return s.OwnedLocked(int(sl.Shard)).ShardID
}

// stalled is for how long a shard has not answered a write, or the spool.
func (s *Engine) stalled(shard int) time.Duration {
	if shard == SpoolShard {
		return s.Spool.committer.Stalled(0)
	}
	return s.Committer.Stalled(shard)
}

// ledgerSilent reports whether the ledger has not answered a shard, or any shard at all, for longer
// than d.
func (s *Engine) ledgerSilent(shard int, d time.Duration) bool {
	return s.Committer.Stalled(shard) > d || s.Committer.Silent(d)
}

// NumberLocked gives a task that is being created in the spool its number. The spool's
// only lane keeps the order.
func (sp *spool) NumberLocked(n uint32) {
	sp.Last++
	sp.numbers[n] = sp.Last
}

// enterSpoolLocked lines up a task that the spool has.
func (s *Engine) enterSpoolLocked(n uint32, sl *store.Slot) {
	sp := s.Spool
	if sp.began.IsZero() {
		sp.began = time.Now()
		s.Config.Log.Warn("the ledger does not take schedules; they are spooled on this machine", "node", s.Config.Node)
	}
	l := s.lineLocked(sl)
	l.Items = append(l.Items, spooled{sp.numbers[n], n})
}

func (s *Engine) lineLocked(sl *store.Slot) *spoolLine {
	return s.Spool.LineLocked(s.LineOf(s.Store.ID(sl)))
}

// LineLocked returns a line, which it makes if need be.
func (sp *spool) LineLocked(key uint64) *spoolLine {
	l := sp.Lines[key]
	if l == nil {
		l = new(spoolLine)
		sp.Lines[key] = l
	}
	return l
}

// leaveSpoolLocked forgets a task that is finished, or was moved.
func (s *Engine) leaveSpoolLocked(n uint32) {
	sp := s.Spool
	delete(sp.numbers, n)
	if len(sp.numbers) == 0 && !sp.began.IsZero() {
		s.Config.Log.Info("nothing is left in the spool", "node", s.Config.Node, "after", time.Since(sp.began).Round(time.Millisecond), "moved", s.Figures.Spool.Moved)
		sp.began = time.Time{}
	}
}

// submitLocked sends a write of a task to the spool. In front of the record stands its
// number.
func (sp *spool) submitLocked(c recovery.Change, w Write) {
	if c.Data != nil {
		sp.scratch = binary.BigEndian.AppendUint64(sp.scratch[:0], uint64(sp.numbers[w.slot]))
		sp.scratch = append(sp.scratch, c.Data...)
		c.Data = sp.scratch
	}
	sp.committer.Submit(0, c, w)
}

// removeLocked deletes the record of a task that the ledger has.
func (sp *spool) removeLocked(id []byte, spot recovery.Spot) {
	sp.committer.Submit(0, recovery.Change{ID: id, From: spot}, Write{op: opUnspooled})
}

// knownSpooledLocked reports whether a task is in this process's spool and is not being moved: then
// it is this process's, whichever node holds its shard.
func (s *Engine) knownSpooledLocked(id string) bool {
	n, known := s.Store.Find([]byte(id))
	if !known || s.Store.Slot(n).Shard != SpoolShard {
		return false
	}
	_, moving := s.Spool.targets[n]
	return !moving
}

// TakenBack waits for a creation, and takes it back if the ledger has not been sent it
// for so long that the spool must do. Otherwise the caller waits on.
func (s *Engine) TakenBack(ctx context.Context, p *Plan, c *PendingWrite) bool {
	if s.Spool == nil || p.Chosen || p.Spool {
		return false
	}
	patience := time.NewTimer(s.Spool.patience)
	defer patience.Stop()
	select {
	case <-c.done:
		return false
	case <-ctx.Done():
		return false
	case <-patience.C:
	}
	s.mu.Lock()
	defer s.unlock()
	if c.left == 0 || !c.Phase.CompareAndSwap(queued, withdrawn) {
		return false
	}
	c.abandoned = true
	return true
}

// otherID makes an id like one that stands for a creation which was taken back.
func otherID(id string) string {
	if shardID, ok := recovery.ShardIDOf(id); ok {
		return shardID.NewID()
	}
	return task.NewID()
}

// Spooled is how many tasks only the spool has.
func (s *Engine) Spooled() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Spool == nil {
		return 0
	}
	return len(s.Spool.numbers)
}

// describe fills in the figures of the spool as it is now, if there is one.
func (sp *spool) describe(st *task.SpoolStats) {
	if sp == nil {
		return
	}
	st.Tasks = len(sp.numbers)
	if err := sp.condition.err(); err != nil {
		st.Condition = err.Error()
	}
}

// shards returns the shards of tasks that are in the spool, and of those that may be.
func (sp *spool) shards() (shardIDs []recovery.ShardID) {
	for key, l := range sp.Lines {
		if len(l.Items) > 0 || l.Moving > 0 {
			shardIDs = append(shardIDs, recovery.ShardID(key))
		}
	}
	for i := range sp.InDoubt {
		shardID, _ := recovery.ShardIDOf(sp.InDoubt[i].ID)
		shardIDs = append(shardIDs, shardID)
	}
	slices.Sort(shardIDs)
	return slices.Compact(shardIDs)
}

// spoolIsEmpty reports whether the ledger has all tasks that were spooled here.
func (s *Engine) spoolIsEmpty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.Spool.numbers) == 0 && len(s.Spool.InDoubt) == 0
}

// KnowsSpooled reports whether all these tasks are spooled here: then they are this process's,
// whichever node holds the shards.
func (s *Engine) KnowsSpooled(ids ...string) bool {
	return !slices.ContainsFunc(ids, func(id string) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return !s.knownSpooledLocked(id)
	})
}

// IsInDoubt reports whether it is not known yet if a spooled task has been moved to a shard
// that another node has taken over meanwhile.
func (s *Engine) IsInDoubt(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Spool != nil && slices.ContainsFunc(s.Spool.InDoubt, func(x inDoubtMove) bool { return x.ID == id })
}
