package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

const (
	drainPause = 50 * time.Millisecond // between two rounds of Drain in which something was left
	// DrainPatience is for how long no node may take anything before Drain gives up, be it
	// from the spool or a shard.
	DrainPatience = 15 * time.Second
)

// A draining is the progress of a drain that a call of DrainNode has begun.
type draining struct {
	Done chan struct{} // closed when this node was drained because DrainNode was called

	mu     sync.Mutex // guards everything below
	itself bool       // this node drains itself, since DrainNode was called
	failed int        // how often the drain has failed
	fault  string     // why it failed the last time
}

func (d *draining) isUnderWay() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.itself
}

// begin reports false if a drain is under way.
func (d *draining) begin() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	begins := !d.itself
	d.itself = true
	return begins
}

func (d *draining) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.itself = false
	d.failed++
	d.fault = task.Cut(err.Error(), task.MaxReason)
}

// failures returns how often the drain has failed, and why it did so last.
func (d *draining) failures() (n int, fault string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed, d.fault
}

// emptySpool waits until the ledger has all spooled tasks. It comes before the shards go: spooled
// tasks can only be moved into shards that are held.
func (s *Cluster) emptySpool(ctx context.Context) error {
	least, since := math.MaxInt, s.engine.Elapsed()
	for {
		left := s.engine.Spooled()
		switch {
		case left == 0:
			return nil
		case left < least:
			least, since = left, s.engine.Elapsed()
		case s.engine.Elapsed()-since > DrainPatience:
			return task.KindOf(task.ErrUnavailable, fmt.Sprintf("%d tasks are only in the spool of this node", left))
		}
		if err := s.engine.RestWithin(ctx, drainPause); err != nil {
			return fmt.Errorf("%d tasks are only in the spool of this node: %w", left, err)
		}
	}
}

// handAllOver goes on until no shard is left, and other nodes have all of them in memory.
func (s *Cluster) handAllOver(ctx context.Context) error {
	moved := s.engine.Elapsed()
	othersLeave := false // all other nodes were being drained, and may have ended since
	given := make(givenShards)
	for {
		s.confirm(ctx, given)
		shardIDs, unread, leaving := s.engine.OwnedShards()
		if len(shardIDs)+unread+leaving+len(given) == 0 {
			return nil
		}
		successors, err := s.successors(ctx)
		for _, shardID := range shardIDs {
			if len(successors) == 0 {
				break
			}
			var took bool
			if took, err = s.offerShard(ctx, shardID, successors, given); took {
				moved = s.engine.Elapsed()
			}
		}
		othersLeave = othersLeave || errors.Is(err, errOthersLeave)
		pause := drainPause
		switch {
		case len(shardIDs) > 0 && len(successors) == 0 && othersLeave:
			return fmt.Errorf("%d shards are left: %w", len(shardIDs)+unread, err)
		case len(shardIDs) > 0 && s.engine.Elapsed()-moved > DrainPatience:
			return fmt.Errorf("%w: %d shards are left: %w", task.ErrNoSuccessor, len(shardIDs)+unread, err)
		case len(shardIDs) == 0:
			moved = s.engine.Elapsed() // no node could take anything
			if unread == 0 {
				pause = engine.BusyPause // they are leaving memory
			}
		}
		if err := s.engine.RestWithin(ctx, pause); errors.Is(err, task.ErrClosed) {
			return err
		} else if err != nil {
			st := s.engine.NodeStatus()
			return fmt.Errorf("%d shards with %d tasks are left, and %d were given to nodes that have not said that they have them: %w",
				len(shardIDs)+unread+leaving, st.Pending+st.Ready+st.Delivering, len(given), context.Cause(ctx))
		}
	}
}

// givenShards are shards that were transferred while their next owner could not say that it has
// them in memory.
type givenShards map[recovery.ShardID]givenShard

// A givenShard says which node a shard was given to, and when.
type givenShard struct {
	to    string
	since time.Duration // on the monotonic clock
}

// confirm asks the next owners of shards whether they have them in memory. It gives up after
// DrainPatience: then the next owner is dead, and the ledger alone has the shard.
func (s *Cluster) confirm(ctx context.Context, given givenShards) {
	for shardID, g := range given {
		one, cancel := s.engine.Within(ctx)
		err := s.peerCalls.CallOfferShard(one, g.to, shardID)
		cancel()
		switch {
		case err == nil:
			delete(given, shardID)
		case s.engine.Elapsed()-g.since > DrainPatience:
			delete(given, shardID)
			s.engine.Config.Log.Warn("a shard was transferred, and its next owner does not say that it has it", "node", s.engine.Config.Node, "to", g.to, "shard", shardID, "error", err)
		}
	}
}

// A successor is a node that may take shards.
type successor struct {
	name   string
	shards int // that it holds
	failed int // how often it has not taken one
}

// successors lists the other nodes that live and are not being drained.
func (s *Cluster) successors(ctx context.Context) ([]*successor, error) {
	if s.peerCalls.CallOfferShard == nil {
		return nil, fmt.Errorf("%w: the ledger is not shared with other nodes", task.ErrNoSuccessor)
	}
	nodes, err := s.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	var all []*successor
	draining := false
	for i := range nodes {
		n := &nodes[i]
		draining = draining || !n.Self && n.Live && n.Status != nil && n.Status.Draining
		if !n.Self && n.Live && !n.Released && (n.Status == nil || !n.Status.Draining) {
			all = append(all, &successor{name: n.Name, shards: n.Held + n.Adopted})
		}
	}
	switch {
	case len(all) == 0 && draining:
		return nil, errOthersLeave
	case len(all) == 0:
		return nil, fmt.Errorf("%w: no other node lives, or all are being drained", task.ErrNoSuccessor)
	}
	return all, nil
}

