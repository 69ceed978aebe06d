package tasks

import (
	"context"
	"errors"
	"slices"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// The methods about single tasks, and what a node replies for those that it owns.
var (
	getMethod      = method[idQuery, Task]{name: "get"}
	cancelMethod   = method[idQuery, struct{}]{name: "cancel", writes: true}
	fireMethod     = method[idQuery, Task]{name: "fire", writes: true}
	moveMethod     = method[moveQuery, Task]{name: "move", writes: true}
	scheduleMethod = method[requestQuery, Task]{name: "schedule", writes: true}
	replaceMethod  = method[requestQuery, Task]{name: "replace", writes: true}
	batchMethod    = method[batchQuery, batchReply]{name: "batch", writes: true}
	hasMethod      = method[hasQuery, hasReply]{name: "has"}
)

// methodHandlers returns the handlers of all methods, by the name of the method.
func methodHandlers() map[string]rpcHandler {
	table := make(map[string]rpcHandler)
	add := func(name string, serve rpcHandler) { table[name] = serve }
	add(handle(getMethod, (*cluster).handleGet))
	add(handle(cancelMethod, (*cluster).handleCancel))
	add(handle(fireMethod, (*cluster).handleFire))
	add(handle(moveMethod, (*cluster).handleMove))
	add(handle(scheduleMethod, (*cluster).handleSchedule))
	add(handle(replaceMethod, (*cluster).handleReplace))
	add(handle(batchMethod, (*cluster).handleBatch))
	add(handle(settleMethod, (*cluster).handleSettle))
	add(handle(returnMethod, (*cluster).handleReturn))
	add(handle(hasMethod, (*cluster).handleHas))
	add(handle(releaseMethod, (*cluster).handleRelease))
	add(handle(offerShardMethod, (*cluster).handleOfferShard))
	add(handle(drainMethod, (*cluster).handleDrain))
	add(handle(reserveMethod, (*cluster).handleReserve))
	add(handle(demandsMethod, (*cluster).handleDemands))
	add(handle(offerMethod, (*cluster).handleOffer))
	add(handle(backlogMethod, (*cluster).handleBacklog))
	add(handle(offloadMethod, (*cluster).handleOffload))
	add(handle(outcomesMethod, (*cluster).handleOutcomes))
	add(handleAll(listMethod, (*cluster).listHere))
	add(handleAll(usedMethod, (*cluster).usedHere))
	add(handleAll(purgeMethod, (*cluster).purgeHere))
	add(handleAll(redriveMethod, (*cluster).redriveHere))
	return table
}

type (
	// An idQuery is about one task. The caller believes that it is kept at that shard; 0 if
	// it knows only that this node has it.
	idQuery struct {
		ID    string
		Home  recovery.Home
		Terms *wireTerms `json:",omitempty"`
	}
	moveQuery struct {
		idQuery
		Move Move
	}
	// A requestQuery asks for a task. It belongs to that shard; 0 if the caller knows only
	// that the node has the id.
	requestQuery struct {
		Request Request
		Home    recovery.Home
		Terms   *wireTerms `json:",omitempty"` // not in a batch, which has its own
	}
	batchQuery struct {
		Requests []requestQuery
		Terms    *wireTerms `json:",omitempty"`
	}
	batchReply struct{ Results []wireResult }
	wireResult struct {
		ID    string
		Fault *wireError `json:",omitempty"`
	}
	// A hasQuery asks which of the ids a node has, filed or not.
	hasQuery struct{ IDs []string }
	hasReply struct{ Has []bool }
)

// aboutID makes an idQuery of a shard.
func aboutID(ctx context.Context, id string) func(recovery.Home) idQuery {
	return func(shardID recovery.Home) idQuery { return idQuery{id, shardID, encodeTerms(ctx)} }
}

// Deadlines travel in UTC: the offset of another zone loses its seconds on the way, so
// that the deadline would be another one, and none at all would be one in the year 1.

func aboutMove(ctx context.Context, id string, m Move) func(recovery.Home) moveQuery {
	m.Due = m.Due.UTC()
	return func(shardID recovery.Home) moveQuery { return moveQuery{idQuery{id, shardID, encodeTerms(ctx)}, m} }
}

func aboutRequest(r Request, shardID recovery.Home) requestQuery {
	r.Due = r.Due.UTC()
	return requestQuery{Request: r, Home: shardID}
}

func (s *cluster) handleGet(ctx context.Context, _ string, q idQuery) (Task, error) {
	return owned(ctx, s, q, func(ctx context.Context) (Task, error) { return s.engine.Get(ctx, q.ID) })
}

func (s *cluster) handleCancel(ctx context.Context, _ string, q idQuery) (struct{}, error) {
	return owned(ctx, s, q, func(ctx context.Context) (struct{}, error) { return struct{}{}, s.engine.CancelHere(ctx, q.ID) })
}

func (s *cluster) handleFire(ctx context.Context, _ string, q idQuery) (Task, error) {
	return owned(ctx, s, q, func(ctx context.Context) (Task, error) { return s.engine.FireNow(ctx, q.ID) })
}

func (s *cluster) handleMove(ctx context.Context, _ string, q moveQuery) (Task, error) {
	return owned(ctx, s, q.idQuery, func(ctx context.Context) (Task, error) { return s.engine.Reschedule(ctx, q.ID, q.Move) })
}

func (s *cluster) handleSchedule(ctx context.Context, _ string, q requestQuery) (Task, error) {
	return s.createOwned(ctx, &q, s.create)
}

func (s *cluster) handleReplace(ctx context.Context, _ string, q requestQuery) (Task, error) {
	return s.createOwned(ctx, &q, s.replace)
}

// createOwned creates a task that another node was asked for, if it belongs here.
func (s *cluster) createOwned(ctx context.Context, q *requestQuery, create func(context.Context, *engine.Plan) (Task, error)) (Task, error) {
	ctx, cancel := s.engine.Within(q.Terms.in(ctx))
	defer cancel()
	p, err := s.planFor(ctx, &q.Request)
	if err != nil {
		return Task{}, err
	}
	defer p.Release()
	if !p.Chosen || !s.owns(p.ID, q.Home) {
		return Task{}, errNotMine
	}
	var t Task
	if err = s.tell(ctx, &p, false); err == nil {
		t, err = create(ctx, &p)
	}
	return t, owning(err)
}

// owns tells that a task is known here, or that its shard is held.
func (s *cluster) owns(id string, shardID recovery.Home) bool {
	return s.knows(id) || shardID != 0 && s.ownedShard(shardID) != nil
}

// owning makes of an error of a creation what another node is told.
func owning(err error) error {
	if _, ok := errors.AsType[*elsewhere](err); ok || errors.Is(err, ErrClosed) || errors.Is(err, ErrDraining) {
		return errNotMine
	}
	return err
}

// handleHas tells which ids this node has. From then on it files those that are created:
// what it has not by now, it will not have without the directory.
func (s *cluster) handleHas(ctx context.Context, _ string, q hasQuery) (hasReply, error) {
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	a := hasReply{Has: make([]bool, len(q.IDs))}
	switch {
	case s.engine.Unsure() && !s.engine.KnowsAllSpooled(q.IDs):
		return a, engine.ErrUnsure
	case s.engine.Acquiring(): // the caller has asked no other node that may have had it until now
		return a, engine.ErrAcquiring
	}
	ids := slices.DeleteFunc(slices.Clone(q.IDs), func(id string) bool { return !task.ValidName(id) })
	if slices.ContainsFunc(ids, s.engine.IsInDoubt) {
		return a, engine.ErrInDoubt
	}
	if err := s.loadUnknown(ctx, ids); err != nil {
		return a, err
	}
	for i, id := range q.IDs {
		a.Has[i] = s.knows(id)
	}
	return a, nil
}

// loadUnknown makes sure that memory knows those of the ids that exist: while replay runs, it
// looks up the others together.
func (s *cluster) loadUnknown(ctx context.Context, ids []string) error {
	for !s.engine.IsReplayed() {
		loads, busy := s.unknownOf(ids)
		switch {
		case busy != nil: // replay, or another caller, looks an id up at the moment
			if err := s.engine.WaitBusy(ctx, busy, 0); err != nil {
				return err
			}
			continue
		case len(loads) == 0:
			return nil
		}
		s.engine.LoadAllByID(ctx, loads)
		ids = nil
		for _, f := range loads {
			switch {
			case f.Err != nil:
				return f.Err
			case !f.Absent && !f.Found:
				ids = append(ids, f.ID) // it was in other hands
			}
		}
	}
	return nil
}

// unknownOf returns those of the ids that memory does not know. If one of them is being looked
// up, busy is closed when that is over.
func (s *cluster) unknownOf(ids []string) (unknown []engine.IDLoad, busy <-chan struct{}) {
	for part := range slices.Chunk(ids, engine.AtOnce) {
		s.engine.Mu.Lock()
		for _, id := range part {
			n, entered := s.engine.Store.Find([]byte(id))
			switch {
			case entered && s.engine.Store.Slot(n).State == store.Checking:
				busy = s.engine.WatchLocked(n)
			case entered, s.knowsLocked([]byte(id)):
				// One that is being registered is no node's yet; it was looked for before.
			default:
				unknown = append(unknown, engine.IDLoad{ID: id})
			}
		}
		s.engine.Unlock()
	}
	return unknown, busy
}
