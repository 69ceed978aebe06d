package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/portable"
	"github.com/lapsehq/lapse/tasks/task"
)

const (
	// Of one message to another node: how many tasks, and about how many bytes.
	sentAtOnce, sentBytes = 1000, 1 << 20
	// callsAtOnce is how many messages of a batch are on their way at once.
	callsAtOnce = 64
)

// ImportMethod is BatchMethod for tasks of another ledger, with their records.
var ImportMethod = Method[importQuery, batchReply]{Name: "import", writes: true}

type (
	importQuery struct {
		Tasks      []importedTask
		Conditions *task.Conditions `json:"Terms,omitempty"`
	}
	importedTask struct {
		ID, Topic string
		ShardID   recovery.ShardID `json:"Home"`
		Record    []byte
	}
)

// handleBatch creates those of another node's requests that belong here.
func (s *Cluster) handleBatch(ctx context.Context, _ string, q batchQuery) (batchReply, error) {
	b := &Batch{Replaces: q.Replaces, Requests: make([]task.Request, len(q.Requests))}
	shardIDs := make([]recovery.ShardID, len(q.Requests))
	for i := range q.Requests {
		b.Requests[i], shardIDs[i] = q.Requests[i].Request, q.Requests[i].ShardID
	}
	return s.createBatch(ctx, b, shardIDs, q.Conditions)
}

// handleImport creates those of another node's imported tasks that belong here.
func (s *Cluster) handleImport(ctx context.Context, _ string, q importQuery) (batchReply, error) {
	b := &Batch{Requests: make([]task.Request, len(q.Tasks)), Records: make([][]byte, len(q.Tasks))}
	shardIDs := make([]recovery.ShardID, len(q.Tasks))
	for i, t := range q.Tasks {
		b.Requests[i], b.Records[i], shardIDs[i] = task.Request{ID: t.ID, Topic: t.Topic}, t.Record, t.ShardID
	}
	return s.createBatch(ctx, b, shardIDs, q.Conditions)
}

// createBatch creates the tasks of another node's batch that belong into the given shards here.
func (s *Cluster) createBatch(ctx context.Context, b *Batch, shardIDs []recovery.ShardID, conds *task.Conditions) (batchReply, error) {
	if len(b.Requests) > task.MaxBatch {
		return batchReply{}, ErrNotUnderstood
	}
	ctx, cancel := s.answering(ctx, conds)
	defer cancel()
	by, err := s.engine.Admission(ctx)
	if err != nil {
		return batchReply{}, err
	}
	b.Cluster, b.forwarded, b.By, b.Results = s, true, by, make([]task.Result, len(b.Requests))
	todo := slices.DeleteFunc(b.Distinct(), func(i int) bool {
		if id := b.Requests[i].ID; id != "" && s.owns(id, shardIDs[i]) {
			return false
		}
		b.Results[i].Err = errNotMine
		return true
	})
	b.Run(ctx, todo)
	a := batchReply{Results: make([]wireResult, len(b.Results))}
	for i, r := range b.Results {
		a.Results[i].ID, a.Results[i].Repeated, a.Results[i].Finished = r.ID, r.Repeated && r.Err == nil, r.Finished
		if r.Err != nil {
			a.Results[i].Fault = WireErrorOf(owning(r.Err, shardIDs[i]))
		}
	}
	return a, nil
}

// plan plans the creation of one task.
func (b *Batch) plan(i int) (engine.Plan, error) {
	if b.Records != nil {
		return portable.Plan(b.engine, b.Requests[i].ID, b.Records[i], b.By)
	}
	p, err := b.engine.Plan(&b.Requests[i], b.By)
	p.Replaces = b.Replaces && p.Chosen
	return p, err
}

// Check returns why a request would be refused for a reason of its own, wherever its task is.
func (b *Batch) Check(i int) error {
	p, err := b.plan(i)
	p.Free()
	return err
}