// errOthersLeave: all nodes end at the same time, and waiting for a successor is in vain.
var errOthersLeave = fmt.Errorf("%w: all other nodes are being drained as well", task.ErrNoSuccessor)

// offerShard has one of the successors take a shard: the successor that holds the fewest is asked
// first, but one that has not taken a shard comes last. It may be dead, and each call costs the
// time in which all of the others could have taken theirs. A shard that was transferred without
// the word of its next owner is entered in given.
func (s *Cluster) offerShard(ctx context.Context, shardID recovery.ShardID, successors []*successor, given givenShards) (took bool, err error) {
	slices.SortStableFunc(successors, func(a, b *successor) int {
		return cmp.Or(a.failed-b.failed, a.shards-b.shards)
	})
	for _, to := range successors {
		failed := s.offerTo(ctx, shardID, to.name)
		if failed == nil {
			to.shards++
			return true, nil
		}
		to.failed++
		err = errors.Join(err, fmt.Errorf("node %s: %w", to.name, failed))
		if !s.engine.Holds(shardID) {
			given[shardID] = givenShard{to.name, s.engine.Elapsed()} // it could not say so
			return true, nil
		}
	}
	return false, err
}

// offerTo offers a shard to a node, as often as the node says that it is taking it.
func (s *Cluster) offerTo(ctx context.Context, shardID recovery.ShardID, to string) error {
	for {
		one, cancel := s.engine.Within(ctx)
		err := s.peerCalls.CallOfferShard(one, to, shardID)
		cancel()
		if !errors.Is(err, engine.ErrHandingOver) || !s.engine.Holds(shardID) {
			return err
		}
		if rest := s.engine.RestWithin(ctx, engine.BusyPause); rest != nil {
			return rest
		}
	}
}

// awaitDetached waits until the handlers whose tasks other nodes hold have returned, and
// those nodes know their verdicts.
func (s *Cluster) awaitDetached(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.engine.Config.Grace)
	defer cancel()
	for s.engine.HasDetached() || s.Forward.ToOwners() > 0 { // these have come from those
		if err := s.engine.RestWithin(ctx, drainPause/10); errors.Is(err, task.ErrClosed) {
			return err
		} else if err != nil {
			return nil // their verdicts are lost, and their tasks are delivered again elsewhere
		}
	}
	return nil
}

// AcceptOffer fetches a shard from a node that wants to be rid of it. Errors: ErrDraining,
// ErrOverloaded, ErrUnavailable, ErrClosed, or why the other one does not release it.
func (s *Cluster) AcceptOffer(ctx context.Context, shardID recovery.ShardID, from string) error {
	if s.engine.Holds(shardID) && !s.engine.IsClosing() {
		return s.engine.AwaitShard(ctx, shardID)
	}
	if err := s.engine.TakesShards(); err != nil {
		return err
	}
	return s.Fetch(ctx, from, shardID)
}

// DrainNode is tasks.Scheduler.Drain.
func (s *Cluster) DrainNode(ctx context.Context) error {
	if _, err := s.successors(ctx); err != nil {
		return err
	}
	s.missing.end() // first, so that none is asked for any more
	if err := s.engine.BeginDrain(); err != nil {
		return err
	}
	s.engine.Config.Log.Info("this node is being drained", "node", s.engine.Config.Node)
	if err := s.emptySpool(ctx); err != nil {
		return err
	}
	if err := s.handAllOver(ctx); err != nil {
		return err
	}
	s.engine.Config.Log.Info("this node is drained", "node", s.engine.Config.Node)
	return s.awaitDetached(ctx)
}

// DrainMethod has a node drain itself.
var DrainMethod = Method[DrainQuery, drainReply]{Name: "drain"}

type (
	// A DrainQuery has a node drain itself.
	DrainQuery struct{}
	drainReply struct{}
)

func (s *Cluster) handleDrain(ctx context.Context, _ string, _ DrainQuery) (drainReply, error) {
	return drainReply{}, s.BeginDrain(ctx)
}

// BeginDrain begins to drain this node, unless that has begun.
func (s *Cluster) BeginDrain(ctx context.Context) error {
	if s.Drain.isUnderWay() {
		return nil
	}
	if _, err := s.successors(ctx); err != nil {
		return err
	}
	if s.engine.IsClosing() || s.Drain.begin() && !s.engine.Life.Go(s.drainItself) {
		return task.ErrClosed
	}
	return nil
}

// drainItself drains this node because a caller has asked for it.
func (s *Cluster) drainItself() {
	switch err := s.DrainNode(s.engine.Life.Context); {
	case err == nil:
		close(s.Drain.Done)
	case errors.Is(err, task.ErrClosed):
	default:
		s.engine.Config.Log.Error("drain failed; no new tasks until a restart or another drain", "node", s.engine.Config.Node, "error", err)
		s.Drain.fail(err)
	}
}
