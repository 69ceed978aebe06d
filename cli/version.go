package cli

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
)

type version struct{}

// Run prints one line: the module's version, its commit and the Go version.
func (version) Run(_ context.Context, std streams, _ *faults) error {
	_, err := fmt.Fprintln(std.out, "lapse", buildVersion())
	return err
}

// buildVersion is the version that the Go tool has stamped into the binary: a version for `go
// install module@version`, a commit for a build in a clone.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown) " + runtime.Version()
	}
	text := info.Main.Version
	if text == "" || text == "(devel)" {
		text = "(devel)"
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				text += " " + s.Value
			}
		}
	}
	return text + " " + runtime.Version()
}
