package tasks

import (
	"context"
	"errors"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// ErrNoBackup is returned by Backup when the ledger cannot be copied: its records are not on this
// machine.
var ErrNoBackup = errors.New("the ledger makes no backups")

// Backup copies the ledger into a directory that does not exist yet, while it is used, and returns
// how many bytes the files have. See recovery.Backer, also for the errors; ErrNoBackup if the
// ledger is none.
func (s Admin) Backup(ctx context.Context, dir string) (bytes int64, err error) {
	b, ok := s.engine.Ledger.(recovery.Backer)
	if !ok {
		return 0, ErrNoBackup
	}
	return b.Backup(ctx, dir)
}

// MakesBackups reports whether the ledger can be copied while it is used.
func (s Admin) MakesBackups() bool {
	_, ok := s.engine.Ledger.(recovery.Backer)
	return ok
}

// ValidName reports whether a text may be the name of a task, a topic or a group.
func ValidName(text string) bool { return task.ValidName(text) }
