package cli

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Files with secrets that all users can read, and files that others than their owners can write,
// are reported, each by its name, and no others.
func TestModesOfSecretFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	s := settings{nodeSettings: nodeSettings{Config: file("config", 0o646)}, webhookSettings: webhookSettings{WebhookSecretFile: file("secrets", 0o644)},
		accessSettings: accessSettings{TokenFile: file("tokens", 0o664), TLSKey: file("key", 0o620), TLSCert: file("cert", 0o664), TLSClientCA: file("authority", 0o666)}}
	var log bytes.Buffer
	s.warnOfModes(slog.New(slog.NewTextHandler(&log, nil)))
	for _, g := range s.guardedFiles() {
		if !strings.Contains(log.String(), g.Path+" mode=") {
			t.Errorf("%s is not reported in %s", g.Path, &log)
		}
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 6 {
		t.Errorf("%d files are reported: %s", n, &log)
	}
	// As "lapse token > tokens.yaml" makes it: digests alone, which all may read. And secrets of a
	// group, as docs/operations.md has them.
	log.Reset()
	s = settings{accessSettings: accessSettings{TokenFile: file("made", 0o644), TLSKey: file("owner", 0o400)}, webhookSettings: webhookSettings{WebhookSecretFile: file("group", 0o640)}}
	if s.warnOfModes(slog.New(slog.NewTextHandler(&log, nil))); log.Len() > 0 {
		t.Errorf("the log has %s", &log)
	}
}
