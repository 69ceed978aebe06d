package httpapi

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks"
)

// NewBackup asks for a backup.
type NewBackup struct {
	Name string `json:"name,omitempty" pattern:"^[A-Za-z0-9][A-Za-z0-9._:@-]*$" maxLength:"128" doc:"Name of its directory, below the directory of backups. Default: the time, such as 20261124T120000.000Z."`
}

// Backup is a backup that was made.
type Backup struct {
	Name  string   `json:"name"`
	Path  string   `json:"path" doc:"Its directory, on the machine of the server."`
	Bytes int64    `json:"bytes" doc:"How long its files are. Those that it shares with the ledger take no room until the ledger drops them."`
	Took  duration `json:"took"`
}

// partialBackup ends the name of the directory of a backup that is being made.
const partialBackup = ".partial"

// backup answers POST /v1/backup.
func (s *Server) backup(_ context.Context, in *request) (*reply[Backup], error) {
	body, err := optionalBody(in.gin)
	if err != nil {
		return nil, err
	}
	var name string
	for key := range body.object("") {
		if string(key) == "name" {
			name = body.str("name")
		} else {
			body.unknown(key)
		}
	}
	if err := body.done(); err != nil {
		return nil, err
	}
	name = cmp.Or(name, time.Now().UTC().Format("20060102T150405.000Z"))
	if !tasks.ValidName(name) || strings.HasSuffix(name, partialBackup) {
		return nil, invalidField("name", "must be 1 to 128 characters of A-Z a-z 0-9 . _ : @ - and begin with a letter or a digit, and not end with "+partialBackup)
	}
	if !s.scheduler.MakesBackups() {
		return nil, noBackup.with("the tasks of this server are not on its disk: back Redis up as Redis does (RDB or AOF files), or export the tasks with GET /v1/export")
	}
	if s.backups == "" {
		return nil, noBackup.with("the server was started without a directory for backups (--backup-dir)")
	}
	defer withoutDeadline(in.gin)()
	began := time.Now()
	path := filepath.Join(s.backups, name)
	log := s.log.With("request_id", in.gin.Writer.Header().Get(requestIDHeader), "token", tokenName(in.gin), "dir", path)
	// It is made to its end, also if the caller goes.
	size, err := s.scheduler.Backup(context.Background(), path)
	if err != nil {
		log.Warn("no backup was made", "error", err)
	}
	switch {
	case errors.Is(err, recovery.ErrBackupExists):
		return nil, noBackup.with("there is a backup of this name")
	case errors.Is(err, recovery.ErrBackupRunning):
		return nil, overloaded.with("another backup is being made")
	case errors.Is(err, recovery.ErrInTheWay):
		return nil, noBackup.with(name + partialBackup + " in the directory of backups was not left by a backup, and stays as it is: move it away, or give the backup another name")
	case errors.Is(err, recovery.ErrFull):
		return nil, noBackup.with("the disk has no room for it")
	case err != nil:
		return nil, unavailable.with("the backup failed; the log of the server says why")
	}
	took := time.Since(began).Round(time.Millisecond)
	log.Info("a backup was made", "bytes", size, "took", took)
	return &reply[Backup]{Backup{name, path, size, duration(took)}}, nil
}
