package rig

import (
	"context"
	"reflect"
	"sync"
	"testing"
	"unsafe"

	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/parts"
)

// Parts are parts of a scheduler that a test replaces.
type Parts = parts.Parts

// OpenWith is tasks.Open with parts of the test.
func OpenWith(ctx context.Context, ledger recovery.Ledger, cfg tasks.Config, p Parts) (*tasks.Scheduler, error) {
	return tasks.Open(context.WithValue(ctx, parts.Key{}, p), ledger, cfg)
}

// Engine returns the part of a scheduler that works for itself.
func Engine(s *tasks.Scheduler) *engine.Engine { return (*engine.Engine)(pointer(s, "engine")) }

// Cluster returns the part of a scheduler that works with other nodes.
func Cluster(s *tasks.Scheduler) *cluster.Cluster { return (*cluster.Cluster)(pointer(s, "cluster")) }

// Mutex returns the mutex of an engine, which no package of the product can name but its own.
func Mutex(e *engine.Engine) *sync.Mutex {
	return (*sync.Mutex)(reflect.ValueOf(e).Elem().FieldByName("mu").Addr().UnsafePointer())
}

// pointer returns a field that is a pointer, and not exported.
func pointer(s *tasks.Scheduler, field string) unsafe.Pointer {
	return reflect.ValueOf(s).Elem().FieldByName(field).UnsafePointer()
}

// Engine is that of the scheduler in use.
func (r *Rig) Engine() *engine.Engine { return Engine(r.Scheduler) }

// Cluster is that of the scheduler in use.
func (r *Rig) Cluster() *cluster.Cluster { return Cluster(r.Scheduler) }

// Engine is that of the process.
func (n *Node) Engine() *engine.Engine { return Engine(n.Scheduler) }

// Cluster is that of the process.
func (n *Node) Cluster() *cluster.Cluster { return Cluster(n.Scheduler) }

// Engine is that of the node whose storage loses writes.
func (r *RewindRig) Engine() *engine.Engine { return Engine(r.Scheduler) }

// Main runs the tests of a package. Goroutines that outlive them are a failure.
func Main(m *testing.M) {
	// The client looks for a server that was away once a second, also when it is closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}
