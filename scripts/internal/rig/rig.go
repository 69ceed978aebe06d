// Package rig has what the tests below scripts/ share: where the repository is, goroutines that end
// with the test, waiting, and how times are written.
package rig

import (
	"context"
	"sync"
	"testing"
	"time"
)

// Root is the root of the repository, seen from a package of scripts/, where its tests run.
const Root = "../.."

// Workers are goroutines that end with the test, or sooner by Stop.
type Workers struct {
	sync.WaitGroup
	Ctx    context.Context // ends with Stop
	cancel context.CancelFunc
}

// NewWorkers returns a group without goroutines. Go adds one, which must end with Ctx.
func NewWorkers(t *testing.T) *Workers {
	w := &Workers{}
	w.Ctx, w.cancel = context.WithCancel(t.Context())
	t.Cleanup(w.Stop)
	return w
}

// Stop ends Ctx and waits for the goroutines. It may be called again.
func (w *Workers) Stop() {
	w.cancel()
	w.Wait()
}

// Within calls yes once a period until it returns true. It returns false after limit.
func Within(period, limit time.Duration, yes func() bool) bool {
	tick := time.NewTicker(period)
	defer tick.Stop()
	over := time.After(limit)
	for !yes() {
		select {
		case <-tick.C:
		case <-over:
			return false
		}
	}
	return true
}

// Wire formats a time for a request of the API.
func Wire(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// Stamp formats a time for a line of a report.
func Stamp(t time.Time) string { return t.UTC().Format("15:04:05.000") }
