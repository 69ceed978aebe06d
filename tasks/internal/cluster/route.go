package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/relay"
	"github.com/lapsehq/lapse/tasks/task"
)

// A lookupStage is one way to find a task among the nodes. The cheapest comes first. Only the
// answer of the last stage is final: a task that an earlier stage has found may have left since,
// and an id may name a shard by chance.
type lookupStage uint8

const (
	byMemory    lookupStage = iota // this process has the task in memory, or among its dead
	byID                           // the id tells its shard, which a node holds
	byDirectory                    // the id is registered; or this node is alone and has every task
)

// A Location is where a task is, or would be if it existed.
type Location struct {
	Node    string           // empty: here
	shardID recovery.ShardID // 0: the node is known to have the task
	stage   lookupStage
}

func remembered(err error) bool {
	return errors.Is(err, engine.ErrFinished) || errors.Is(err, engine.ErrCancelled)
}

// locate returns the holder of a shard.
func (s *Cluster) locate(ctx context.Context, shardID recovery.ShardID, anew bool) (recovery.Holder, error) {
	h, err := s.Fleet.ledger.Locate(ctx, shardID, anew)
	if err != nil {
		return h, lookupFailed(ctx, err)
	}
	return h, nil
}

// errNoTime is why a look-up failed that ran out of time. It is passing: an earlier attempt tells
// better why there is no answer.
var errNoTime = task.KindOf(task.ErrUnavailable, "no time left to look up the node of the task")

// lookupFailed returns why a look-up in the ledger has failed.
func lookupFailed(ctx context.Context, err error) error {
	// A connection may notice the deadline before ctx does.
	deadline, ok := ctx.Deadline()
	if ctx.Err() != nil || ok && !time.Now().Before(deadline) {
		return fmt.Errorf("%w: %w", errNoTime, err)
	}
	return unavailable(err)
}

// errOwnerLost is answered while the ledger has lost which node owns a task: no node can say then
// that there is none. It is passing, as the owners write it again with their heartbeats.
var errOwnerLost = task.KindOf(task.ErrNodeAway, "the ledger has lost which node owns the task; retry")

// reasonOf returns why attempts have failed so far: the last error, unless that one says only that
// the time ran out. before is the reason until then; nil with the first attempt.
func reasonOf(before, last error) error {
	if before != nil && errors.Is(last, errNoTime) {
		return before
	}
	return last
}

// Knows reports whether a task is in memory, or among the dead of a shard that is held.
func (s *Cluster) Knows(id string) bool {
	known, buried := s.engine.Knows(id)
	return known && !(buried && s.isConflict(id))
}

// locateTask finds where a task is, beginning with a lookup stage. anew mistrusts
// what was learned before. Errors: ErrNotFound when it is nowhere, ErrUnavailable.
func (s *Cluster) locateTask(ctx context.Context, id string, from lookupStage, anew bool) (Location, error) {
	if from == byMemory && s.Knows(id) {
		return Location{stage: byMemory}, nil
	}
	if from <= byID {
		if shardID, tells := recovery.ShardIDOf(id); tells {
			h, err := s.locate(ctx, shardID, anew)
			if err != nil {
				return Location{}, err
			}
			if h.Node != "" {
				return s.at(byID, shardID, h)
			}
		}
	}
	if s.NeverHadPeers() {
		return Location{stage: byDirectory}, s.querySpools(ctx, []string{id})[0].err
	}
	return s.locateInDirectory(ctx, id, anew)
}

// at is the place of a shard, if its holder can be asked.
func (s *Cluster) at(c lookupStage, shardID recovery.ShardID, h recovery.Holder) (Location, error) {
	switch {
	case h.Shard >= 0:
		return Location{shardID: shardID, stage: c}, nil
	case h.Node == s.Fleet.node:
		return Location{}, engine.ErrNotHeld // it is just coming or going
	case !h.Live:
		return Location{}, task.KindOf(errOwnerSilent, "node "+h.Node+" sends no heartbeat")
	}
	return Location{Node: h.Node, shardID: shardID, stage: c}, nil
}

// locateShard finds where the tasks of a shard are. Errors: as of locateTask.
func (s *Cluster) locateShard(ctx context.Context, shardID recovery.ShardID, anew bool) (Location, error) {
	h, err := s.locate(ctx, shardID, anew)
	switch {
	case err != nil:
		return Location{}, err
	case h.Node == "":
		return Location{}, task.ErrNotFound // nothing was left there
	}
	return s.at(byDirectory, shardID, h)
}

