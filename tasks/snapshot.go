package tasks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// A call about many tasks (a list, a purge, a group that is cancelled, the dead of a topic)
// is about those of all nodes. Its caller asks one node and gets an answer for all of them, or
// an error. It goes by shards, since these change hands while the nodes are being asked:
//
//   - The node that was asked reads from the registry which shards there are, and puts the same
//     question to all nodes that live at the same time, itself included: one that holds nothing
//     may have spooled tasks. No other node knows what is in the spool of a silent one: a call
//     that is about spooled tasks, too, fails until that node is back or has left the registry.
//   - Each does it to all tasks that it has, and answers which shards that covers: those
//     that it held, with all their tasks in memory, from before it began until after it had
//     ended, in one term. What comes or goes meanwhile, it does not vouch for.
//   - Only for shards that no answer has covered it looks up who holds them, and asks their
//     holders, until there are none left. So what a call costs Redis does not grow with the
//     shards. A shard that no node holds because nothing was left in it needs no answer; that
//     of a dead node waits until it is adopted.
//
// For example: of three nodes, b hands a shard to c while a group is being cancelled. If c
// has been asked before it gained the shard, and b after it had lost it, neither covers it;
// a finds it at c then, and asks c once more. If both cover it, one after the other, what is
// counted of it is that of the answer which came first, and what both list is listed once.
//
// Long operations answer after about half of Config.AnswerWithin with More set and are called
// again. No single call is older than a few seconds; the whole may run as long as it makes
// progress. An error comes with what was done before it. Repeating the call does the rest, as
// everything here may be repeated.
//
// A single node asks no other and looks nothing up: see noPeers. It learns of another
// one within a twentieth of the failover time.

// A coverage is the part of every answer that says which shards it covers.
type coverage struct {
	Covered []recovery.Home `json:",omitempty"` // shards whose tasks it is about, all of them
	More    bool            `json:",omitempty"` // there is more to be done: call again
	Fault   *wireError      `json:",omitempty"` // why it ended before that
}

func (c *coverage) cover() *coverage { return c }

// The calls to all nodes.
var (
	listMethod    = method[listQuery, listReply]{name: "list"}
	usedMethod    = method[usedQuery, usedReply]{name: "used"}
	purgeMethod   = method[purgeQuery, purgeReply]{name: "purge", writes: true}
	redriveMethod = method[redriveQuery, redriveReply]{name: "exhume", writes: true}
)

type (
	// A listQuery asks for the first tasks behind a position: soonest first, or the longest
	// dead first with the state Dead.
	listQuery struct {
		Topic, Group string
		State        State
		Limit        int
		After        recovery.Ref
		Bytes        int      `json:",omitempty"` // about how much of tasks is wanted at most; 0: MaxPageBytes
		Patterns     []string `json:",omitempty"` // of the topics that the caller may use; empty: all
	}
	listReply struct {
		coverage
		Tasks []listed
		Last  *recovery.Ref `json:",omitempty"` // the last position that was looked at; nil: there is nothing behind
	}
	listed struct {
		Task Task
		At   int64 // where it stands in the list
	}

	// A usedQuery asks whether a topic has tasks that are not dead.
	usedQuery struct{ Topic string }
	usedReply struct {
		coverage
		Used bool
	}

	// A purgeQuery asks for the tasks of a topic or a group to be cancelled, or killed. The
	// topic may be the beginning of names and an asterisk.
	purgeQuery struct {
		Topic, Group string
		Kill         bool
		Keep         int      // how many of those that are being delivered are to be named
		Patterns     []string `json:",omitempty"` // as of a listQuery
	}
	purgeReply struct {
		coverage
		Cancelled  int
		Delivering []leftCount `json:",omitempty"` // how many were being delivered
		Left       []leftTask  `json:",omitempty"` // the first of these
		// Retried are the first of the cancelled tasks that had been delivered before: the
		// node that did so may have counted them as being delivered.
		Retried []string `json:",omitempty"`
	}
	leftCount struct {
		Home  recovery.Home `json:",omitempty"` // 0: they are spooled
		Count int
	}
	leftTask struct {
		ID   string
		Home recovery.Home `json:",omitempty"`
	}

	// A redriveQuery asks for dead tasks of a topic to be requeued or deleted: those with the
	// ids, or as many as are dead.
	redriveQuery struct {
		Topic  string
		Delete bool
		Due    int64    // the new deadline; 0: now
		All    bool     // instead of the ids
		IDs    []string `json:",omitempty"`
		Died   int64    `json:",omitempty"` // of all: when it was asked for, and those that were dead are meant
		// Of all, when it has been asked before: how many are left to count, and behind which.
		Left  int `json:",omitempty"`
		After recovery.Ref
	}
	redriveReply struct {
		coverage
		Done  int
		IDs   []string `json:",omitempty"` // which of the given ones
		Left  int      `json:",omitempty"`
		After recovery.Ref
	}
)

