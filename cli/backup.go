package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/lapsehq/lapse/recovery/diskledger"
)

// backup is the command that backs the ledger of a server up.
type backup struct {
	remote
	Name string `arg:"" optional:"" help:"Name of the backup, a directory below the server's --backup-dir. Default: the time."`
}

const backupDetail = "It holds everything that was confirmed, and is made on the machine of the server, which needs --backup-dir. " +
	"A server can be started on it (--data), and lapse restore copies it. For tasks in Redis, use the means of Redis, or lapse export."

// call has the server make a backup.
func (c *backup) call(ctx context.Context, s *session) error {
	b, err := s.Backup(ctx, c.Name)
	if err != nil {
		return err
	}
	return s.print(func(w io.Writer) {
		fmt.Fprintf(w, "%s is made: %d MiB in %s, after %v\n", b.Name, b.Bytes>>20, b.Path, b.Took)
	})
}

// restore is the command that makes a data directory of a backup.
type restore struct {
	Backup string `arg:"" help:"Directory of the backup."`
	Data   string `env:"-" placeholder:"DIR" default:"./lapse-data" help:"Where its copy goes: a directory that does not exist, or is empty."`
}

const restoreDetail = "The server must not run yet. The backup stays as it is. " +
	"A receipt that was given out before the backup counts in the copy as well, so a copy and the server that it comes from must not both have receivers."

// Run restores.
func (c *restore) Run(ctx context.Context, std streams, bad *faults) error {
	if err := bad.err(); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(std.err, &slog.HandlerOptions{Level: slog.LevelError}))
	var shown *progress
	err := diskledger.Restore(ctx, c.Backup, c.Data, diskledger.Options{Log: log, MinFree: -1}, func(copied, total int64) {
		if shown == nil {
			shown = bytesProgress(std.err, total)
		}
		shown.addBytes(copied)
	})
	shown.end()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(std.out, "restored; start it with lapse serve --data %s\n", c.Data)
	return err
}

// checkBackups checks the directory of backups, which must exist before the server does anything.
func (s *settings) checkBackups(bad *faults) {
	if s.BackupDir == "" {
		return
	}
	if s.Redis != "" {
		bad.add("backup-dir: only for tasks on the disk; those in Redis are backed up by the means of Redis, or with lapse export")
		return
	}
	dir, err := filepath.Abs(s.BackupDir)
	if err != nil {
		bad.add("backup-dir: %w", err)
		return
	}
	backups, err := resolved(s.BackupDir)
	data, failed := resolved(s.Data)
	if err = errors.Join(err, failed); err != nil {
		bad.add("backup-dir: %w", err)
		return
	}
	if contains(data, backups) || contains(backups, data) {
		bad.add("backup-dir: %s must not be data (%s), be in it, or have it in itself: name a directory beside it", s.BackupDir, s.Data)
		return
	}
	switch info, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		bad.add("backup-dir: %s does not exist", s.BackupDir)
	case err != nil:
		bad.add("backup-dir: %w", err)
	case !info.IsDir():
		bad.add("backup-dir: %s is no directory", s.BackupDir)
	default:
		s.BackupDir = dir
	}
}

// contains reports whether a directory is another one, or has it below itself. Both are absolute
// and without symbolic links.
func contains(dir, other string) bool {
	path, err := filepath.Rel(dir, other)
	return err == nil && filepath.IsLocal(path)
}

// resolved returns the absolute path of a directory without symbolic links. It may not exist yet.
func resolved(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	path, err := filepath.EvalSymlinks(dir)
	if parent := filepath.Dir(dir); errors.Is(err, fs.ErrNotExist) && parent != dir {
		if path, err = resolved(parent); err == nil {
			path = filepath.Join(path, filepath.Base(dir))
		}
	}
	return path, err
}
