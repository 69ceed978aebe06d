package tasks

import (
	"context"

	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/task"
)

// Purge cancels every pending and ready task of a topic at all nodes, or of all topics whose
// names begin so if it ends with an asterisk ("order.*"). It does that as Cancel would, a
// piece at a time: others get the lock in between, and no more than a piece waits for the
// ledger. Tasks that are being delivered are left and counted; the dead are not
// touched. Tasks of the topic that are scheduled while it runs may be cancelled or
// stay. Purged is always right about what was done before an error, but for what a node
// that has not answered may have done; repeating the call does the rest.
//
// It waits for the end of replay, since a task that was not read yet would survive
// unnoticed. Errors: ErrInvalid, ErrReplaying, ErrUnavailable, ErrUnknown, ErrClosed,
// or why ctx has ended; with several nodes also ErrNodeAway, while one that holds tasks
// does not answer or was not replaced yet, and ErrOverloaded. ErrUnrecorded means that the
// ledger is known not to answer, and that up to a piece is cancelled here. After ErrUnknown up
// to a piece more may be cancelled, or what another node does in a second or two; none of it is
// delivered until the ledger has answered.
func (s Admin) Purge(ctx context.Context, topic string) (Purged, error) {
	if !cluster.ValidPurge(topic) {
		return Purged{}, task.Invalid("topic", task.NameProblem+"; an asterisk may follow")
	}
	if err := engine.Granted(ctx, topic); err != nil {
		return Purged{}, err
	}
	t, err := s.cluster.PurgeAll(ctx, query.Purge{Topic: topic})
	return Purged{Cancelled: t.Cancelled, Delivering: t.Delivering}, err
}
