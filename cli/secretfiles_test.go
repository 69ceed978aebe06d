package cli

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Files with secrets that other users can read are reported, each by its name, and no others.
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
	s := settings{accessSettings: accessSettings{TokenFile: file("tokens", 0o664), TLSKey: file("key", 0o400)},
		webhookSettings: webhookSettings{WebhookSecretFile: file("secrets", 0o640)}}
	var log bytes.Buffer
	s.warnOfModes(slog.New(slog.NewTextHandler(&log, nil)))
	if n := strings.Count(log.String(), "level=WARN"); n != 2 || !strings.Contains(log.String(), "tokens mode=-rw-rw-r--") || !strings.Contains(log.String(), "secrets mode=-rw-r-----") {
		t.Errorf("the log has %s", &log)
	}
	// As "lapse token > tokens.yaml" makes it: digests alone, which all may read.
	log.Reset()
	s = settings{accessSettings: accessSettings{TokenFile: file("made", 0o644)}}
	if s.warnOfModes(slog.New(slog.NewTextHandler(&log, nil))); log.Len() > 0 {
		t.Errorf("the log has %s", &log)
	}
}
