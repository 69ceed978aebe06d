package recovery

import (
	"context"
	"errors"
)

// Errors of backups.
var (
	// ErrBackupExists: the directory of the backup is there already.
	ErrBackupExists = errors.New("the directory of the backup exists")
	// ErrBackupRunning: another backup is being made.
	ErrBackupRunning = errors.New("another backup is being made")
	// ErrInTheWay: where the backup would be made first there is something that no backup has left.
	ErrInTheWay = errors.New("what is in the way is no unfinished backup")
)

// A Backer is a ledger that can be copied while it is used.
type Backer interface {
	// Backup makes a directory that holds everything the ledger had confirmed when it was called,
	// and that a ledger of the same kind can be opened in. The parent directory must exist. It
	// returns how many bytes the files have. Where it can, it links files instead of copying them.
	// A backup that was interrupted is not taken for a whole one, and is replaced by the next with
	// its name.
	//
	// Errors: ErrBackupExists, ErrBackupRunning, ErrInTheWay; ErrFull if there is no room;
	// ErrClosed; those of the files.
	Backup(ctx context.Context, dir string) (bytes int64, err error)
}
