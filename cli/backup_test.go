package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A backup of a running server is restored, and a server on the copy, or on the backup itself, has
// its tasks.
func TestBackupAndRestoreCommands(t *testing.T) {
	backups, data := t.TempDir(), filepath.Join(t.TempDir(), "data")
	url, stop := started(t, "--data", data, "--backup-dir", backups)
	s := &shell{t, url}
	s.ok("topics", "set", "x", "--weight", "7")
	s.ok("schedule", "x", "--id", "a", "--delay", "1h")
	s.ok("schedule", "y", "--id", "dead")
	s.ok("bury", s.lines("reserve", "y", "--wait", "5s")[0]["receipt"].(string))
	s.prints([]string{"backup", "first"}, "first is made: ", filepath.Join(backups, "first"))
	s.ok("schedule", "x", "--id", "b", "--delay", "1h")
	if got := s.object("backup"); got["path"] != filepath.Join(backups, got["name"].(string)) {
		t.Errorf("got %v", got)
	}
	s.fails(exitConflict, []string{"backup", "first"}, "there is a backup of this name")
	s.fails(exitUsage, []string{"backup", "../data"}, "name")
	s.fails(exitUsage, []string{"backup", "x.partial"}, "name")
	restored := filepath.Join(t.TempDir(), "restored")
	offline := func(args ...string) (int, string) {
		t.Helper()
		var out, errs screen
		return run(t.Context(), args, streams{&out, &errs}), out.String() + errs.String()
	}
	if code, text := offline("restore", data, "--data", restored); code != exitInUse || !strings.Contains(text, "in use") {
		t.Errorf("restoring a ledger in use: %d, %s", code, text)
	}
	stop()
	if code, text := offline("restore", filepath.Join(backups, "first"), "--data", restored); code != exitOK || text != "restored; start it with lapse serve --data "+restored+"\n" {
		t.Fatalf("restore: %d, %s", code, text)
	}
	if code, text := offline("restore", filepath.Join(backups, "first"), "--data", restored); code != exitFailed || !strings.Contains(text, "not empty") {
		t.Errorf("restoring over a ledger: %d, %s", code, text)
	}
	for _, dir := range []string{restored, filepath.Join(backups, "first")} {
		url, stop := started(t, "--data", dir)
		s := &shell{t, url}
		s.prints([]string{"get", "a"}, "a", "pending")
		s.prints([]string{"get", "dead"}, "buried")
		s.prints([]string{"topics", "get", "x"}, "7")
		s.fails(exitNotFound, []string{"get", "b"})
		s.fails(exitConflict, []string{"backup"}, "--backup-dir")
		stop()
	}
}

func TestBackupDirIsChecked(t *testing.T) {
	data, file := t.TempDir(), filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, says := range map[string]string{
		"/no/such/directory":         "does not exist",
		file:                         "no directory",
		data:                         "must not be data",
		filepath.Join(data, "below"): "must not be data",
	} {
		s := &settings{nodeSettings: nodeSettings{Data: data, BackupDir: dir}}
		var bad faults
		s.checkBackups(&bad)
		if err := bad.err(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", dir, err)
		}
	}
	s := &settings{nodeSettings: nodeSettings{Redis: "redis://127.0.0.1", BackupDir: data}}
	var bad faults
	s.checkBackups(&bad)
	if err := bad.err(); err == nil || !strings.Contains(err.Error(), "Redis") {
		t.Errorf("with Redis: %v", err)
	}
}