// A snapshot is the shards that this node holds, with all their tasks in memory, for as long as
// an operation on all of them runs: by number, as long as the term is the same. The
// spool counts as one of them.
type snapshot map[int]snapshotShard

// A snapshotShard is one of them, with its ID as the ledger names it now: once Redis has lost
// the numbers of the nodes, it may be another one than when the term began.
type snapshotShard struct {
	*ownedShard
	shardID recovery.Home
}

// beginSnapshot waits until all that this node holds is in memory. It also returns how many moves
// of spooled tasks have ever been in doubt. Errors: ErrReplaying, ErrUnavailable, ErrClosed.
func (s *Scheduler) beginSnapshot(ctx context.Context) (st snapshot, movesInDoubt int, err error) {
	ctx, cancel := s.within(ctx)
	defer cancel()
	if err := s.waitReplayed(ctx); err != nil {
		return nil, 0, err
	}
	s.mu.Lock()
	defer s.unlock()
	switch {
	case s.ended:
		return nil, 0, ErrClosed
	case s.unsure():
		return nil, 0, errUnsure
	case s.spool != nil && len(s.spool.inDoubt) > 0:
		return nil, 0, errInDoubt
	}
	st = make(snapshot)
	for n, h := range s.shards {
		if h != nil && h.stage == active {
			st[n] = snapshotShard{h, s.fleet.Home(n)}
		}
	}
	if s.spool != nil {
		st[spoolShard], movesInDoubt = snapshotShard{ownedShard: s.spool.ownedShard}, s.spool.movesInDoubt
	}
	return st, movesInDoubt, nil
}

// errInDoubt: spooled tasks have left memory, and may come back to it. It is passing.
var errInDoubt = fmt.Errorf("%w: it is not known yet whether what was spooled has moved there", errNotHeld)

// endSnapshot leaves out what has changed hands meanwhile, and lists the others.
func (s *Scheduler) endSnapshot(st snapshot, movesInDoubt int) (covered []recovery.Home, err error) {
	s.mu.Lock()
	defer s.unlock()
	switch {
	case s.ended:
		return nil, ErrClosed
	case s.unsure():
		return nil, errUnsure
	case s.spool != nil && s.spool.movesInDoubt != movesInDoubt:
		return nil, errInDoubt
	}
	for n, h := range st {
		switch {
		case h.stage != active: // a term that is over is never held again
			delete(st, n)
		case h.shardID != 0:
			covered = append(covered, h.shardID)
		}
	}
	slices.Sort(covered)
	return covered, nil
}

// keepHeld leaves out what the ledger has lost without having told it yet: it has not read
// the dead of that.
func (s *Scheduler) keepHeld(ctx context.Context, st snapshot) {
	for n, h := range st {
		if n == spoolShard {
			continue
		}
		if at, err := s.fleet.Locate(ctx, h.ownedShard.shardID, false); err != nil || at.Shard != n {
			delete(st, n)
		}
	}
}

// covers runs an operation on all that this node has, and enters into its answer what that
// covers. What it has found in a shard by its number counts if that is still in the snapshot.
func (s *Scheduler) covers(ctx context.Context, c *coverage, do func(ctx context.Context) error) (snapshot, error) {
	// The reply must be there before the caller's time is over.
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, time.Until(deadline)*9/10, errLate)
		defer cancel()
	}
	st, movesInDoubt, err := s.beginSnapshot(ctx)
	if err != nil {
		return nil, err
	}
	if err := do(ctx); err != nil {
		if errors.Is(err, ctx.Err()) && !errors.Is(err, ErrUnknown) {
			err = fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
		}
		return nil, err
	}
	s.keepHeld(ctx, st)
	c.Covered, err = s.endSnapshot(st, movesInDoubt)
	return st, err
}

// A coveringReply is a pointer to a reply of a method that is called at all nodes.
type coveringReply[A any] interface {
	*A
	cover() *coverage
}

// handleAll is handle for a method that is called at all nodes: what was done before an error
// travels with it.
func handleAll[Q, A any, P coveringReply[A]](m method[Q, A], serve func(s *Scheduler, ctx context.Context, query Q) (A, error)) (string, rpcHandler) {
	return handle(m, func(s *Scheduler, ctx context.Context, _ string, query Q) (A, error) {
		a, err := serve(s, ctx, query)
		switch c := P(&a).cover(); {
		case errors.Is(err, ErrClosed):
			c.Fault = wireErrorOf(errNotMine) // and soon another node's
		case err != nil:
			c.Fault = wireErrorOf(err)
		}
		return a, nil
	})
}
