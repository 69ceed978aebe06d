package cli

import (
	"context"
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

// On a terminal, a restore shows how many bytes it has copied. One that is interrupted leaves
// nothing.
func TestRestoreShowsProgress(t *testing.T) {
	backups, to := t.TempDir(), filepath.Join(t.TempDir(), "restored")
	url, stop := started(t, "--data", filepath.Join(t.TempDir(), "data"), "--backup-dir", backups)
	(&shell{t, url}).ok("backup", "b")
	stop()
	was := isTerminal
	t.Cleanup(func() { isTerminal = was })
	isTerminal = func(any) bool { return true }
	var out, errs screen
	interrupted, interrupt := context.WithCancel(t.Context())
	interrupt()
	if code := run(interrupted, []string{"restore", filepath.Join(backups, "b"), "--data", to}, streams{&out, &errs}); code != exitInterrupted {
		t.Errorf("interrupted: %d, %s", code, errs.String())
	}
	if _, err := os.Stat(to); err == nil {
		t.Error("an interrupted restore leaves a directory")
	}
	if code := run(t.Context(), []string{"restore", filepath.Join(backups, "b"), "--data", to}, streams{&out, &errs}); code != exitOK || !strings.Contains(errs.String(), "B/") {
		t.Errorf("restore: %d, %q", code, errs.String())
	}
}

func TestBackupDirIsChecked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	data := filepath.Join(root, "data")
	links := t.TempDir()
	for name, to := range map[string]string{"root": root, "below": filepath.Join(data, "below")} {
		if err := os.Symlink(to, filepath.Join(links, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "data", "below"), 0o700); err != nil {
		t.Fatal(err)
	}
	for dir, says := range map[string]string{
		root:                          "backup-dir: " + root + " must not be data",
		"/":                           "must not be data",
		filepath.Join(links, "root"):  "must not be data",
		filepath.Join(links, "below"): "must not be data",
		"/no/such/directory":          "does not exist",
		file:                          "no directory",
		data:                          "must not be data",
		filepath.Join(data, "below"):  "must not be data",
	} {
		s := &settings{nodeSettings: nodeSettings{Data: data, BackupDir: dir}}
		var bad faults
		s.checkBackups(&bad)
		if err := bad.err(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", dir, err)
		}
	}
	for _, dir := range []string{root + "/backups", root + "/data-backups"} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		s := &settings{nodeSettings: nodeSettings{Data: filepath.Join(links, "root", "new"), BackupDir: dir}}
		var bad faults
		s.checkBackups(&bad)
		if err := bad.err(); err != nil || s.BackupDir != dir {
			t.Errorf("%s: %v", dir, err)
		}
	}
	around := &settings{nodeSettings: nodeSettings{Data: filepath.Join(links, "root", "new"), BackupDir: root}}
	var refused faults
	around.checkBackups(&refused)
	if err := refused.err(); err == nil || !strings.Contains(err.Error(), "must not be data") {
		t.Errorf("around data that does not exist: %v", err)
	}
	s := &settings{nodeSettings: nodeSettings{Redis: "redis://127.0.0.1", BackupDir: data}}
	var bad faults
	s.checkBackups(&bad)
	if err := bad.err(); err == nil || !strings.Contains(err.Error(), "Redis") {
		t.Errorf("with Redis: %v", err)
	}
}
