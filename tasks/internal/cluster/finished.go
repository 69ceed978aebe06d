package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// What has become of a finished task is remembered by the node that finished it, and by no other
// one: not by the node that is asked, nor by the one to which the shard has gone since. So a node
// that does not know an id asks all living nodes before it imports the task, before it says that
// there is nothing to cancel, and before it calls the receipt of an acknowledgement stale. The
// first delivers a task again that was finished; the others give a repeated call another answer.
//
// Each call goes to all nodes, at most finishedAtOnce ids at a time. Calls that come while one is
// under way go together with the next one, so that a node sends no more of them than are answered.

// FinishedMethod asks what a node remembers of finished tasks.
var FinishedMethod = Method[finishedQuery, finishedReply]{Name: "finished"}

// finishedAtOnce is how many ids a node is asked for with one call.
const finishedAtOnce = HasAtOnce

type (
	finishedQuery struct{ IDs []string }
	// A finishedReply has the outcomes in the order of the ids.
	finishedReply struct{ Outcomes []engine.Ending }
)

func (s *Cluster) handleFinished(_ context.Context, _ string, q finishedQuery) (finishedReply, error) {
	if len(q.IDs) > finishedAtOnce {
		return finishedReply{}, ErrNotUnderstood
	}
	return finishedReply{s.finishedHere(q.IDs)}, nil
}

// finishedHere returns what this node remembers.
func (s *Cluster) finishedHere(ids []string) []engine.Ending {
	outcomes := s.engine.Endings(ids)
	for i := range outcomes {
		if created, ok := s.recentCancel(ids[i]); ok && (outcomes[i].Kind == 0 || created > outcomes[i].Created) {
			outcomes[i] = engine.Ending{Kind: store.WasCancelled, Created: created}
		}
	}
	return outcomes
}

// finishedCalls are the calls about finished tasks that wait for their turn.
type finishedCalls struct {
	turn chan struct{} // holds a token while no call is under way

	mu   sync.Mutex // guards next
	next *finishedCall
}

func newFinishedCalls() *finishedCalls {
	c := &finishedCalls{turn: make(chan struct{}, 1)}
	c.turn <- struct{}{}
	return c
}

// A finishedCall asks for several callers. The first of them sends it.
type finishedCall struct {
	ids  []string
	done chan struct{} // closed when the fields below are set
	// found has for each id what the nodes have answered, and err why one of them has not.
	found [][]engine.Ending
	err   error
}

// finished returns for each id what the living nodes remember, this one included. Errors:
// ErrUnavailable if one of them does not answer; what the others remember is returned as well.
func (s *Cluster) finished(ctx context.Context, ids []string) ([][]engine.Ending, error) {
	w := s.Fleet.finishedCalls
	w.mu.Lock()
	c := w.next
	first := c == nil || len(c.ids)+len(ids) > finishedAtOnce
	if first {
		c = &finishedCall{done: make(chan struct{})}
		w.next = c
	}
	from := len(c.ids)
	c.ids = append(c.ids, ids...)
	w.mu.Unlock()
	if first {
		s.sendFinished(ctx, c)
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		return make([][]engine.Ending, len(ids)), unavailable(context.Cause(ctx))
	}
	return c.found[from : from+len(ids)], c.err
}

// sendFinished sends a call when the one before is over.
func (s *Cluster) sendFinished(ctx context.Context, c *finishedCall) {
	w := s.Fleet.finishedCalls
	late := false
	select {
	case <-w.turn:
		defer func() { w.turn <- struct{}{} }()
	case <-ctx.Done():
		late = true
	}
	w.mu.Lock()
	if w.next == c {
		w.next = nil // no other caller joins
	}
	w.mu.Unlock()
	c.found = make([][]engine.Ending, len(c.ids))
	if late {
		c.err = unavailable(context.Cause(ctx))
	} else {
		c.err = s.askFinished(ctx, c)
	}
	close(c.done)
}

