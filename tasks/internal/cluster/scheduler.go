package cluster

import "github.com/lapsehq/lapse/tasks/internal/engine"

// The lateVerdicts are on their way to the nodes that have the tasks now.
type lateVerdicts struct {
	wake chan struct{} // tells that there are some; holds one request

	// Guarded by Engine.Mu:
	verdicts []engine.LateVerdict
	out      int // those that are being sent
}

// A draining is what has become of the calls of DrainNode.
type draining struct {
	Done chan struct{} // closed when this node was drained because DrainNode was called

	// Guarded by Engine.Mu:
	itself bool   // since DrainNode was called
	failed int    // how often that came to nothing
	fault  string // why, the last time
}
