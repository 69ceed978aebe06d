package engine

import (
	"context"

	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A held task is a pending one with record.HeldUntil as its next attempt. That time never comes, so
// the sweep, the audit, replay and a hand-over deal with it as with any pending task. Only the
// wheel does not have it: its queue cannot wait so long. The record says when the task was held,
// and the next attempt that it had. See docs/decisions/0012-hold.md.

// Hold holds the countdown of a task of this node. Errors: as of tasks.Scheduler.Hold.
func (s *Engine) Hold(ctx context.Context, id string) (task.Task, error) {
	return s.moveUnless(ctx, id, task.HoldAction, Admission{}, func(rec *record.Fields, _ *Write) { rec.Hold(s.Now()) })
}

// Resume lets the countdown of a task of this node go on. Errors: as of tasks.Scheduler.Resume.
func (s *Engine) Resume(ctx context.Context, id string) (task.Task, error) {
	return s.moveUnless(ctx, id, task.ResumeAction, Admission{}, func(rec *record.Fields, _ *Write) { rec.Resume(s.Now()) })
}

// isAsWanted reports whether a task is held already, or not held, as the action wants it.
func isAsWanted(a task.Action, sl *store.Slot) bool {
	held := sl.Next == record.HeldUntil
	return a == task.HoldAction && held || a == task.ResumeAction && !held
}

// countHeldLocked counts a held task that begins or ceases to be shown as pending.
func (t *Topic) countHeldLocked(before, after task.State) {
	switch task.Pending {
	case before:
		t.Held--
	case after:
		t.Held++
	}
}
