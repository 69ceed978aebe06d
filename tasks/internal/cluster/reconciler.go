package cluster

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// WalkEvery is how often a page of all entries is looked through.
const WalkEvery = 10 * time.Second

func (s *Cluster) registry() engine.Registry { return engine.Registry{Engine: s.engine} }

func (s *Cluster) wakeReconciler() {
	select {
	case s.Fleet.work <- struct{}{}:
	default:
	}
}

// An indexing is how far the ids in memory are registered. It calls nothing under its mutex, which
// may be taken under Engine.mu: what came into memory before wanted has grown is in memory when the
// reconciler reads that.
type indexing struct {
	mu       sync.Mutex // guards everything below
	wanted   uint64     // how often ids have come that may not all be registered
	done     uint64     // value of wanted when all ids were last registered
	acquired int        // shards acquired since the reconciler looked last
}

func (x *indexing) read() (wanted, done uint64, acquired int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.wanted, x.done, x.acquired
}

func (x *indexing) add(wanted uint64, acquired int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.wanted, x.acquired = x.wanted+wanted, x.acquired+acquired
}

// finish reports whether ids have come since wanted was goal.
func (x *indexing) finish(goal uint64) (again bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.done = goal
	return x.wanted != goal
}

// reindex is called when ids have come into memory which may not be registered.
func (s *Cluster) reindex() {
	s.Fleet.indexing.add(1, 0)
	s.wakeReconciler()
}

// IsIndexed reports whether all ids in memory are registered that have to be, including those
// that came with shards that were acquired, as far as these have been looked at.
func (s *Cluster) IsIndexed() bool {
	wanted, done, acquired := s.Fleet.indexing.read()
	return wanted == done && acquired == 0
}

// A reconciler keeps the directory in order, as far as it is about this node's tasks.
type reconciler struct {
	*Cluster
	marked   uint64        // indexing.wanted, when MarkIndexed last recorded it
	position string        // of the walk through all entries
	walked   time.Duration // when it took its last step
	behind   bool          // its last run has failed
	since    time.Duration // behind: since when
	warned   bool          // behind: and the log has told so
}

func (s *Cluster) reconcilerLoop() {
	c := reconciler{Cluster: s}
	s.engine.Life.EveryOr(s.engine.Config.SweepEvery, s.Fleet.work, func(bool) { c.runOnce() })
}

// runOnce does the work that is due now. Work that fails stays due.
func (c *reconciler) runOnce() {
	now := c.engine.Elapsed()
	c.Fleet.recentCancels.forget(func(k recentCancel) bool { return now-k.at >= RemoveAfter })
	if c.NeverHadPeers() {
		return
	}
	var err error
	for _, step := range []func(context.Context) error{c.suspectAcquired, c.index, c.removeTombstones, c.walk} {
		err = errors.Join(err, step(c.engine.Life.Context))
	}
	if !c.engine.IsClosing() {
		c.tell(err)
	}
}

// behindAfter is how long the directory must have been behind before the log warns. While shards
// are acquired, it is for moments.
const behindAfter = 2 * time.Second

// tell logs once that the directory has been behind for long, and once that this is over.
func (c *reconciler) tell(err error) {
	log, now := c.engine.Config.Log.With("node", c.engine.Config.Node), c.engine.Elapsed()
	if !c.behind {
		c.since = now
	}
	switch {
	case err == nil && c.warned:
		log.Info("the directory of ids is up to date again", "after", (now - c.since).Round(time.Millisecond))
		c.warned = false
	case err != nil && !c.warned && now-c.since >= behindAfter:
		log.Warn("the directory of ids cannot be brought up to date", "for", (now - c.since).Round(time.Millisecond), "error", err)
		c.warned = true
	case err != nil && !c.behind:
		log.Debug("the directory of ids is not up to date yet", "error", err)
	}
	c.behind = err != nil
}

// suspectAcquired has all ids registered anew if shards were acquired while some node had not
// registered all of its own: the shards may have been that node's.
func (c *reconciler) suspectAcquired(ctx context.Context) error {
	_, _, acquired := c.Fleet.indexing.read()
	if acquired == 0 {
		return nil
	}
	nodes, err := c.Fleet.ledger.Peers(ctx)
	if err != nil {
		return err
	}
	var more uint64
	if slices.ContainsFunc(nodes, func(n recovery.Node) bool { return !n.Self && !n.Indexed }) {
		more = 1
	}
	c.Fleet.indexing.add(more, -acquired)
	return nil
}

// index registers all ids that have to be, and then says so.
func (c *reconciler) index(ctx context.Context) error {
	goal, done, _ := c.Fleet.indexing.read()
	if goal == done {
		return nil
	}
	if c.marked != goal {
		if err := c.Fleet.ledger.MarkIndexed(ctx, false); err != nil {
			return err
		}
		c.marked = goal
	}
	if !c.engine.IsReplayed() || c.engine.Restoring() {
		return nil
	}
	registered, err := c.registerMemory(ctx)
	if err == nil {
		var dead int
		dead, err = c.registerDead(ctx)
		registered += dead
	}
	if err == nil {
		err = c.Fleet.ledger.MarkIndexed(ctx, true)
	}
	if err != nil {
		return err
	}
	if c.Fleet.indexing.finish(goal) {
		c.wakeReconciler()
	}
	c.engine.Config.Log.Info("all ids that callers have chosen are registered", "node", c.engine.Config.Node, "registered", registered)
	return nil
}