// replacedElsewhere returns those of the replacements that this node takes no new tasks for, and
// whose ids other nodes have.
func (b *Batch) replacedElsewhere(ctx context.Context, todo []int) []*item {
	if !b.Replaces || b.forwarded || b.Fleet == nil {
		return nil
	}
	var all []*item
	for _, i := range todo {
		if id := b.Requests[i].ID; id != "" && takesNone(b.Results[i].Err) {
			all = append(all, &item{id: id, index: i})
		}
	}
	return b.atOthers(ctx, all)
}

// dropsAtOnce is how many finished tasks are deleted at once whose ids new ones take.
const dropsAtOnce = 16

// replaceBuried carries out requests with the ids of tasks that are dead, or finished and kept. It
// returns those that come again, since there is no such task any more.
func (b *Batch) replaceBuried(ctx context.Context, buried []int) (again []int) {
	var over []engine.BuriedReplacement
	var drops errgroup.Group
	drops.SetLimit(dropsAtOnce)
	for _, i := range buried {
		if b.Requests[i].Supersede {
			if p, err := b.plan(i); err != nil {
				b.Results[i].Err = err
			} else {
				over = append(over, engine.BuriedReplacement{Plan: &p, Index: i})
			}
			continue
		}
		again = append(again, i)
		drops.Go(func() error {
			b.Results[i].Err = b.engine.DropKept(ctx, b.Requests[i].ID)
			return nil
		})
	}
	for part := range slices.Chunk(over, engine.RedrivenAtOnce) {
		b.engine.ReplaceBuried(ctx, part)
		for k := range part {
			r := &part[k]
			b.Results[r.Index].Err, b.Results[r.Index].Repeated = r.Err, r.Task.Repeated
			if errors.Is(r.Err, engine.ErrUnburied) {
				b.Results[r.Index].Err, again = nil, append(again, r.Index)
			}
			r.Plan.Free()
		}
	}
	_ = drops.Wait()
	return b.afterPause(ctx, slices.DeleteFunc(again, func(i int) bool { return b.Results[i].Err != nil }))
}

// sizeOf is about how long the message to another node gets by a task.
func (b *Batch) sizeOf(i int) int {
	if b.Records != nil {
		return len(b.Records[i])
	}
	size := len(b.Requests[i].Payload)
	if t := b.Requests[i].Target; t != nil {
		size += len(t.Settings)
	}
	return size
}

// callOwner has another node create tasks that belong there.
func (b *Batch) callOwner(ctx context.Context, node string, part []*item) (batchReply, error) {
	conds := task.ConditionsOf(ctx)
	if b.Records == nil {
		q := batchQuery{make([]requestQuery, len(part)), b.Replaces, conds}
		for k, p := range part {
			wanted := b.Requests[p.index]
			wanted.ID = p.id
			q.Requests[k] = aboutRequest(wanted, p.at.shardID, nil)
		}
		return Call(ctx, b.Cluster, node, BatchMethod, q)
	}
	q := importQuery{make([]importedTask, len(part)), conds}
	for k, p := range part {
		q.Tasks[k] = importedTask{p.id, b.Requests[p.index].Topic, p.at.shardID, b.Records[p.index]}
	}
	return Call(ctx, b.Cluster, node, ImportMethod, q)
}

// forwardTo has another node create tasks that belong there, and notes the results.
func (b *Batch) forwardTo(ctx context.Context, node string, part []*item) {
	a, err := b.callOwner(ctx, node, part)
	if err == nil && len(a.Results) != len(part) {
		err = fmt.Errorf("%w: node %s has answered for %d of %d tasks", task.ErrUnknown, node, len(a.Results), len(part))
	}
	for k, p := range part {
		r := &b.Results[p.index] // which no other goroutine touches
		if err != nil {
			r.Err = err
		} else if f := a.Results[k].Fault; f != nil {
			r.Err = f.Err(node, true)
		} else {
			r.Repeated, r.Finished = a.Results[k].Repeated, a.Results[k].Finished
		}
	}
}