// locateInDirectory looks up an id that does not name its shard.
func (s *Cluster) locateInDirectory(ctx context.Context, id string, anew bool) (Location, error) {
	dirEntries, err := s.Fleet.ledger.Lookup(ctx, []string{id})
	if err != nil {
		return Location{}, lookupFailed(ctx, err)
	}
	if shardID := dirEntries[0].ShardID; shardID != 0 {
		if node := s.lostFromDirectory(ctx, id); node != "" {
			return Location{Node: node, stage: byDirectory}, nil
		}
		return s.locateShard(ctx, shardID, anew)
	}
	has, err := s.queryUnindexed(ctx, []string{id})
	if err == nil && has[0] == "" {
		spooled := s.querySpools(ctx, []string{id})[0]
		has[0], err = spooled.node, spooled.err
	}
	switch {
	case err != nil:
		return Location{}, err
	case has[0] != "":
		return Location{Node: has[0], stage: byDirectory}, nil
	case !s.IsIndexed():
		return Location{stage: byDirectory}, nil
	}
	return Location{}, task.ErrNotFound
}

// Routed does something with one task: here, or by a call to the node that holds its shard. It also
// returns where the task was.
func Routed[Q, A any](ctx context.Context, s *Cluster, id string, m Method[Q, A], q func(recovery.ShardID) Q, here func(context.Context) (A, error)) (A, Location, error) {
	if s.Knows(id) { // as most are, which costs no allocation then
		if a, err := here(ctx); !errors.Is(err, task.ErrNotFound) && !passing(err) {
			return a, Location{}, err
		}
	}
	var a A
	one := []item{{id: id}}
	p := &one[0]
	s.each(ctx, one, func([]*item) {
		a, p.err = here(ctx)
	}, func(node string, _ []*item) {
		a, p.err = callHolder(ctx, s, node, m, q(p.at.shardID))
	})
	return a, p.at, p.err
}

// callHolder is Call. A call that writes nothing gets at most half of the time that is left: the
// holder may have died, and another node may hold the shard then.
func callHolder[Q, A any](ctx context.Context, s *Cluster, node string, m Method[Q, A], q Q) (A, error) {
	if !m.writes {
		var cancel context.CancelFunc
		ctx, cancel = halfOf(ctx)
		defer cancel()
	}
	return Call(ctx, s, node, m, q)
}

// halfOf bounds a context by half of the time that is left of it.
func halfOf(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, max(time.Until(deadline)/2, time.Millisecond))
}

// passing reports whether a task must be looked for again: its shard is changing hands or is being
// read, or there was no time to look. Nothing was done with the task then.
func passing(err error) bool {
	if errors.Is(err, relay.ErrNotTaken) {
		return false // nor would the next message be taken
	}
	for _, e := range []error{errNotMine, engine.ErrNotHeld, engine.ErrHandedOver, errOwnerSilent, errOwnerLost, errNoTime, task.ErrReplaying, relay.ErrUnheard} {
		if errors.Is(err, e) {
			return true
		}
	}
	return errors.Is(err, relay.ErrNoAnswer) && errors.Is(err, task.ErrUnavailable)
}

// silent reports whether a call has failed because the other node did not answer it in time.
func silent(err error) bool {
	return errors.Is(err, relay.ErrUnheard) || errors.Is(err, relay.ErrNoAnswer)
}

// errChangingOwner is returned when the time has passed in which the new owner could be found.
var errChangingOwner = task.KindOf(task.ErrNodeAway, engine.ErrNotHeld.Error())

// final returns what the caller gets if a passing error remains when its time is over.
func final(err error) error {
	if errors.Is(err, task.ErrUnavailable) || errors.Is(err, task.ErrReplaying) {
		return err
	}
	return fmt.Errorf("%w (%w)", errChangingOwner, err)
}

const (
	// The pause between two attempts to find the holder of a shard: at first, and at most.
	firstPause, longestPause = 2 * time.Millisecond, 100 * time.Millisecond
)

// pause waits before another attempt. It reports false when there is no time for one.
func (s *Cluster) pause(ctx context.Context, tries int) bool {
	d := min(firstPause<<min(tries, 10), longestPause)
	d = d/2 + rand.N(d)
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= d {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-s.engine.Life.Closing:
	}
	return false
}
