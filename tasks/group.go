package tasks

import (
	"context"

	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/task"
)

// CancelGroup cancels every pending and ready task of a group, of whatever topic and at
// whatever node: each of them definitely, as Cancel would, but not all in one step. A large
// group goes in pieces, as Purge does. Tasks that are being delivered are left and named; the
// dead are not touched. An unknown group is empty. Tasks that join the group while
// it runs may be cancelled or stay; those that were accepted before are found. It tells what
// was done before an error as Purge does; repeating the call does the rest. Under a Grant,
// only tasks of its topics are cancelled or named.
//
// It waits for the end of replay. Errors: as of Purge.
func (s *Scheduler) CancelGroup(ctx context.Context, group string) (GroupCancelled, error) {
	if !task.ValidName(group) {
		return GroupCancelled{}, task.Invalid("group", task.NameProblem)
	}
	t, err := s.cluster.PurgeAll(ctx, query.Purge{Group: group, Keep: MaxGroupDelivering, Patterns: task.PatternsOf(ctx)})
	return GroupCancelled{Cancelled: t.Cancelled, Delivering: t.Left, More: t.Delivering - len(t.Left)}, err
}