func (s *Cluster) askFinished(ctx context.Context, c *finishedCall) error {
	nodes, err := s.Fleet.ledger.Peers(ctx)
	if err != nil {
		return unavailable(err)
	}
	note := func(outcomes []engine.Ending) {
		for i, o := range outcomes {
			if o.Kind != 0 {
				c.found[i] = append(c.found[i], o)
			}
		}
	}
	note(s.finishedHere(c.ids))
	var living []string // a node that is dead remembers nothing any more
	for i := range nodes {
		if n := &nodes[i]; n.Live && !n.Self {
			living = append(living, n.Name)
		}
	}
	ctx, cancel := halfOf(ctx)
	defer cancel()
	askEach(ctx, s, living, FinishedMethod, finishedQuery{c.ids}, func(node string, a finishedReply, failed error) {
		switch {
		case failed != nil:
			err = final(failed)
		case len(a.Outcomes) != len(c.ids):
			err = fmt.Errorf("%w: node %s has answered for %d of %d tasks", task.ErrUnavailable, node, len(a.Outcomes), len(c.ids))
		default:
			note(a.Outcomes)
		}
	})
	return err
}

// CancelledBefore reports for each of some ids, which no node has a task of, whether a living node
// remembers that the last one was cancelled, and the caller may use its topic. No grant that is
// limited to topics allows one that is not known.
// A later task of the id may have ended at a node that has ended since: its entry in the directory
// outlives it for as long as a cancel is remembered.
func (s *Cluster) CancelledBefore(ctx context.Context, ids []string) []bool {
	was := make([]bool, len(ids))
	if s.Fleet == nil || s.NeverHadPeers() {
		return was
	}
	for from := 0; from < len(ids); from += finishedAtOnce {
		part := ids[from:min(from+finishedAtOnce, len(ids))]
		found, _ := s.finished(ctx, part) // by the nodes that have answered
		entries, err := s.Fleet.ledger.Lookup(ctx, part)
		if err != nil {
			return was
		}
		for i, id := range part {
			last := lastOf(found[i])
			was[from+i] = last.Kind == store.WasCancelled && task.GrantOf(ctx).Allows(last.Topic) &&
				(entries[i].ShardID == 0 || entries[i] == engine.DirectoryEntryOf(entries[i].ShardID, []byte(id), last.Created))
		}
	}
	return was
}

// lastOf returns the outcome of the task that was created last, from a node that knows its topic if
// there is one.
func lastOf(outcomes []engine.Ending) (last engine.Ending) {
	for _, o := range outcomes {
		if last.Kind == 0 || o.Created > last.Created || o.Created == last.Created && last.Topic == "" {
			last = o
		}
	}
	return last
}

// LeaveFinished answers imports of tasks that a living node has finished, and returns the others.
func (b *Batch) LeaveFinished(ctx context.Context, todo []int) (rest []int) {
	if b.Fleet == nil || b.NeverHadPeers() {
		return todo
	}
	for from := 0; from < len(todo); from += finishedAtOnce {
		part := todo[from:min(from+finishedAtOnce, len(todo))]
		ids := make([]string, len(part))
		for k, i := range part {
			ids[k] = b.Requests[i].ID
		}
		found, err := b.finished(ctx, ids)
		for k, i := range part {
			switch {
			case !b.By.Grant.Allows(b.Requests[i].Topic):
				rest = append(rest, i) // it is refused
			case hasFinished(found[k], record.Created(b.Records[i])):
				b.Results[i].Repeated = true
			case err != nil:
				b.Results[i].Err = err
			default:
				rest = append(rest, i)
			}
		}
	}
	return rest
}

func hasFinished(found []engine.Ending, created int64) bool {
	for _, o := range found {
		if o.Created == created {
			return true
		}
	}
	return false
}

// acknowledgedElsewhere answers acknowledgements of tasks that their owner does not know as the
// first ones were answered, if a node remembers those. The owner does not, if the shard has changed
// hands since.
func (s *Cluster) acknowledgedElsewhere(ctx context.Context, v *task.Verdict, settlings []engine.Settling) {
	if v.Verb != task.Ack || s.NeverHadPeers() {
		return
	}
	var ids []string
	var at []*engine.Settling
	for i := range settlings {
		if p := &settlings[i]; errors.Is(p.Answer.Err, engine.ErrReceiptUnknown) {
			ids, at = append(ids, p.Receipt.ID), append(at, p)
		}
	}
	if len(ids) == 0 {
		return
	}
	found, _ := s.finished(ctx, ids) // by the nodes that have answered
	for k, p := range at {
		for _, o := range found[k] {
			if o.Kind == store.WasDelivered && o.Nonce == p.Receipt.Nonce {
				// The owner has no such task any more, so its end is recorded.
				p.Answer.Err, p.Answer.Recorded = nil, true
			}
		}
	}
}
