// Package parts lets a test put others in the place of parts of a scheduler. It owns no state, and
// nothing can fail.
package parts

import "github.com/lapsehq/lapse/tasks/internal/cluster"

// Key is that of Parts in the context of tasks.Open.
type Key struct{}

// Parts are parts of a scheduler. The zero value replaces none.
type Parts struct {
	Peers cluster.PeerCalls
	Fired func(values []uint64) []uint64 // changes a batch on its way from the wheel; may be nil
}
