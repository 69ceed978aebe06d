package redisrig

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks/delivertest"
)

// A Fault is the part of a rig that breaks things. A server that refuses does so by its access
// rules. A server that hangs is stopped as a process. Connections end in the client.
type Fault struct {
	server *redistest.Server
	now    atomic.Value // delivertest.Fault
}

// Put makes a fault that every pipeline of the client meets.
func Put(t testing.TB, server *redistest.Server, client redis.UniversalClient) *Fault {
	f := &Fault{server: server}
	f.now.Store(delivertest.None)
	client.AddHook(f)
	t.Cleanup(func() { f.Break(delivertest.None) })
	return f
}

// Break implements delivertest.Breaker.
func (f *Fault) Break(fault delivertest.Fault) {
	switch f.now.Swap(fault) {
	case delivertest.Hang:
		f.server.Resume()
	case delivertest.Refuse:
		f.server.Do("acl", "setuser", "default", "+@all")
	}
	switch fault {
	case delivertest.Hang:
		f.server.Pause()
	case delivertest.Refuse:
		f.server.Do("acl", "setuser", "default", "-xadd", "-publish")
	}
}

var errCut = errors.New("the connection ended")

// ProcessPipelineHook implements redis.Hook.
func (f *Fault) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		cut := len(cmds) // from which command on there is no reply
		switch f.now.Load() {
		case delivertest.Cut:
			cut = 0
		case delivertest.Lose:
			_ = next(ctx, cmds)
			cut = 0
		case delivertest.Flaky:
			if rand.N(2) == 0 {
				cut = rand.N(len(cmds)) // on average a quarter fail
				if rand.N(4) == 0 {
					_ = next(ctx, cmds)
				} else if cut > 0 {
					_ = next(ctx, cmds[:cut])
				}
			}
		}
		if cut == len(cmds) {
			return next(ctx, cmds)
		}
		for _, cmd := range cmds[cut:] {
			cmd.SetErr(errCut)
		}
		return errCut
	}
}

// ProcessHook implements redis.Hook.
func (f *Fault) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// DialHook implements redis.Hook.
func (f *Fault) DialHook(next redis.DialHook) redis.DialHook { return next }
