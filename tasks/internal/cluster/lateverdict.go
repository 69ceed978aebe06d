package cluster

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// When a shard leaves while a handler of this process is making a delivery of it, the
// handler's verdict counts nevertheless: this node sends it to the holder of the shard, as the
// settlement of a receipt. The new holder honours it if the delivery was handed over with
// its lease, or if it has not begun the same attempt again.

const (
	lateVerdictsAtOnce = 16
	lateVerdictPause   = 50 * time.Millisecond
)

func (s *Cluster) addLateVerdictLocked(e engine.LateVerdict) {
	s.late.verdicts = append(s.late.verdicts, e)
	select {
	case s.late.wake <- struct{}{}:
	default:
	}
}

// lateVerdictLoop sends the late verdicts, until Close has no more time for them.
func (s *Cluster) lateVerdictLoop() {
	for pause := lateVerdictPause; ; {
		select {
		case <-s.late.wake:
		case <-s.engine.Life.Closing:
			return
		}
		if s.sendLateVerdicts() {
			pause = lateVerdictPause
		} else if pause = min(2*pause, time.Second); !s.engine.Rest(pause) {
			return
		}
	}
}

// sendLateVerdicts tries all late verdicts once. It reports whether none is left.
func (s *Cluster) sendLateVerdicts() bool {
	s.engine.Mu.Lock()
	all := s.late.verdicts
	s.late.verdicts, s.late.out = nil, len(all)
	s.engine.Mu.Unlock()
	for some := range slices.Chunk(all, lateVerdictsAtOnce) {
		var group sync.WaitGroup
		for _, e := range some {
			group.Go(func() { s.sendLateVerdict(e) })
		}
		group.Wait()
	}
	s.engine.Mu.Lock()
	defer s.engine.Mu.Unlock()
	s.late.out = 0
	return len(s.late.verdicts) == 0
}

// sendLastVerdicts sends the late verdicts that are left when Close begins.
func (s *Cluster) sendLastVerdicts(ctx context.Context) {
	if s.engine.Fleet == nil {
		return
	}
	for !s.sendLateVerdicts() {
		select {
		case <-time.After(lateVerdictPause / 10):
		case <-ctx.Done():
			return
		}
	}
}

func (s *Cluster) sendLateVerdict(e engine.LateVerdict) {
	ctx, cancel := s.engine.Within(context.WithoutCancel(s.engine.Life.Context))
	defer cancel()
	err := errNoPeers
	if s.peerCalls.Settle != nil {
		err = s.peerCalls.Settle(ctx, e.ShardID, e.Verdict, e.Receipt)
	}
	switch {
	case err == nil:
	case s.engine.Elapsed() < e.Until && (errors.Is(err, task.ErrUnavailable) || errors.Is(err, task.ErrUnknown) || errors.Is(err, task.ErrReplaying)):
		s.engine.Mu.Lock()
		s.addLateVerdictLocked(e)
		s.engine.Mu.Unlock()
	default:
		s.engine.Config.Log.Warn("a delivery could not be settled at the node that holds its task now; it may be delivered again", "node", s.engine.Config.Node, "error", err)
	}
}
