package cli

import (
	"log/slog"
	"os"
)

// warnOfModes logs files with secrets that users other than their owner can read or write.
func (s *settings) warnOfModes(log *slog.Logger) {
	for _, file := range []string{s.TokenFile, s.WebhookSecretFile, s.TLSKey} {
		if file == "" {
			continue
		}
		info, err := os.Stat(file)
		if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
			log.Warn("other users can access a file with secrets; chmod 600 prevents that", "file", file, "mode", info.Mode().Perm().String())
		}
	}
}
