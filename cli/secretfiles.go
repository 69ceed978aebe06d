package cli

import (
	"log/slog"
	"os"
)

// warnOfModes tells of files with secrets that others than their owner can get at.
func (s *settings) warnOfModes(log *slog.Logger) {
	for _, file := range []string{s.TokenFile, s.WebhookSecretFile, s.TLSKey} {
		if file == "" {
			continue
		}
		info, err := os.Stat(file)
		if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
			log.Warn("others can get at a file with secrets; chmod 600 closes it", "file", file, "mode", info.Mode().Perm().String())
		}
	}
}
