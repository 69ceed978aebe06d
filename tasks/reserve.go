package tasks

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// Reserve hands out up to limit ready tasks of a topic that is pulled, those
// first that became due first. If there are none, it asks the other nodes that share
// the ledger, and waits for up to wait until there are some anywhere; it may return
// none. A lease of 0 is the topic's, at the node that holds the task. Tasks whose payloads are
// large come in several calls: one hands out no more once MaxPageBytes are reached.
//
// Errors: ErrInvalid; ErrHandled if the topic's tasks go to a handler;
// ErrOverloaded when Config.MaxInFlight deliveries are open; ErrNotGranted; ErrClosed.
func (s *Scheduler) Reserve(ctx context.Context, topic string, limit int, wait, lease time.Duration) ([]Delivery, error) {
	var f task.Faults
	if !task.ValidName(topic) {
		f.Add("topic", task.NameProblem)
	}
	if limit < 1 || limit > MaxReserve {
		f.Add("max", task.ReserveRange)
	}
	if wait < 0 || wait > MaxWait {
		f.Add("wait", task.WaitRange)
	}
	if lease != 0 && (lease < MinLease || lease > MaxLease) {
		f.Add("lease", task.LeaseRange)
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	if err := engine.Granted(ctx, topic); err != nil {
		return nil, err
	}
	if err := s.engine.LearnTopic(ctx, topic); err != nil {
		return nil, err
	}
	reserved := GrantOf(ctx).HasReserved()
	place := engine.NewWaiter(limit, wait == 0)
	var over <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		over = timer.C
	}
	var demand func(stopped bool) (*atomic.Int64, func() <-chan struct{})
	alone := s.cluster.NoPeers()
	if !alone {
		demand = s.cluster.Demand(topic, lease)
	}
	for {
		begun, err := s.engine.Pull(ctx, topic, reserved, place, lease)
		if err != nil || len(begun) > 0 || wait == 0 && alone {
			return s.handOver(ctx, begun), err
		}
		woken, err := s.engine.Queue(ctx, topic, reserved, place, over, demand)
		if err != nil || !woken {
			return s.handOver(ctx, nil), err
		}
		if len(place.Fetched) > 0 {
			return s.handOver(ctx, s.cluster.Received(ctx, place.Fetched)), nil
		}
	}
}

// handOver gives deliveries to their receiver.
func (s *Scheduler) handOver(ctx context.Context, begun []*engine.Delivery) []Delivery {
	ds := make([]Delivery, len(begun))
	for i, d := range begun {
		s.engine.TraceReserved(ctx, d)
		ds[i] = d.Delivery
	}
	return ds
}
