package cli

import (
	"context"
	"fmt"
	"runtime"

	"github.com/lapsehq/lapse/internal/stamp"
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
	text, revision := stamp.Read()
	if text == "(devel)" && revision != "" {
		text += " " + revision
	}
	return text + " " + runtime.Version()
}