// registerMemory registers the ids of the tasks in memory. Later ids are registered before.
func (c *reconciler) registerMemory(ctx context.Context) (registered int, err error) {
	for from, over := uint32(0), false; !over; {
		changes, next := c.registry().Some(from)
		if err := c.assert(ctx, changes); err != nil {
			return registered, err
		}
		registered += len(changes)
		from, over = next, next == 0
	}
	return registered, nil
}

// registerDead registers the ids of the dead, some at a time.
func (c *reconciler) registerDead(ctx context.Context) (registered int, err error) {
	changes := make([]recovery.DirectoryUpdate, 0, UpdatesAtOnce)
	file := func() {
		err = c.assert(ctx, changes)
		if err == nil {
			registered += len(changes)
		}
		changes = changes[:0]
	}
	listed := c.engine.Ledger.ListDead(ctx, "", recovery.Ref{}, func(e recovery.Entry) bool {
		if change, ok := c.registry().Dead(e); ok {
			changes = append(changes, change)
		}
		if len(changes) == UpdatesAtOnce {
			file()
		}
		return err == nil
	})
	if err = errors.Join(err, listed); err == nil && len(changes) > 0 {
		file()
	}
	return registered, err
}

// assert registers ids of tasks that exist. One that is registered already, under whatever shard,
// stays so: if that is another node's, both have created the task, which is possible only
// after the directory has lost something. See reportConflict.
func (s *Cluster) assert(ctx context.Context, changes []recovery.DirectoryUpdate) error {
	for part := range slices.Chunk(changes, UpdatesAtOnce) {
		now, err := s.Fleet.ledger.Update(ctx, part)
		if err != nil {
			return err
		}
		for i, f := range now {
			if f.ShardID != part[i].New.ShardID {
				s.reportConflict(ctx, part[i], f)
			}
		}
		if !s.engine.Breathe() {
			return task.ErrClosed
		}
	}
	return nil
}

// removeTombstones removes the entries of tasks that are long gone. It waits while tasks are read
// into memory, which may be those of such ids.
func (c *reconciler) removeTombstones(ctx context.Context) error {
	for !c.engine.IsClosing() && c.engine.IsReplayed() {
		due := c.Fleet.tombstones.take(c.engine.Elapsed())
		if len(due) == 0 {
			return nil
		}
		changes := c.Gone(due)
		if len(changes) == 0 {
			continue
		}
		if _, err := c.Fleet.ledger.Update(ctx, changes); err != nil {
			c.Fleet.tombstones.push(due...)
			return err
		}
	}
	return nil
}

// Gone returns the changes that remove entries whose ids are not known. A task that
// is created with such an id later has another nonce. Of an id that comes more than once,
// as one does that was used again, the last entry has taken the place of the others.
func (s *Cluster) Gone(ls []Tombstone) []recovery.DirectoryUpdate {
	changes := make([]recovery.DirectoryUpdate, 0, len(ls))
	seen := make(map[string]bool, len(ls))
	for _, l := range slices.Backward(ls) {
		if seen[l.ID] {
			continue
		}
		seen[l.ID] = true
		changes = append(changes, recovery.DirectoryUpdate{ID: l.ID, Old: l.Entry})
	}
	return s.registry().Orphans(changes)
}

// walk looks through a page of the directory, and removes entries under shards that are held
// here and that belong to no task: of ids that were registered by a process that ended before it
// created their tasks, or after it had finished them. Entries under shards that no node will
// hold again are removed as well, by any node.
func (c *reconciler) walk(ctx context.Context) error {
	scanner, ok := c.engine.Ledger.(recovery.DirectoryScanner)
	if !ok || !c.engine.IsReplayed() || c.engine.Elapsed()-c.walked < WalkEvery {
		return nil
	}
	c.walked = c.engine.Elapsed()
	var page []Tombstone
	next, err := scanner.ScanDirectory(ctx, c.position, func(id string, f recovery.DirectoryEntry) {
		page = append(page, Tombstone{ID: id, Entry: f})
	})
	if err != nil {
		return err
	}
	changes := c.forgotten(append(c.Gone(page), c.ofRetired(ctx, page)...))
	if len(changes) > 0 && c.engine.IsReplayed() {
		if _, err := c.Fleet.ledger.Update(ctx, changes); err != nil {
			return err
		}
	}
	c.position = next
	return nil
}

// forgotten returns those of some changes that remove entries of tasks whose end this node does not
// remember. Others may be those of tombstones that have their time yet. The changes were found
// before: a task that has ended since was in memory then.
func (c *reconciler) forgotten(changes []recovery.DirectoryUpdate) (rest []recovery.DirectoryUpdate) {
	ids := make([]string, len(changes))
	for i := range changes {
		ids[i] = changes[i].ID
	}
	for i, past := range c.engine.Endings(ids) {
		if past.Kind == 0 {
			rest = append(rest, changes[i])
		}
	}
	return rest
}
