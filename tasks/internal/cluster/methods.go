package cluster

import (
	"context"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// The methods about single tasks, and what a node replies for those that it owns.
var (
	GetMethod      = Method[IDQuery, task.Task]{Name: "get"}
	CancelMethod   = Method[IDQuery, CancelReply]{Name: "cancel", writes: true}
	FireMethod     = Method[IDQuery, task.Task]{Name: "fire", writes: true}
	HoldMethod     = Method[IDQuery, task.Task]{Name: "hold", writes: true}
	ResumeMethod   = Method[IDQuery, task.Task]{Name: "resume", writes: true}
	MoveMethod     = Method[MoveQuery, task.Task]{Name: "move", writes: true}
	ScheduleMethod = Method[requestQuery, task.Task]{Name: "schedule", writes: true}
	ReplaceMethod  = Method[requestQuery, task.Task]{Name: "replace", writes: true}
	BatchMethod    = Method[batchQuery, batchReply]{Name: "batch", writes: true}
)

// MethodHandlers returns the handlers of all methods, by the name of the method.
func MethodHandlers() map[string]RPCHandler {
	table := make(map[string]RPCHandler)
	add := func(name string, serve RPCHandler) { table[name] = serve }
	add(Handle(GetMethod, handleByID((*engine.Engine).Get)))
	add(Handle(CancelMethod, (*Cluster).handleCancel))
	add(Handle(FireMethod, handleByID((*engine.Engine).FireNow)))
	add(Handle(HoldMethod, handleByID((*engine.Engine).Hold)))
	add(Handle(ResumeMethod, handleByID((*engine.Engine).Resume)))
	add(Handle(MoveMethod, (*Cluster).handleMove))
	add(Handle(ScheduleMethod, (*Cluster).handleSchedule))
	add(Handle(ReplaceMethod, (*Cluster).handleReplace))
	add(Handle(BatchMethod, (*Cluster).handleBatch))
	add(Handle(ImportMethod, (*Cluster).handleImport))
	add(Handle(SettleMethod, (*Cluster).handleSettle))
	add(Handle(HasMethod, (*Cluster).HandleHas))
	add(Handle(FinishedMethod, (*Cluster).handleFinished))
	add(Handle(ActMethod, (*Cluster).handleAct))
	add(Handle(ReleaseMethod, (*Cluster).handleRelease))
	add(Handle(OfferShardMethod, (*Cluster).handleOfferShard))
	add(Handle(ReadAheadMethod, (*Cluster).handleReadAhead))
	add(Handle(SettingsMethod, (*Cluster).handleSettings))
	add(Handle(DrainMethod, (*Cluster).handleDrain))
	add(Handle(ReserveMethod, (*Cluster).HandleReserve))
	add(Handle(DemandsMethod, (*Cluster).handleDemands))
	add(Handle(OfferMethod, (*Cluster).HandleOffer))
	add(Handle(BacklogMethod, (*Cluster).handleBacklog))
	add(Handle(ReadyMethod, (*Cluster).handleReady))
	add(Handle(OffloadMethod, (*Cluster).handleOffload))
	add(Handle(OutcomesMethod, (*Cluster).handleOutcomes))
	add(Handle(StatsMethod, (*Cluster).handleStats))
	add(Handle(TopicsMethod, (*Cluster).handleTopics))
	add(Handle(RanksMethod, (*Cluster).handleRanks))
	add(Handle(PastMethod, (*Cluster).handlePast))
	add(Handle(ForecastMethod, (*Cluster).handleForecast))
	add(Handle(WavesMethod, (*Cluster).handleWaves))
	add(Handle(EventsMethod, (*Cluster).handleEvents))
	add(Handle(CoalesceMethod, (*Cluster).handleCoalesce))
	add(Handle(SurveyMethod, (*Cluster).handleSurvey))
	add(Handle(SearchMethod, (*Cluster).handleSearch))
	add(Handle(MessageMethod, (*Cluster).handleMessage))
	add(handleAll(ListMethod))
	add(handleAll(UsedMethod))
	add(handleAll(PurgeMethod))
	add(handleAll(RedriveMethod))
	add(handleAll(MendMethod))
	add(handleAll(SelectMethod))
	add(handleAll(ExportMethod))
	return table
}

type (
	// An IDQuery is about one task. The caller believes that it is kept at that shard; 0 if
	// it knows only that this node has it.
	IDQuery struct {
		ID         string
		ShardID    recovery.ShardID `json:"Home"`
		Conditions *task.Conditions `json:"Terms,omitempty"`
	}
	// A MoveQuery moves a task.
	MoveQuery struct {
		IDQuery
		Move task.Move
	}
	// A requestQuery asks for a task. It belongs to that shard; 0 if the caller knows only
	// that the node has the id.
	requestQuery struct {
		Request    task.Request
		ShardID    recovery.ShardID `json:"Home"`
		Conditions *task.Conditions `json:"Terms,omitempty"` // not in a batch, which has its own
	}
	batchQuery struct {
		Requests   []requestQuery
		Replaces   bool             `json:",omitempty"`
		Conditions *task.Conditions `json:"Terms,omitempty"`
	}
	batchReply struct{ Results []wireResult }
	wireResult struct {
		ID       string
		Fault    *WireError `json:",omitempty"`
		Repeated bool       `json:",omitempty"`
		Finished bool       `json:",omitempty"`
	}
)

// AboutID returns a function that makes the IDQuery for a shard.
func AboutID(ctx context.Context, id string) func(recovery.ShardID) IDQuery {
	return func(shardID recovery.ShardID) IDQuery { return IDQuery{id, shardID, task.ConditionsOf(ctx)} }
}

// Deadlines travel in UTC: the offset of another zone loses its seconds on the way, so
// that the deadline would be another one, and none at all would be one in the year 1.

// AboutMove makes the query that moves a task.
func AboutMove(ctx context.Context, id string, m task.Move) func(recovery.ShardID) MoveQuery {
	m.Due = m.Due.UTC()
	return func(shardID recovery.ShardID) MoveQuery {
		return MoveQuery{IDQuery{id, shardID, task.ConditionsOf(ctx)}, m}
	}
}

func aboutRequest(r task.Request, shardID recovery.ShardID, conds *task.Conditions) requestQuery {
	r.Due = r.Due.UTC()
	return requestQuery{r, shardID, conds}
}

// handleByID makes the handler of a method that does something with the task of an id.
func handleByID(do func(*engine.Engine, context.Context, string) (task.Task, error)) func(*Cluster, context.Context, string, IDQuery) (task.Task, error) {
	return func(s *Cluster, ctx context.Context, _ string, q IDQuery) (task.Task, error) {
		return owned(ctx, s, q, func(ctx context.Context) (task.Task, error) { return do(s.engine, ctx, q.ID) })
	}
}

// A CancelReply tells which task was cancelled.
type CancelReply struct {
	Created int64 `json:",omitempty"` // when it was created, in Unix ns
	Before  bool  `json:",omitempty"` // an earlier call has cancelled it
}

func (s *Cluster) handleCancel(ctx context.Context, _ string, q IDQuery) (CancelReply, error) {
	_, err := owned(ctx, s, q, func(ctx context.Context) (struct{}, error) { return struct{}{}, s.engine.CancelLocal(ctx, q.ID) })
	if engine.Cancelled(err) != nil {
		return CancelReply{}, err
	}
	return CancelReply{s.createdOfCancelled(q.ID), err != nil}, nil
}

func (s *Cluster) handleMove(ctx context.Context, _ string, q MoveQuery) (task.Task, error) {
	return owned(ctx, s, q.IDQuery, func(ctx context.Context) (task.Task, error) {
		return s.engine.Reschedule(ctx, q.ID, q.Move)
	})
}

func (s *Cluster) handleSchedule(ctx context.Context, _ string, q requestQuery) (task.Task, error) {
	return s.createOwned(ctx, &q, s.engine.Create)
}

func (s *Cluster) handleReplace(ctx context.Context, _ string, q requestQuery) (task.Task, error) {
	return s.createOwned(ctx, &q, s.Replace)
}

// owned answers another node's call about a task.
func owned[A any](ctx context.Context, s *Cluster, q IDQuery, do func(context.Context) (A, error)) (a A, err error) {
	one := []item{s.itemAsked(q.ID, q.ShardID)}
	s.serve(ctx, q.Conditions, one, func(ctx context.Context, _ []*item) { a, one[0].err = do(ctx) })
	return a, one[0].err
}

// createOwned creates a task that another node was asked for, if it belongs here.
func (s *Cluster) createOwned(ctx context.Context, q *requestQuery, create func(context.Context, *engine.Plan) (task.Task, error)) (task.Task, error) {
	r := &q.Request
	return owned(ctx, s, IDQuery{r.ID, q.ShardID, q.Conditions}, func(ctx context.Context) (t task.Task, err error) {
		p, err := s.engine.PlanFor(ctx, r)
		defer p.Free()
		switch {
		case err != nil:
			return t, err
		case !p.Chosen:
			return t, errNotMine
		}
		if err = s.ownerOfID(ctx, &p, false); err == nil {
			t, err = create(ctx, &p)
		}
		return t, err
	})
}

// owns reports whether a task is known here, or its shard is held.
func (s *Cluster) owns(id string, shardID recovery.ShardID) bool {
	return s.Knows(id) || shardID != 0 && s.engine.Term(shardID) != nil
}
