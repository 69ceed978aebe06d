//go:build !linux

package wheel

import "time"

// A fineTimer is missing: the Go runtime waits in nanoseconds here.
type fineTimer struct{}

func newFineTimer() *fineTimer { return nil }

func (*fineTimer) set(time.Duration) {}

func (*fineTimer) run(chan<- struct{}) {}

func (*fineTimer) close() {}
