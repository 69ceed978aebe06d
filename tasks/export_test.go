package tasks

import (
	"context"
	"reflect"
	"sync"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// All tests are outside this package. This is what some of them see of its inside.

// Parts are parts of a scheduler that a test replaces. Their zero value replaces nothing.
type Parts struct {
	Peers cluster.PeerCalls
	Fired func(values []uint64) []uint64 // changes a batch on its way from the wheel
}

// OpenWith is Open with parts of the test.
func OpenWith(ctx context.Context, ledger recovery.Ledger, cfg Config, p Parts) (*Scheduler, error) {
	return open(ctx, ledger, cfg, parts{peers: p.Peers, fired: p.Fired})
}

// Engine returns the part of s that works for itself.
func (s *Scheduler) Engine() *engine.Engine { return s.engine }

// Cluster returns the part of s that works with other nodes.
func (s *Scheduler) Cluster() *cluster.Cluster { return s.cluster }

// Mutex returns the mutex of an engine, which no other package of the product can name.
func Mutex(e *engine.Engine) *sync.Mutex {
	return (*sync.Mutex)(reflect.ValueOf(e).Elem().FieldByName("mu").Addr().UnsafePointer())
}
