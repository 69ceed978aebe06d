// Package stamp tells what the Go tool has stamped into this program.
package stamp

import (
	"runtime/debug"
	"sync"
)

// Read returns the version of the main module, such as v1.4.0, and the commit that the program was
// built from, if it is known. The version is (devel) for a build without one, and (unknown) without
// any information. Only the first call reads them.
var Read = sync.OnceValues(func() (version, revision string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown)", ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			revision = s.Value
		}
	}
	if info.Main.Version == "" {
		return "(devel)", revision
	}
	return info.Main.Version, revision
})
